"""The paper's waves in tissue: random rectangles (A.2.1), a square with random fibres and ratio (Eqs. 20, 21)."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isclose

import numpy as np
import torch
from jaxtyping import Float, Int

from gfunk.domain import Domain, fibre_tensors, make_domain, rectangle, triangulated, voxel_means
from gfunk.physics.converged import Finer
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import SCHEMES, coupling, diffusivity
from gfunk.physics.stimulus import Stimulus
from gfunk.store import Sample

FibreField = Callable[[Float[np.ndarray, "node 2"]], Float[np.ndarray, "node 2"]]
# Points, triangles between them, and the node of the solver's mesh whose value each takes.
Kept = tuple[Float[np.ndarray, "place 2"], Int[np.ndarray, "cell 3"], Int[np.ndarray, " place"]]


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """One stimulus at a random place, solved on a fine mesh; what is kept of it."""

    # Paper: names Courtemanche's model, but its range of -85 to 20 mV and its cycle of 190 ms are those of tissue remodelled
    # by fibrillation, which its patients have: at rest -84 mV, back after 167 ms. The healthy cell: -81 mV and 300 ms.
    cell: str = "courtemanche-af"
    scheme: str = "accurate"
    base_conductivity: float = 0.0625  # A.2.1, mS/mm
    radius_mm: float = 1.0  # Paper: "a delta spike"
    strength: float = 50.0  # mV/ms, for 2 ms
    first_ms: float = 10.0  # the first state kept is that 10 ms after the stimulus
    every_ms: float = 1.0  # Paper: 10 ms; but a wave's arrival is not to be seen in that
    n_saves: int = 100
    report_ms: float = 10.0  # A.2.1: errors are taken at times so far apart

    def stimulus(self, site: tuple[float, ...]) -> Stimulus:
        return Stimulus(sites=(site,), radius_mm=self.radius_mm, strength=self.strength)


@dataclass(frozen=True, kw_only=True)
class FlatPacing(Pacing):
    """In flat tissue, kept at fewer points."""

    edge_mm: float = 0.2  # A.2.1
    voxel_mm: float = 0.25  # A.2.1: one point a voxel, with the value of the nearest node
    # Paper: the point lies at the mean of the voxel's nodes, up to 0.14 mm from the one whose value it has. Nobody can know
    # that value there: 0.013 to 0.018 of relative l2 between the two. So it lies at the node.
    at_nodes: bool = True


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a seed stands for, before anything is solved."""

    seed: int
    tissue: Domain
    coupling: HalfStep
    stimuli: tuple[Stimulus, ...]  # one a trajectory
    kept: Domain
    nearest: Int[np.ndarray, " place"]  # the node of `tissue` whose value each point of `kept` takes
    finer: Finer | None = None  # where the wave is wanted as edges and steps go to nothing

    @property
    def n_nodes(self) -> int:
        """Nodes to be stepped, over all trajectories, on the finest mesh."""
        n_nodes = self.tissue.n_nodes if self.finer is None else self.finer.finest.neighbors.shape[1]
        return n_nodes * len(self.stimuli)


@dataclass(frozen=True, kw_only=True)
class TissueProblem:
    """Waves in tissue; what a seed stands for is said by each kind."""

    pacing: Pacing
    # Model space: [-85, 20] mV is [0, 1], as the paper scales its errors.
    offset: float = -85.0
    scale: float = 105.0

    @property
    def report_every(self) -> int:
        """Saves from one whose error counts to the next."""
        return max(1, round(self.pacing.report_ms / self.pacing.every_ms))

    def experiment(self, seed: int) -> Experiment:
        raise NotImplementedError

    def company(self, experiment: Experiment) -> Hashable:
        return experiment.coupling.company(SCHEMES[self.pacing.scheme].reduction)

    def sample(self, seed: int) -> Sample:
        return next(self.solved([self.experiment(seed)], "cpu"))

    def solved(self, experiments: Sequence[Experiment], device: str) -> Iterator[Sample]:
        """The experiments' waves, all stepped together."""
        times = self.pacing.every_ms * np.arange(self.pacing.n_saves + 1)
        waves = simulate_many(
            [each.tissue for each in experiments],
            [[[stimulus] for stimulus in each.stimuli] for each in experiments],
            self.pacing.first_ms + times,
            cell=self.pacing.cell,
            scheme=self.pacing.scheme,
            device=device,
            couplings=[each.coupling for each in experiments],
            kept=[each.nearest for each in experiments],
        )
        for each, wave in zip(experiments, waves, strict=True):
            yield Sample(seed=each.seed, domain=each.kept, times=times, values=wave.values_mV)


