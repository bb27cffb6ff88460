"""A domain made ready for an operator: even, its modes found, all that can be done before a stimulus is known."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from torch import nn

from gfunk.batch import Batch, pack
from gfunk.batched_modes import batched_modes
from gfunk.domain import Domain, halved, make_domain
from gfunk.doubts import doubts, doubts_of_shape, fibre_turn
from gfunk.errors import InputError
from gfunk.experiments import chosen_device, operator_named, trust_in
from gfunk.first_waves import Tissue, tissue_on
from gfunk.laplacian import Laplacian
from gfunk.nearest import OntoSurface, nearest_on_triangles
from gfunk.physics.diffusion import HalfStep, Solving
from gfunk.physics.schemes import coupling, solving
from gfunk.physics.stimulus import Stimulus
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import Variant
from gfunk.remeshing import EVEN, check_room, remeshed
from gfunk.resampling import carried_tensors, surface_interpolation
from gfunk.simulation import viewed_domain
from gfunk.spectrum import Spectrum
from gfunk.store import CorruptFile, cached_modes, fingerprint, read_arrays, write_arrays
from gfunk.surface import edge_lengths
from gfunk.trust import Bounds, Trust
from gfunk.user_cache import trim_cache, usable_cache, user_cache

MOST_NODES = 300_000  # of an even mesh: thirteen times the area of the largest atrium that models learn from

Stage = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A domain made ready for one operator: everything that does not depend on the stimulus."""

    domain: Domain  # the user's own
    even: Domain  # what the solver has; the operator sees it as its view says, in `batch`
    back: csr_array | None  # (node, node of `even`); None where they are one
    onto: OntoSurface  # the user's
    batch: Batch
    solving: Solving  # of the solver, on `tissue`
    operator: nn.Module
    problem: AtriumProblem
    variant: Variant
    model: str
    device: torch.device
    seconds: Mapping[str, float]
    warnings: tuple[str, ...]
    trust: Trust = field(default_factory=Trust)
    bounds: Bounds | None = None  # of errors on fibres like these

    @cached_property
    def tissue(self) -> Domain:
        """`even`, halved as the solver needs it."""
        return halved(self.even, self.problem.n_halvings)

    @cached_property
    def coupling(self) -> HalfStep:
        """Of `tissue`. Only to cut patches out of it on a GPU, to compare, or to compile its steps."""
        return coupling(self.tissue, self.problem.pacing.scheme, self.solving)

    @cached_property
    def tissue_there(self) -> Tissue:
        """`tissue` on the device, for patches to be cut out of it."""
        return tissue_on(self.device, self.even, self.tissue, self.coupling)

    @property
    def first_ms(self) -> float:
        """Up to this time after the stimulus the solver tells, from then on the operator."""
        return self.problem.pacing.first_ms


def made_ready(
    domain: Domain,
    model: str | Path = "atria",
    *,
    edge_mm: float | None = None,
    device: str = "cpu",
    cache: Path | Literal["user"] | None = "user",
    on_stage: Stage = lambda _name, _seconds: None,
) -> Ready:
    """All that can be done before a stimulus is known.

    edge_mm: of the even mesh, where it is to be another than the model has learned on: it then tells what the solver does on
    edges as much shorter, but no bounds of errors are known. cache: where even meshes and modes are kept, by default
    `user_cache()`; None: nowhere. on_stage: called as each stage ends, with the seconds it took.
    """
    _check_surface(domain)
    stages = Stages(on_stage)
    kept = usable_cache(user_cache()) if cache == "user" else cache
    with stages("model"):
        torch_device = chosen_device(device)
        (operator, recipe, problem, variant), trust = operator_named(str(model)), trust_in(str(model))
        if not isinstance(problem, AtriumProblem):
            raise InputError(f"{model} was trained on {recipe}, not on atria: it can't predict waves on a surface")
        if edge_mm is not None and edge_mm != problem.kept_edge_mm:
            check_edge(edge_mm, problem, variant)
            problem, trust = replace(problem, kept_edge_mm=edge_mm), Trust(seen=trust.seen)
    with stages("resample"):
        even = _even(domain, problem.kept_edge_mm, kept)
        back = None if even is domain else _single(surface_interpolation(even.points, even.cells, domain.points))
        onto = nearest_on_triangles(domain.points, domain.cells)
    with stages("modes"):
        viewed, matrices = viewed_domain(even, variant.view)
        spectrum = _modes(matrices, variant.view.n_modes, kept, torch_device)
        batch = pack([(viewed, matrices, spectrum)]).to(torch_device)
        step = solving(even, problem.pacing.scheme, problem.n_halvings)
        if kept is not None:
            trim_cache(kept)
    turn = fibre_turn(even)
    return Ready(
        domain=domain,
        even=even,
        back=back,
        onto=onto,
        batch=batch,
        solving=step,
        operator=operator.to(torch_device).eval(),
        problem=problem,
        variant=variant,
        model=str(model),
        device=torch_device,
        seconds=stages.seconds,
        warnings=(*doubts(even, problem, trust, turn), *doubts_of_shape(even, batch, trust)),
        trust=trust,
        bounds=trust.bounds_on(turn),
    )


