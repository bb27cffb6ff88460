"""The paper's waves on left atria (A.3), with synthetic atria in place of its patients."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain, cell_sizes, halved
from gfunk.physics.monodomain import coupling, diffusivity
from gfunk.recipes.tissue_data import Experiment, Pacing, TissueProblem


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

    def _sites(self, domain: Domain, seed: int) -> Int[np.ndarray, " _"]:
        """Nodes drawn by the area around them, none twice."""
        area = np.bincount(domain.cells.ravel(), np.repeat(cell_sizes(domain.points, domain.cells), 3))
        return np.random.default_rng([seed, 1]).choice(len(area), self.n_sites, replace=False, p=area / area.sum())
