"""What speaks against believing a prediction, one sentence each: tissue, shapes, starts and times unlike those learned."""

import numpy as np
import torch
from jaxtyping import Float

from gfunk.activation import ACTIVE_MV
from gfunk.atria.anatomy import STRAY_HOLE
from gfunk.batch import Batch
from gfunk.domain import Domain
from gfunk.physics.schemes import diffusivity
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.surface import boundary_loops, dot, main_tangents, opposite_sides, perimeters, triangle_normals
from gfunk.trust import SMOOTH_TURN, Trust, strange_shape, strange_start

# How far K may be from what a model has seen before that is said.
FAR_K, FAR_RATIO = 2.0, 1.5
SEEN_TURN = 4.0  # degrees per mm: how much fibres turn that models learned from
N_OPENINGS = 5  # of an atrium


def doubts(domain: Domain, problem: AtriumProblem, trust: Trust, turn: float) -> tuple[str, ...]:
    """What of the tissue is far from all that a model of this problem has seen, or was tried on. turn: its `fibre_turn`."""
    along, across = (np.median(values) for values in _main_diffusion(domain))
    known_across = diffusivity(problem.pacing.base_conductivity)
    known_along = problem.ratio * known_across
    said = []
    if not (known_along / FAR_K < along < FAR_K * known_along and known_across / FAR_K < across < FAR_K * known_across):
        said.append(
            f"diffusion is {along:.3g} along and {across:.3g} mm^2/ms across fibres (medians); "
            f"the model has only seen {known_along:.3g} and {known_across:.3g}"
        )
    elif not problem.ratio / FAR_RATIO < along / across < FAR_RATIO * problem.ratio:
        said.append(
            f"diffusion along fibres is {along / across:.2g} times that across; the model has only seen {problem.ratio:g}"
        )
    elif turn > SMOOTH_TURN and trust.bounds_on(turn) is None:
        said.append(
            f"fibres turn by {turn:.0f} degrees per mm (mean); the model has only seen up to {SEEN_TURN:g}, and errs more "
            "on rougher ones"
        )
    return tuple(said)


def fibre_turn(domain: Domain) -> float:
    """How much fibres turn from triangle to triangle, in degrees per mm, the mean; bends of the surface are left out."""
    normals = triangle_normals(domain.points, domain.cells)
    along = main_tangents(domain.cell_diffusion(), normals)
    opposite = opposite_sides(domain.cells)
    sides = np.flatnonzero(opposite >= 0)
    one, other = sides // 3, opposite[sides] // 3
    # Laid into the next triangle's plane; fibres have no sign.
    laid = along[one] - dot(along[one], normals[other])[:, None] * normals[other]
    turn = np.arccos((np.abs(dot(laid, along[other])) / np.linalg.norm(laid, axis=1)).clip(max=1.0))
    centres = domain.points[domain.cells].mean(axis=1)
    return float(np.degrees(turn.mean() / np.linalg.norm(centres[one] - centres[other], axis=1).mean()))


def doubts_of_shape(domain: Domain, batch: Batch, trust: Trust) -> tuple[str, ...]:
    """By its modes, which know a ball from an atrium only by size, and by its openings."""
    if trust.seen is None:
        return ()
    lengths = perimeters(domain.points, boundary_loops(domain.cells))
    n_openings = int((lengths >= STRAY_HOLE * lengths.max(initial=0.0)).sum())
    said = f"the surface has {n_openings} openings; the model has only seen {N_OPENINGS}, a valve and four veins"
    return (*(() if n_openings == N_OPENINGS else (said,)), *strange_shape(batch, trust.seen))


def doubts_of_waves(
    firsts_mV: Float[np.ndarray, "batch node"], until_ms: float, batch: Batch, problem: AtriumProblem, trust: Trust
) -> list[tuple[str, ...]]:
    """Of each by itself, from what it is as the model begins."""
    late = doubts_of_time(problem, until_ms)
    strange: list[tuple[str, ...]] = [()] * len(firsts_mV)
    if trust.seen is not None:
        u = (torch.from_numpy(firsts_mV)[..., None].to(batch.points.device) - problem.offset) / problem.scale
        strange = strange_start(u, batch, trust.seen)
    none = (f"no tissue is active {problem.pacing.first_ms:g} ms after the stimulus: it started no wave",)
    n_active = (firsts_mV >= ACTIVE_MV).sum(axis=1).tolist()
    return [(*(said if active else none), *late) for said, active in zip(strange, n_active, strict=True)]


def doubts_of_time(problem: AtriumProblem, until_ms: float) -> tuple[str, ...]:
    pacing = problem.pacing
    last = pacing.first_ms + pacing.every_ms * pacing.n_saves
    if until_ms <= last * (1 + 1e-9):
        return ()
    late = f"the model has learned times up to {last:g} ms: later potentials mean nothing"
    return (f"asked for up to {until_ms:g} ms; {late}",)


def _main_diffusion(domain: Domain) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"]]:
    """K within each triangle, along the direction where it is largest and across."""
    normals, tensors = triangle_normals(domain.points, domain.cells), domain.cell_diffusion()
    along = main_tangents(tensors, normals)
    across = np.cross(normals, along)
    largest, smallest = (np.einsum("ni,nij,nj->n", axis, tensors, axis) for axis in (along, across))
    return largest, smallest
