"""The paper's waves on left atria (A.3), with synthetic atria in place of its patients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Int

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain, cell_sizes, halved
from gfunk.physics.converged import converged_shifts, shifted
from gfunk.physics.monodomain import SCHEMES, Paced, Scheme, coupling, diffusivity, simulate_many
from gfunk.recipes.tissue_data import Experiment, Pacing, TissueProblem
from gfunk.store import Sample

SAVED_STEPS = 4  # from one save to the next, of waves that are shifted: 0.2 ms
PAST_MS = 3.0  # how much longer they are solved than they are needed
FINEST_HALVINGS = 2  # of the edges waves are solved on elsewhere: 0.125 mm, less than a front across fibres is wide


@dataclass(frozen=True, kw_only=True)
class AtrialPacing(Pacing):
    """On an atrium, where diffusion is ten times that of the flat cases."""

    base_conductivity: float = 0.625
    radius_mm: float = 3.0  # from 1 mm no wave starts
    n_saves: int = 90


@dataclass(frozen=True, kw_only=True)
class AtriumProblem(TissueProblem):
    """Waves from many sites of an atrium; another seed is another atrium, or the one chosen with other sites."""

    pacing: AtrialPacing = field(default_factory=AtrialPacing)
    atrium_seed: int | None = None
    n_sites: int = 100
    # Waves are 3.2 times as wide here as in the flat cases: a mesh of 0.5 mm is to them what 0.2 mm is there.
    # Paper: solves at 0.25 mm and keeps a point for each voxel of 0.4 mm.
    kept_edge_mm: float = 1.0
    n_halvings: int = 1
    ratio: float = 5.0
    turned_degrees: float = 20.0
    # Measured fibres are rougher than a rule's: turned once more, from place to place, each atrium's by a standard deviation
    # of its own up to this, over a distance of its own (docs/fibres.md).
    rough_degrees: float = 0.0
    # What is kept is the wave as edges and steps go to nothing. But the first state is solved as ever: it is what an
    # operator starts from when it is used, and has to be found quickly.
    is_converged: bool = False

    def experiment(self, seed: int) -> Experiment:
        atrium_seed = seed if self.atrium_seed is None else self.atrium_seed
        across = diffusivity(self.pacing.base_conductivity)
        kept = left_atrium(
            atrium_seed, self.kept_edge_mm, turned_degrees=self.turned_degrees, rough_degrees=self.rough_degrees,
            across=across, ratio=self.ratio,
        )  # fmt: skip
        # The tissue is what is kept, and nothing finer: what the solver knows and the operator can't would be noise to it.
        tissue = halved(kept, self.n_halvings)
        return Experiment(
            seed=seed,
            tissue=tissue,
            coupling=coupling(tissue, self.pacing.scheme).to("cpu", torch.float32),
            stimuli=tuple(self.pacing.stimulus(tuple(kept.points[node].tolist())) for node in self._sites(kept, seed)),
            kept=kept,
            nearest=np.arange(kept.n_nodes),
        )

    def solved(self, experiments: Sequence[Experiment], device: str) -> Iterator[Sample]:
        if not self.is_converged:
            return super().solved(experiments, device)
        return (self._converged(each, device) for each in experiments)

    def _converged(self, experiment: Experiment, device: str) -> Sample:
        scheme = SCHEMES[self.pacing.scheme]
        times = self.pacing.every_ms * np.arange(self.pacing.n_saves + 1)

        def wave(n_halvings: int, scheme: Scheme, until_ms: float) -> Paced:
            [paced] = simulate_many(
                [halved(experiment.tissue, n_halvings)], [[[stimulus] for stimulus in experiment.stimuli]],
                np.arange(0.0, until_ms, saved_ms), cell=self.pacing.cell, scheme=scheme, device=device,
                kept=[experiment.nearest],
            )  # fmt: skip
            return paced

        saved_ms, last_ms = SAVED_STEPS * scheme.dt_ms, self.pacing.first_ms + float(times[-1]) + PAST_MS
        coarse = wave(0, scheme, last_ms)
        # Once it has been everywhere, nothing is left to find out.
        until_ms = min(last_ms, float(np.nanmax(coarse.activation_ms, initial=0.0)) + PAST_MS)
        whole, half, quarter = (replace(scheme, mass="balanced", dt_ms=scheme.dt_ms * each) for each in (2, 1, 1 / 2))
        by_steps = wave(0, whole, until_ms), wave(0, half, until_ms), wave(0, quarter, until_ms)
        finest = wave(FINEST_HALVINGS, whole, until_ms)
        shifts = converged_shifts(coarse, by_steps, finest)
        values = shifted(finest, coarse, shifts, self.pacing.first_ms + times)
        nothing = np.zeros_like(shifts[0])
        values[:, :1] = shifted(coarse, coarse, (nothing, nothing), self.pacing.first_ms + times[:1])
        return Sample(seed=experiment.seed, domain=experiment.kept, times=times, values=values)

    def _sites(self, domain: Domain, seed: int) -> Int[np.ndarray, " _"]:
        """Nodes drawn by the area around them, none twice."""
        area = np.bincount(domain.cells.ravel(), np.repeat(cell_sizes(domain.points, domain.cells), 3))
        return np.random.default_rng([seed, 1]).choice(len(area), self.n_sites, replace=False, p=area / area.sum())
