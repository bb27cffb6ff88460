"""What waves cost a user, by stages: the first on a surface, the first of another day, each one more, many at once."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from gfunk.domain import Domain
from gfunk.files.reading import read_domain
from gfunk.files.vtk_write import write_vtp
from gfunk.prediction import asked_times, predicted
from gfunk.readiness import Ready, made_ready
from gfunk.surface import main_tangents, triangle_normals
from gfunk.sweeping import spread_nodes, swept

N_MORE = 5  # waves, each from a site of its own


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds by stage, and of all; imports are not among them."""

    what: str
    nodes: int
    waves: int
    seconds: Mapping[str, float]

    @property
    def together(self) -> float:
        return sum(self.seconds.values())


def prediction_cost(
    domain: Domain,
    model: str | Path,
    until_ms: float,
    n_sites: int,
    device: str = "cpu",
    compiles: bool | None = None,
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """The surface is read from a file, as a user's is; what is kept from one command to the next starts empty.

    Many at once tell when they arrive, as sweeps do, not what they look like at each time. compiles: for their first
    waves; None: as a sweep decides.
    """
    rows: list[Row] = []

    def add(what: str, n_waves: int, nodes: int, seconds: Mapping[str, float]):
        rows.append(Row(what=what, nodes=nodes, waves=n_waves, seconds=seconds))
        on_row(rows[-1])

    with TemporaryDirectory() as folder:
        path, cache = Path(folder) / "atrium.vtp", Path(folder) / "cache"
        write_surface(path, domain)
        ready = None
        for what in ("cold", "warm"):
            ready, seconds = _as_a_command(path, cache, model, until_ms, device)
            add(what, 1, ready.domain.n_nodes, seconds)
    assert ready is not None
    times = asked_times(until_ms, 1.0)
    sites = spread_nodes(ready.domain, max(n_sites, N_MORE)).tolist()
    more = [predicted(ready, [[site]], times)[0].seconds for site in sites[:N_MORE]]
    add("one more", 1, ready.domain.n_nodes, {name: median(each[name] for each in more) for name in more[0]})
    # Where compiling pays it is done the first time.
    for what in ("many at once", "as many again"):
        started = time.perf_counter()
        swept(ready, sites[:n_sites], until_ms, compiles=compiles)
        add(what, n_sites, ready.domain.n_nodes, {"sweep": time.perf_counter() - started})
    return rows


def write_surface(path: Path, domain: Domain):
    """As a file of a user: fibres, but nothing that only we would know."""
    fibres = main_tangents(domain.cell_diffusion(), triangle_normals(domain.points, domain.cells))
    write_vtp(path, domain.points, domain.cells, cell_data={"fibre": fibres})


def _as_a_command(
    path: Path, cache: Path, model: str | Path, until_ms: float, device: str
) -> tuple[Ready, dict[str, float]]:
    """As `gfunk predict` does it."""
    started = time.perf_counter()
    domain = read_domain(path)
    read = time.perf_counter() - started
    ready = made_ready(domain, model, device=device, cache=cache)
    (site,) = spread_nodes(domain, 1).tolist()
    (wave,) = predicted(ready, [[site]], asked_times(until_ms, 1.0))
    return ready, {"read": read, **ready.seconds, **wave.seconds}