@dataclass(frozen=True, kw_only=True)
class RectangleProblem(TissueProblem):
    """A wave on a rectangle with random sides, fibres along x."""

    pacing: FlatPacing = field(default_factory=FlatPacing)
    # Paper: "cm", but at 0.2 mm edges that would be millions of nodes, and no wave crosses 15 cm in 100 ms.
    shortest_mm: float = 15.0
    longest_mm: float = 30.0
    ratio: float = 5.0

    def experiment(self, seed: int) -> Experiment:
        rng = np.random.default_rng(seed)
        width, height = rng.uniform(self.shortest_mm, self.longest_mm, 2)
        return _experiment(seed, width, height, _along_x, self.ratio, self.pacing, rng, _by_voxels)


@dataclass(frozen=True, kw_only=True)
class FibreSquareProblem(TissueProblem):
    """A wave on a square with a random fibre field (Eq. 20) and a random ratio of diffusion along and across it (Eq. 21).

    Where a voxel is as long as some edges, every so many nodes are kept, with triangles that lie as the solver's.
    """

    # Paper: 0.2 mm. But how a mesh is cut bends waves, and points chosen by voxels and joined anew tell nothing of it. With
    # two edges a voxel, kept triangles lie as the solver's, and the mesh itself bends them less.
    pacing: FlatPacing = field(default_factory=lambda: FlatPacing(edge_mm=0.125))
    side_mm: float = 20.0  # Paper: "cm"; see RectangleProblem
    smallest_ratio: float = 4.0
    largest_ratio: float = 6.0

    def experiment(self, seed: int) -> Experiment:
        rng = np.random.default_rng(seed)
        a, b = rng.uniform(0.35, 0.65, (2, 4))
        ratio = rng.uniform(self.smallest_ratio, self.largest_ratio)

        def fibres(points: Float[np.ndarray, "node 2"]) -> Float[np.ndarray, "node 2"]:
            x, y = points.T / self.side_mm
            along = [a[0] * x + a[1] + np.cos(a[2] * np.pi * y + a[3]), b[0] * x + b[1] + np.sin(b[2] * np.pi * y + b[3])]
            return np.stack(along, axis=1) / np.linalg.norm(along, axis=0)[:, None]

        kept = _every_few if self.pacing.at_nodes and self._is_nested() else _by_voxels
        return _experiment(seed, self.side_mm, self.side_mm, fibres, ratio, self.pacing, rng, kept)

    def _is_nested(self) -> bool:
        ratios = self.pacing.voxel_mm / self.pacing.edge_mm, self.side_mm / self.pacing.voxel_mm
        return all(isclose(ratio, round(ratio), rel_tol=1e-9) for ratio in ratios)


def _along_x(points: Float[np.ndarray, "node 2"]) -> Float[np.ndarray, "node 2"]:
    return np.tile([1.0, 0.0], (len(points), 1))


def _by_voxels(mesh: Domain, pacing: FlatPacing) -> Kept:
    points, nearest = voxel_means(mesh.points, pacing.voxel_mm)
    if pacing.at_nodes:
        points = mesh.points[nearest]
    return points, triangulated(points), nearest


def _every_few(mesh: Domain, pacing: FlatPacing) -> Kept:
    width, height = mesh.points.max(axis=0)
    coarse = rectangle(width, height, pacing.voxel_mm)
    # Both have x running slowest, from side to side.
    column, row = (coarse.points / pacing.edge_mm).round().astype(np.int64).T
    nearest = column * (round(height / pacing.edge_mm) + 1) + row
    return mesh.points[nearest], coarse.cells, nearest


def _experiment(
    seed: int,
    width: float,
    height: float,
    fibres: FibreField,
    ratio: float,
    pacing: FlatPacing,
    rng: np.random.Generator,
    kept: Callable[[Domain, FlatPacing], Kept],
) -> Experiment:
    # The place comes last, so that a seed means the same tissue however it is paced.
    site = tuple(rng.uniform(0, [width, height]).tolist())
    across = diffusivity(pacing.base_conductivity)

    def tissue(points: np.ndarray, cells: np.ndarray) -> Domain:
        directions = fibres(points)
        return make_domain(points, cells, fibre_tensors(directions, ratio * across, across), fibres=directions)

    mesh = rectangle(width, height, pacing.edge_mm)
    points, cells, nearest = kept(mesh, pacing)
    fine = tissue(mesh.points, mesh.cells)
    return Experiment(
        seed=seed,
        tissue=fine,
        coupling=coupling(fine, pacing.scheme).to("cpu", torch.float32),
        stimuli=(pacing.stimulus(site),),
        kept=tissue(points, cells),
        nearest=nearest,
    )