def check_edge(edge_mm: float, problem: AtriumProblem, variant: Variant):
    """Refuse edges other than the model's own unless it says there what the solver does on edges as much shorter."""
    learned_mm = problem.kept_edge_mm
    if not 0 < edge_mm <= learned_mm:
        why = f"the model has learned on {learned_mm:g} mm, and was tried on shorter ones alone"
    elif problem.is_converged:
        why = f"the model says true waves on {learned_mm:g} mm, and errs more on others"
    elif not getattr(variant.network, "ray_times", ()):
        why = f"the model is not told how coarse a mesh is, so what it says is that of {learned_mm:g} mm on any"
    else:
        return
    raise InputError(f"edges of {edge_mm:g} mm: {why}")


def stimulus_at(ready: Ready, sites: Float[np.ndarray, "place 3"]) -> Stimulus:
    if not len(sites):
        raise InputError("a protocol needs at least one site")
    pacing = ready.problem.pacing
    return replace(pacing.stimulus((0.0, 0.0, 0.0)), sites=tuple((x, y, z) for x, y, z in sites.tolist()))


class Stages:
    """Times what is done under a name."""

    def __init__(self, on_stage: Stage):
        self.seconds: dict[str, float] = {}
        self.on_stage = on_stage

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.on_stage(name, self.seconds[name])


def _check_surface(domain: Domain):
    if domain.points.shape[1] != 3 or not domain.has_cells or domain.cells.shape[1] != 3:
        what = "tetrahedra" if domain.cells.shape[1] == 4 and domain.has_cells else "no triangles in space"
        raise InputError(f"waves are predicted on surfaces of triangles; this mesh has {what}")


def _even(domain: Domain, edge_mm: float, cache: Path | None) -> Domain:
    """The domain itself if its edges are about this long, else remeshed, K carried over."""
    relative = edge_lengths(domain.points, domain.cells) / edge_mm
    if EVEN[0] < relative.min() and relative.max() < EVEN[1]:
        return domain
    check_room(domain.points, domain.cells, edge_mm, MOST_NODES)
    tensors = domain.cell_diffusion()
    key = fingerprint({"points": domain.points, "cells": domain.cells, "diffusion": tensors}, edge_mm=edge_mm, version=1)
    path = None if cache is None else cache / "meshes" / f"{key}.safetensors"
    try:
        arrays = {} if path is None else read_arrays(path)[0]
    except (FileNotFoundError, CorruptFile):
        arrays = {}
    if not arrays:
        points, cells = remeshed(domain.points, domain.cells, edge_mm)
        arrays = {
            "points": points, "cells": cells,
            "diffusion": carried_tensors(domain.points, domain.cells, tensors, points, cells),
        }  # fmt: skip
        if path is not None:
            write_arrays(path, arrays)
    return make_domain(arrays["points"], arrays["cells"], arrays["diffusion"], diffusion_at="cell")


def _modes(matrices: Laplacian, n_modes: int, cache: Path | None, device: torch.device) -> Spectrum:
    if device.type == "cpu":
        return cached_modes(matrices, n_modes, None if cache is None else cache / "modes")

    def found_there(matrices: Laplacian, n_modes: int) -> Spectrum:
        (spectrum,) = batched_modes([matrices], n_modes, device=device)
        return spectrum

    # Rounded to what an operator sees.
    return cached_modes(matrices, n_modes, None if cache is None else cache / "rounded-modes", found_there)


def _single(matrix: csr_array) -> csr_array:
    return csr_array((matrix.data.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)
