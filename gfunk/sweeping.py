"""Waves from many sites of one surface, each by itself: when they arrive everywhere, and from where that takes longest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import KDTree

from gfunk.atria.anatomy import Place
from gfunk.domain import Domain, cell_sizes
from gfunk.doubts import doubts_of_time
from gfunk.errors import InputError
from gfunk.first_waves import MARGIN_MS, arrival_bounds, threads_for
from gfunk.physics.compiling import compiling_pays
from gfunk.prediction import asked_times, checked_times, predicted_activation
from gfunk.readiness import Ready, made_ready, stimulus_at
from gfunk.sites import region_nodes, site_at
from gfunk.store import CorruptFile, fingerprint, read_arrays, read_object, write_arrays, write_json
from gfunk.surface import edge_lengths, unique_edges

# Solved together, and lost where one is killed: on a CPU more are no faster.
SITES_AT_ONCE = 8
SITES_AT_ONCE_ON_A_GPU = 500  # a few seconds
NODES_AT_ONCE = 1_500_000  # of all sites that an operator sees together, on a GPU: a few GB
EVERY_MS = 1.0  # between the values of operators that can't tell arrivals without
SETTINGS, MAPS = "sweep.json", "maps"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One wave a site, on the nodes of the domain, times since its stimulus; NaN where it does not come until `until_ms`."""

    domain: Domain
    sites: Float[np.ndarray, "trajectory 3"]
    activation_ms: Float[np.ndarray, "trajectory node"]
    until_ms: float
    warnings: tuple[str, ...] = ()

    @cached_property
    def nodes(self) -> Int[np.ndarray, " trajectory"]:
        """Nearest to each site."""
        return np.asarray(KDTree(self.domain.points).query(self.sites)[1], dtype=np.int64)

    @cached_property
    def last_nodes(self) -> Int[np.ndarray, " trajectory"]:
        """Where each wave arrives last."""
        return np.where(np.isnan(self.activation_ms), -np.inf, self.activation_ms).argmax(axis=1)

    @cached_property
    def total_ms(self) -> Float[np.ndarray, " trajectory"]:
        """Until the last place that is reached at all; NaN where none is."""
        return self.activation_ms[np.arange(len(self.sites)), self.last_nodes]

    @cached_property
    def share(self) -> Float[np.ndarray, " trajectory"]:
        """Of the surface, that is activated in time."""
        area = _node_areas(self.domain)
        return 1 - np.isnan(self.activation_ms) @ (area / area.sum())

    @cached_property
    def mean_ms(self) -> Float[np.ndarray, " trajectory"]:
        """Over the surface that is activated in time; NaN where none is."""
        area = _node_areas(self.domain)
        reached = np.isfinite(self.activation_ms) @ area
        summed = np.nan_to_num(self.activation_ms, nan=0.0) @ area
        return np.divide(summed, reached, out=np.full(len(reached), np.nan), where=reached > 0)

    @cached_property
    def earliest_first(self) -> Int[np.ndarray, " trajectory"]:
        """Numbers of the sites by total time; those whose waves are not everywhere in time come last, by what they miss."""
        n_missed = np.isnan(self.activation_ms).sum(axis=1)
        return np.lexsort((self.total_ms, n_missed))


def sweep(
    domain: Domain,
    sites: int | np.integer | Sequence[Place | str],
    *,
    region: str | None = None,
    seed: int = 0,
    until_ms: float = 100.0,
    model: str | Path = "atria",
    edge_mm: float | None = None,
    device: str = "cpu",
    folder: Path | None = None,
) -> Sweep:
    """A wave from each of some sites: so many, spread evenly over the surface or a region of it, or these.

    edge_mm: `made_ready` tells. folder: where what is finished is kept; the same call goes on from there.
    """
    sweep_times(until_ms)
    places = spread_nodes(domain, int(sites), region, seed).tolist() if isinstance(sites, int | np.integer) else sites
    return swept(made_ready(domain, model, edge_mm=edge_mm, device=device), places, until_ms, folder=folder)


def sweep_times(until_ms: float) -> Float[np.ndarray, " time"]:
    """What is asked of operators: every ms, and the last."""
    return np.union1d(asked_times(until_ms, min(EVERY_MS, until_ms)), until_ms)


def spread_nodes(domain: Domain, n_sites: int, region: str | None = None, seed: int = 0) -> Int[np.ndarray, " _"]:
    """Nodes as far apart as can be, ways along the edges: each is the one farthest from all before it.

    The first lies farthest out in a direction drawn from the seed. More sites begin with the same.
    """
    if n_sites < 1:
        raise InputError(f"{n_sites} sites: at least one is needed")
    allowed = np.arange(domain.n_nodes) if region is None else region_nodes(domain, region)
    if n_sites > len(allowed):
        where = "the mesh" if region is None else f"region {region!r}"
        raise InputError(f"{n_sites} sites: {where} has only {len(allowed)} nodes")
    graph = edge_graph(domain)
    direction = np.random.default_rng(seed).normal(size=3)
    chosen = [int(allowed[(domain.points[allowed] @ direction).argmax()])]
    away = dijkstra(graph, directed=False, indices=chosen[0])
    while len(chosen) < n_sites:
        chosen.append(int(allowed[away[allowed].argmax()]))
        # No way longer than the longest so far is of interest, and those get shorter.
        away = np.minimum(away, dijkstra(graph, directed=False, indices=chosen[-1], limit=away[allowed].max()))
    return np.array(chosen)


