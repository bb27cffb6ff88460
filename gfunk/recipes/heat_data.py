"""The paper's heat problem: a random fibre field and random initial heat on the unit square (Appendix A.1.1)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain, fibre_tensors, make_domain, perturbed_square, refined
from gfunk.laplacian import fem_laplacian
from gfunk.physics.heat import simulate_heat
from gfunk.store import Sample


@dataclass(frozen=True, kw_only=True)
class HeatProblem:
    """du/dt = div(K grad u), no flux, K = 9:1 along a fibre field drawn anew for every trajectory."""

    max_cell: float = 0.0002  # A.1.1
    ratio: float = 9.0  # Eq. 15
    until: float = 0.02  # Paper: "20 ms"; with K of 9 and 1 on the unit square only 0.02 makes sense
    n_saves: int = 20  # A.1.1: every 1 ms
    steps_per_save: int = 16
    # Model space is u / scale: three Gaussians of deviation 0.1 to 0.2 peak between 4 and 16, more where they overlap.
    scale: float = 10.0

    @property
    def offset(self) -> float:
        return 0.0

    @property
    def report_every(self) -> int:
        return 1

    def sample(self, seed: int) -> Sample:
        """The trajectory of a seed, extrapolated to zero mesh size from a mesh and the same mesh refined once.

        Linear elements err by c h^2, so (4 fine - coarse) / 3 at the shared nodes cancels most of it: about 1e-4 is left.
        """
        rng = np.random.default_rng(seed)
        # The mesh comes last, so that a seed means the same fields at every mesh size.
        fibres, heat = random_fibres(rng), random_heat(rng)
        mesh = perturbed_square(self.max_cell, rng)
        coarse = self._domain(mesh.points, mesh.cells, fibres)
        fine = self._domain(*refined(mesh), fibres)
        times = np.linspace(0, self.until, self.n_saves + 1)
        values = [self._values(domain, heat, times)[:, : mesh.n_nodes] for domain in (coarse, fine)]
        return Sample(seed=seed, domain=coarse, times=times, values=((4 * values[1] - values[0]) / 3)[None])

    def _domain(self, points: np.ndarray, cells: np.ndarray, fibres: "FibreField") -> Domain:
        directions = fibres(points)
        return make_domain(points, cells, fibre_tensors(directions, self.ratio, 1.0), fibres=directions)

    def _values(self, domain: Domain, heat: "Gaussians", times: np.ndarray) -> np.ndarray:
        return simulate_heat(fem_laplacian(domain), heat(domain.points), times, steps_per_save=self.steps_per_save).values


@dataclass(frozen=True)
class FibreField:
    """Eq. 17, made a unit vector: each component is sin + cos + linear with eight coefficients."""

    coefficients: Float[np.ndarray, "2 8"]

    def __call__(self, points: Float[np.ndarray, "node 2"]) -> Float[np.ndarray, "node 2"]:
        x, y = points.T
        field = np.stack(
            [
                np.sin(c[0] * (x + c[1]) / (2 * np.pi)) + np.cos(c[2] * (y + c[3]) / (2 * np.pi))
                + c[4] * x + c[5] + c[6] * y + c[7]
                for c in self.coefficients
            ],
            axis=1,
        )  # fmt: skip
        # The field may vanish at a point; a node just there takes the x direction.
        length = np.linalg.norm(field, axis=1, keepdims=True)
        return np.where(length > 1e-12, field / np.maximum(length, 1e-12), np.array([1.0, 0.0]))


@dataclass(frozen=True)
class Gaussians:
    """A sum of binormal densities ("binomial" in the paper): centres, deviations and one correlation each."""

    centres: Float[np.ndarray, "bump 2"]
    deviations: Float[np.ndarray, "bump 2"]
    correlations: Float[np.ndarray, " bump"]

    def __call__(self, points: Float[np.ndarray, "node 2"]) -> Float[np.ndarray, " node"]:
        x, y = np.moveaxis((points[:, None] - self.centres) / self.deviations, -1, 0)
        rest = 1 - self.correlations**2
        peak = 1 / (2 * np.pi * self.deviations.prod(axis=1) * np.sqrt(rest))
        return (peak * np.exp(-(x**2 - 2 * self.correlations * x * y + y**2) / (2 * rest))).sum(axis=1)


def random_fibres(rng: np.random.Generator) -> FibreField:
    """Coefficients from the table of A.1.1: 1 and 3 in [0, 2]; 2, 4, 6, 8 in [-1, 1]; 5 and 7 in [-2, 2]."""
    low = np.array([0, -1, 0, -1, -2, -1, -2, -1])
    high = np.array([2, 1, 2, 1, 2, 1, 2, 1])
    return FibreField(rng.uniform(low, high, (2, 8)))


def random_heat(rng: np.random.Generator) -> Gaussians:
    """Three of them: centres in [0, 1], deviations in [0.1, 0.2], correlations in [-0.1, 0.1] (A.1.1)."""
    return Gaussians(rng.uniform(0, 1, (3, 2)), rng.uniform(0.1, 0.2, (3, 2)), rng.uniform(-0.1, 0.1, 3))
