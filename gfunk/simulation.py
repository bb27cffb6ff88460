"""Datasets made by the solver: exactly the missing samples, over all cores, each one whole or absent."""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gfunk.domain import Domain, interpolation, make_domain, rotated, unit_square
from gfunk.errors import InputError
from gfunk.homogenising import homogenised
from gfunk.laplacian import Discretisation, Laplacian, laplacian
from gfunk.parallel import in_parallel, on_cluster
from gfunk.settings import to_json
from gfunk.spectrum import Spectrum
from gfunk.store import (
    DATASET_SCHEMA,
    Sample,
    cached_modes,
    commit,
    is_sample_whole,
    peeked_domain,
    read_object,
    read_sample,
    remove_old_drafts,
    write_json,
    write_sample,
)  # fmt: skip

# Enough to keep a GPU busy, few enough that it starts early; some 300 bytes each on it.
NODES_AT_ONCE = 2**22
# As many times that, made ready, may wait for others that are solved alike.
WAITING = 4
FIRST_SEED = {"train": 0, "val": 100_000, "test": 200_000}


@runtime_checkable
class Problem(Protocol):
    """A family of domains and trajectories, one sample a seed."""

    def sample(self, seed: int) -> Sample: ...


@runtime_checkable
class BatchedProblem(Protocol):
    """A problem whose samples can be solved together, on a GPU: first what a seed stands for, then many of those at once."""

    def experiment(self, seed: int) -> Any: ...

    def company(self, experiment: Any) -> Hashable:
        """Experiments that have the same are stepped together; others one after the other, also where solved in one go."""
        ...

    def solved(self, experiments: Sequence[Any], device: str) -> Iterator[Sample]: ...