def swept(
    ready: Ready,
    sites: Sequence[Place | str],
    until_ms: float,
    *,
    folder: Path | None = None,
    compiles: bool | None = None,
    on_sites: Callable[[int], None] = lambda _: None,
) -> Sweep:
    """The waves of all sites, each by itself, on a surface that was made ready.

    folder: where what is finished is kept, and found when called again. compiles: for the solver's part; None decides by
    how much there is to do. on_sites: called with the number of sites found in the folder, then of those found since.
    """
    times = checked_times(sweep_times(until_ms), ready.first_ms)
    if not len(sites):
        raise InputError("a sweep needs at least one site")
    places = np.array([site_at(ready.domain, site, ready.onto) for site in sites])
    until_ms = float(until_ms)
    maps = np.full((len(places), ready.domain.n_nodes), np.nan, dtype=np.float32)
    kept = None if folder is None else _Kept(folder, _settings(ready, places, until_ms))
    is_known = np.zeros(len(places), dtype=bool)
    for numbers, rows in () if kept is None else kept.found():
        maps[numbers], is_known[numbers] = rows, True
    on_sites(int(is_known.sum()))
    missing = np.flatnonzero(~is_known)
    if compiles is None and len(missing):
        # By all sites, not by those that are missing: to the last bit, waves don't depend on where one was stopped.
        compiles = _compiling_pays(ready, places)
    is_cpu = ready.device.type == "cpu"
    n_sites = SITES_AT_ONCE if is_cpu else SITES_AT_ONCE_ON_A_GPU
    at_once = None if is_cpu else max(1, NODES_AT_ONCE // ready.even.n_nodes)
    for numbers in np.split(missing, np.arange(n_sites, len(missing), n_sites)) if len(missing) else ():
        maps[numbers] = predicted_activation(ready, list(places[numbers, None]), times, compiles=compiles, at_once=at_once)
        if kept is not None:
            kept.keep(numbers, maps[numbers])
        on_sites(len(numbers))
    return Sweep(
        domain=ready.domain,
        sites=places,
        activation_ms=maps,
        until_ms=until_ms,
        warnings=(*ready.warnings, *doubts_of_time(ready.problem, until_ms), *_unfinished(maps, until_ms)),
    )


class _Kept:
    """What is finished, in a folder: each file holds some sites' maps, whole, and names the settings it was found with."""

    def __init__(self, folder: Path, settings: dict[str, str]):
        self.folder, self.note = folder / MAPS, {"settings": fingerprint({}, **settings)}
        path = folder / SETTINGS
        if not path.exists():
            write_json(path, settings)
            return
        before = read_object(path)
        if before != settings:
            differ = ", ".join(name for name in settings if before.get(name) != settings[name])
            raise InputError(f"{folder}: holds a sweep with another {differ or 'form'}: choose another folder, or remove it")

    def found(self) -> Iterator[tuple[Int[np.ndarray, " _"], Float[np.ndarray, "_ node"]]]:
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                arrays, note = read_arrays(path)
            except CorruptFile:
                continue  # found once more, and written over
            if note == self.note:
                yield arrays["sites"], arrays["activation_ms"]

    def keep(self, numbers: Int[np.ndarray, " _"], maps: Float[np.ndarray, "_ node"]):
        path = self.folder / f"{numbers[0]:06d}.safetensors"
        write_arrays(path, {"sites": numbers, "activation_ms": maps}, self.note)


def _settings(ready: Ready, sites: Float[np.ndarray, "trajectory 3"], until_ms: float) -> dict[str, str]:
    """All that the maps depend on; how they are found (device, so many at once) is no part of it."""
    domain = ready.domain
    weights = {name: weight.cpu().numpy() for name, weight in ready.operator.state_dict().items()}
    tissue = {"points": domain.points, "cells": domain.cells, "diffusion": domain.cell_diffusion()}
    return {
        "mesh": fingerprint(tissue),
        "choice of sites": fingerprint({"sites": sites}),
        "time": f"{until_ms!r} ms",
        "model": fingerprint(weights, problem=asdict(ready.problem), variant=asdict(ready.variant)),
    }


def _compiling_pays(ready: Ready, sites: Float[np.ndarray, "trajectory 3"]) -> bool:
    """As far as the first site's patch tells for all."""
    reach_ms = ready.first_ms + MARGIN_MS
    with threads_for(ready.even.n_nodes):
        (bound,) = arrival_bounds(ready.even, ready.batch, [stimulus_at(ready, sites[:1])], 2 * reach_ms)
    n_nodes = 4**ready.problem.n_halvings * int((bound <= reach_ms).sum())
    return compiling_pays(len(sites) * n_nodes, ready.first_ms, ready.device, shortcuts=True)


def _unfinished(maps: Float[np.ndarray, "trajectory node"], until_ms: float) -> tuple[str, ...]:
    n_short = int(np.isnan(maps).any(axis=1).sum())
    if not n_short:
        return ()
    waves = f"{n_short} of {len(maps)} waves are" if n_short > 1 else f"1 of {len(maps)} waves is"
    return (f"{waves} not everywhere after {until_ms:g} ms: total times are of what is reached until then",)


def edge_graph(domain: Domain) -> csr_array:
    one, other = unique_edges(domain.cells).T
    return csr_array((edge_lengths(domain.points, domain.cells), (one, other)), shape=(domain.n_nodes,) * 2)


def _node_areas(domain: Domain) -> Float[np.ndarray, " node"]:
    return np.bincount(domain.cells.ravel(), np.repeat(cell_sizes(domain.points, domain.cells) / 3, 3))
