"""Electrical waves in heart tissue, dv/dt = div(D grad v) - I_ion / C_m + stimulus: many at once, on CPU or GPU."""

from collections.abc import Callable, Iterator, Sequence
from math import floor

import numpy as np
import torch
from jaxtyping import Float, Int

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.physics.cells import Cell
from gfunk.physics.compiling import compiling_pays
from gfunk.physics.diffusion import HalfStep, joined
from gfunk.physics.schemes import SCHEMES, Scheme, coupling, named
from gfunk.physics.stepping import reached_moments
from gfunk.physics.stimulus import Pulses, Stimulus, pulses
from gfunk.physics.waves import Moment, Paced, Seen, told


def simulate(
    domain: Domain,
    sites: Sequence[Sequence[float]],
    *,
    until_ms: float,
    every_ms: float = 1.0,
    radius_mm: float = 1.0,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
) -> Paced:
    """The wave that a stimulus at these sites, at time 0, sends over one domain, compiled where that is the sooner way.

    `simulate_many` can do more.
    """
    if not (until_ms > 0 and every_ms > 0):
        raise InputError(f"until_ms and every_ms must be positive, not {until_ms} and {every_ms}")
    stimulus = Stimulus(sites=tuple(tuple(float(x) for x in site) for site in sites), radius_mm=radius_mm)
    times = every_ms * np.arange(floor(until_ms / every_ms + 1e-9) + 1)
    compiles = compiling_pays(domain.n_nodes, until_ms, torch.device(device))
    return simulate_many([domain], [[[stimulus]]], times, cell=cell, scheme=scheme, device=device, compiles=compiles)[0]


def simulate_many(
    domains: Sequence[Domain],
    protocols: Sequence[Sequence[Sequence[Stimulus]]],
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    couplings: Sequence[HalfStep] | None = None,
    kept: Sequence[Int[np.ndarray, " _"]] | None = None,
    shortcuts: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[Paced]:
    """v at the asked times on every domain, from rest at time 0, once for each of its protocols (lists of stimuli).

    compiles: fuse each step's work first, which takes half a minute and makes it five times faster; None: where it can.
    couplings: each domain's `coupling` with this scheme, if it was made before, perhaps on other cores.
    kept: the nodes of each domain to tell of, in this order; None: all.
    shortcuts: where steps are not compiled and the cell allows it, do almost the same in far fewer operations: gates are
    read off tables, and on a CPU cells at rest are not stepped (`cells.MovingCells`).

    Domains have equally many protocols and are stepped together, which pays on a GPU; none changes another's result.
    A node is activated when v first rises through activated_mV, repolarised when it then falls through repolarised_mV.
    """
    how = named(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    _checked_protocols(domains, protocols)
    if couplings is None:
        couplings = [coupling(domain, how) for domain in domains]
    # Only what is solved in the same number of iterations goes together, so that a domain's company changes nothing.
    alike: dict[tuple[float, ...], list[int]] = {}
    for number, each in enumerate(couplings):
        alike.setdefault(each.company(how.reduction), []).append(number)
    if kept is None:
        kept = [np.arange(domain.n_nodes) for domain in domains]
    found: dict[int, Paced] = {}
    for numbers in alike.values():
        first = np.cumsum([0] + [domains[number].n_nodes for number in numbers])
        nodes = torch.from_numpy(np.concatenate([kept[number] + at for number, at in zip(numbers, first[:-1], strict=True)]))
        seen = reached_moments(
            joined([couplings[number] for number in numbers]).to(device, dtype),
            pulses([domains[number] for number in numbers], [protocols[number] for number in numbers]),
            times, cell, how, compiles, activated_mV, repolarised_mV, on_step, shortcuts,
        )  # fmt: skip
        parts = [len(kept[number]) for number in numbers]
        found |= dict(zip(numbers, told(seen, times, nodes, parts), strict=True))
    return [found[number] for number in range(len(domains))]


def moments(
    domains: Sequence[Domain],
    protocols: Sequence[Sequence[Sequence[Stimulus]]],
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    couplings: Sequence[HalfStep] | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> Iterator[Moment]:
    """The asked times one by one, as they are reached: memory never holds more than one of them.

    All domains are stepped together, however unlike, so their company may change the last digits.
    """
    how = named(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    _checked_protocols(domains, protocols)
    if couplings is None:
        couplings = [coupling(domain, how) for domain in domains]
    for seen in reached_moments(
        joined(couplings).to(device, dtype), pulses(domains, protocols), times, cell, how, compiles, activated_mV,
        repolarised_mV, on_step,
    ):  # fmt: skip
        fields = (each.to("cpu", torch.float32, copy=True).numpy() for each in (seen.v, *seen.times_seen()))
        yield Moment(**dict(zip(("v_mV", "activation_ms", "repolarisation_ms"), fields, strict=True)))


def seen_moments(
    together: HalfStep,
    given: Pulses,
    times_ms: Sequence[float] | Float[np.ndarray, " time"],
    *,
    cell: str | Cell = "courtemanche",
    scheme: str | Scheme = "accurate",
    compiles: bool | None = None,
    activated_mV: float = -20.0,
    repolarised_mV: float = -70.0,
    shortcuts: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> Iterator[Seen]:
    """The asked times one by one, of domains that were joined before, and pulses into their nodes: where and as precisely
    as `together` is, and left there."""
    how = named(SCHEMES, scheme, "scheme")
    times = _checked_times(times_ms, how)
    return reached_moments(
        together, given, times, cell, how, compiles, activated_mV, repolarised_mV, on_step, shortcuts
    )  # fmt: skip


def _checked_times(times_ms: Sequence[float] | np.ndarray, scheme: Scheme) -> np.ndarray:
    times = np.asarray(times_ms, dtype=np.float64)
    if not (scheme.dt_ms > 0 and 0 < scheme.reduction < 1):
        raise InputError(f"a step of {scheme.dt_ms} ms, or reduction by {scheme.reduction}, makes no sense")
    if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) <= 0).any():
        raise InputError("the asked times must be finite, not negative, and rise")
    return times


def _checked_protocols(domains: Sequence[Domain], protocols: Sequence[Sequence[Sequence[Stimulus]]]) -> int:
    counts = {len(each) for each in protocols}
    if len(domains) != len(protocols) or len(counts) != 1 or counts == {0}:
        raise InputError(
            f"{len(domains)} domains need as many lists of protocols, all as long, not {[len(p) for p in protocols]}"
        )
    for stimulus in (stimulus for each in protocols for protocol in each for stimulus in protocol):
        fine = (
            stimulus.duration_ms > 0 and stimulus.radius_mm > 0 and np.isfinite([stimulus.start_ms, stimulus.strength]).all()
        )
        if not (fine and stimulus.start_ms >= 0 and stimulus.sites):
            raise InputError(f"{stimulus} needs sites, a start not before 0, and positive duration and radius")
    return counts.pop()