@dataclass(frozen=True, kw_only=True)
class View:
    """How an operator sees a domain: by which Laplacian, how many of its modes, on a grid or at the nodes, turned or not.

    homogenises: with K as a wave feels it that is wider than triangles. The solver always has K as it is.
    """

    discretisation: Discretisation
    n_modes: int
    grid_side: int | None = None
    rotation_degrees: float = 0.0
    homogenises: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sample with its Laplacian and modes."""

    sample: Sample
    laplacian: Laplacian
    spectrum: Spectrum


def split_seeds(split: str, n: int, first: int | None = None) -> range:
    """The seeds of a split. Training, validation and test never share one."""
    if split not in FIRST_SEED:
        raise InputError(f"split {split!r} is none of {', '.join(FIRST_SEED)}")
    start = FIRST_SEED[split] if first is None else first
    if not (n >= 1 and FIRST_SEED[split] <= start and start + n <= FIRST_SEED[split] + 100_000):
        raise InputError(
            f"seeds {start} to {start + n - 1} are not all of split {split!r}, which has "
            f"{FIRST_SEED[split]} to {FIRST_SEED[split] + 99_999}"
        )
    return range(start, start + n)


def split_of(seed: int) -> str:
    """The split whose range the seed lies in."""
    for split, first in FIRST_SEED.items():
        if first <= seed < first + 100_000:
            return split
    raise InputError(f"seed {seed} belongs to no split: they have 0 to {max(FIRST_SEED.values()) + 99_999}")


def missing_seeds(folder: Path, problem: Problem, seeds: Sequence[int]) -> list[int]:
    """Open the dataset (or begin it) and say which of its samples are not there yet or not whole."""
    about = {"schema": DATASET_SCHEMA, "problem": to_json(problem)}
    path = folder / "dataset.json"
    if path.exists():
        found = read_object(path)
        if {name: found.get(name) for name in about} != about:
            raise InputError(f"{folder}: holds trajectories of another problem or schema; choose another folder")
    else:
        write_json(path, about | {"commit": commit()})
    remove_old_drafts(folder)
    return [seed for seed in seeds if not is_sample_whole(folder, seed)]


def simulate_missing(
    problem: Problem, folders: Mapping[int, Path], n_workers: int, device: str = "cpu", scheduler: str | None = None
) -> Iterator[int]:
    """Simulate each seed's sample and write it into the seed's folder; yields the seed when its file is there.

    On the CPU one sample a process. On another device as many alike at once as hold NODES_AT_ONCE nodes: while one thread
    drives it, the cores prepare the next ones, and other threads write what is done. The workers of a Dask scheduler send
    their samples back, so they need not see the folder.
    """
    seeds = list(folders)
    if scheduler is not None:
        for sample in on_cluster(problem.sample, seeds, scheduler):
            yield _written(folders[sample.seed], sample)
        return
    if device == "cpu" or not seeds:
        yield from in_parallel(partial(_simulate_one, problem), list(folders.items()), n_workers)
        return
    if not isinstance(problem, BatchedProblem):
        raise InputError(f"{type(problem).__name__} is solved on the CPU only; leave out --device")
    with ThreadPoolExecutor(1) as solver, ThreadPoolExecutor(4) as writers:

        def solve(batch: list[Any]) -> list[Future[int]]:
            return [writers.submit(_written, folders[sample.seed], sample) for sample in problem.solved(batch, device)]

        # The first alone and at once: before the others are there, work for the device has been compiled.
        solving = deque([solver.submit(lambda: solve([problem.experiment(seeds[0])]))])
        waiting: dict[Hashable, list[Any]] = {}
        try:
            for number, experiment in enumerate(in_parallel(problem.experiment, seeds[1:], n_workers), start=2):
                waiting.setdefault(problem.company(experiment), []).append(experiment)
                while waiting:
                    n_nodes = {company: sum(each.n_nodes for each in alike) for company, alike in waiting.items()}
                    fullest = max(n_nodes, key=n_nodes.__getitem__)
                    is_enough = n_nodes[fullest] >= NODES_AT_ONCE or sum(n_nodes.values()) >= WAITING * NODES_AT_ONCE
                    if number < len(seeds) and not is_enough:
                        break
                    solving.append(solver.submit(solve, waiting.pop(fullest)))
                # One batch is solved, one is ready: more would only fill memory.
                while solving and (solving[0].done() or len(solving) > 2):
                    yield from (written.result() for written in solving.popleft().result())
            while solving:
                yield from (written.result() for written in solving.popleft().result())
        except BaseException:
            solver.shutdown(wait=False, cancel_futures=True)
            raise


def prepare(folder: Path, seeds: Sequence[int], view: View, *, cache: Path | None, n_workers: int) -> Iterator[Prepared]:
    """Read samples and find their modes (or read those from the cache)."""
    yield from in_parallel(partial(_prepare_one, folder, view, cache), seeds, n_workers)


def prepare_fresh(problem: Problem, seeds: Sequence[int], view: View, *, n_workers: int) -> Iterator[Prepared]:
    """Simulate samples now, keep them nowhere, and find their modes."""
    yield from in_parallel(partial(_prepare_fresh_one, problem, view), seeds, n_workers)


def viewed(folder: Path, seeds: Sequence[int], view: View, *, n_workers: int) -> Iterator[tuple[Sample, Laplacian]]:
    """Read samples and make their Laplacians, on meshes of their own, not on grids; but find no modes."""
    with ThreadPoolExecutor() as pool:
        # All is checked before anything is made of it; and read here: values may be too many to go from process to process.
        samples = list(pool.map(partial(read_sample, folder), seeds))
    for sample, (domain, matrices) in zip(
        samples, in_parallel(partial(_peeked, folder, view), seeds, n_workers), strict=True
    ):
        yield replace(sample, domain=domain), matrices


def prepared(sample: Sample, view: View, cache: Path | None) -> Prepared:
    sample, matrices = _viewed(sample, view)
    return Prepared(sample=sample, laplacian=matrices, spectrum=cached_modes(matrices, view.n_modes, cache))


def viewed_domain(domain: Domain, view: View) -> tuple[Domain, Laplacian]:
    """A domain as an operator sees it, and its Laplacian; onto a grid a whole sample is brought first."""
    if view.rotation_degrees:
        domain = rotated(domain, view.rotation_degrees)
    if view.homogenises:
        domain = homogenised(domain)
    return domain, laplacian(domain, view.discretisation)


def _viewed(sample: Sample, view: View) -> tuple[Sample, Laplacian]:
    if view.grid_side is not None:
        sample = on_grid(sample, view.grid_side)
    domain, matrices = viewed_domain(sample.domain, view)
    return replace(sample, domain=domain), matrices


def _peeked(folder: Path, view: View, seed: int) -> tuple[Domain, Laplacian]:
    return viewed_domain(peeked_domain(folder, seed), view)


def on_grid(sample: Sample, n_side: int) -> Sample:
    """The sample interpolated linearly onto a regular grid of the unit square, as the paper does for FNO (A.1.2)."""
    grid = unit_square(n_side)
    weights = interpolation(sample.domain, grid.points)
    tensors = weights @ sample.domain.node_diffusion().reshape(sample.domain.n_nodes, -1)
    domain = make_domain(grid.points, grid.cells, tensors.reshape(-1, 2, 2), fibres=weights @ sample.domain.fibres)
    values = np.stack([trajectory @ weights.T for trajectory in sample.values])
    return Sample(seed=sample.seed, domain=domain, times=sample.times, values=values)


def _simulate_one(problem: Problem, of: tuple[int, Path]) -> int:
    seed, folder = of
    return _written(folder, problem.sample(seed))


def _written(folder: Path, sample: Sample) -> int:
    write_sample(folder, sample)
    return sample.seed


def _prepare_one(folder: Path, view: View, cache: Path | None, seed: int) -> Prepared:
    return prepared(read_sample(folder, seed), view, cache)


def _prepare_fresh_one(problem: Problem, view: View, seed: int) -> Prepared:
    return prepared(problem.sample(seed), view, None)
