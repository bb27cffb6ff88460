"""The paper's waves on left atria (A.3), with synthetic atria in place of its patients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain, cell_sizes, halved
from gfunk.errors import InputError
from gfunk.physics.converged import converged_waves, finer
from gfunk.physics.schemes import SCHEMES, coupling, diffusivity, solving
from gfunk.recipes.tissue_data import Experiment, Pacing, TissueProblem
from gfunk.store import Sample


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
    is_converged: bool = False  # what is kept is the wave as edges and steps go to nothing, but for its first state
    # How often fewer edges are halved for what follows the first state of a converged wave: where errors of steps are found.
    coarser: int = 0

    def experiment(self, seed: int) -> Experiment:
        atrium_seed = seed if self.atrium_seed is None else self.atrium_seed
        across = diffusivity(self.pacing.base_conductivity)
        kept = left_atrium(
            atrium_seed, self.kept_edge_mm, turned_degrees=self.turned_degrees, rough_degrees=self.rough_degrees,
            across=across, ratio=self.ratio,
        )  # fmt: skip
        # The tissue is what is kept, and nothing finer: what the solver knows and the operator can't would be noise to it.
        tissue = halved(kept, self.n_halvings)
        stimuli = tuple(self.pacing.stimulus(tuple(kept.points[node].tolist())) for node in self._sites(kept, seed))
        how = solving(kept, self.pacing.scheme, self.n_halvings)
        return Experiment(
            seed=seed,
            tissue=tissue,
            coupling=coupling(tissue, self.pacing.scheme, how).to("cpu", torch.float32),
            stimuli=stimuli,
            kept=kept,
            nearest=np.arange(kept.n_nodes),
            finer=finer(self.coarse(kept), stimuli, SCHEMES[self.pacing.scheme]) if self.is_converged else None,
        )

    def coarse(self, kept: Domain) -> Domain:
        """The tissue with edges longer, for converged waves."""
        if self.coarser > self.n_halvings:
            raise InputError(
                f"coarser={self.coarser}: edges are halved n_halvings={self.n_halvings} times, no fewer than none"
            )
        return halved(kept, self.n_halvings - self.coarser)

    def solved(self, experiments: Sequence[Experiment], device: str) -> Iterator[Sample]:
        if not self.is_converged:
            yield from super().solved(experiments, device)
            return
        times = self.pacing.every_ms * np.arange(self.pacing.n_saves + 1)
        waves = converged_waves(
            [each.tissue for each in experiments], [each.stimuli for each in experiments],
            [each.coupling for each in experiments], [each.finer for each in experiments if each.finer is not None],
            [each.nearest for each in experiments], self.pacing.first_ms + times,
            first_ms=self.pacing.first_ms, cell=self.pacing.cell, scheme=SCHEMES[self.pacing.scheme], device=device,
        )  # fmt: skip
        for each, wave in zip(experiments, waves, strict=True):
            yield Sample(seed=each.seed, domain=each.kept, times=times, values=wave.values_mV)

    def _sites(self, domain: Domain, seed: int) -> Int[np.ndarray, " _"]:
        """Nodes drawn by the area around them, none twice."""
        area = np.bincount(domain.cells.ravel(), np.repeat(cell_sizes(domain.points, domain.cells), 3))
        return np.random.default_rng([seed, 1]).choice(len(area), self.n_sites, replace=False, p=area / area.sum())
