import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from gfunk import simulation
from gfunk.cli import main
from gfunk.domain import Domain, cell_sizes, make_domain, rectangle, triangulated, voxel_means
from gfunk.errors import InputError
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import diffusivity
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced
from gfunk.recipes import tissue_data
from gfunk.recipes.book import recipe_named
from gfunk.recipes.tissue_data import Experiment, FibreSquareProblem, FlatPacing, RectangleProblem, TissueProblem
from gfunk.simulation import FIRST_SEED, simulate_missing, split_of, split_seeds
from gfunk.store import Sample, read_sample, sample_path, sample_seeds, write_sample

seeds = st.integers(0, 2**32 - 1)
# Coarse, fast and simple, but still a wave.
TOY_SETTINGS = {
    "cell": "mitchell-schaeffer", "scheme": "paper", "edge_mm": 0.8, "voxel_mm": 1.0, "base_conductivity": 0.5,
    "radius_mm": 2.5, "first_ms": 4.0, "every_ms": 2.0, "n_saves": 3,
}  # fmt: skip
toy = FlatPacing(**TOY_SETTINGS)
problems = {"rectangles": RectangleProblem, "random-fibres": FibreSquareProblem}
each_problem = pytest.mark.parametrize("problem", problems.values(), ids=problems.keys())


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GFUNK_COMPILE", "0")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A sample, and what the solver was asked for it."""

    sample: Sample
    domain: Domain
    stimulus: Stimulus
    times: np.ndarray

    @property
    def site(self) -> np.ndarray:
        return np.array(self.stimulus.sites[0])


def unsolved(domains: list, protocols: list, times_ms: np.ndarray, *, kept: list, **_: object) -> list[Paced]:
    """In the solver's place: node numbers plus a thousandth of the time."""
    never = np.full((1, len(kept[0])), np.nan)
    values = kept[0] + times_ms[None, :, None] / 1000
    return [Paced(times_ms=times_ms, values_mV=values, activation_ms=never, repolarisation_ms=never)]


def asked(problem: RectangleProblem | FibreSquareProblem, seed: int, solve: Callable = unsolved) -> Asked:
    calls = []

    def recording(*things: object, **how: object) -> list[Paced]:
        calls.append(things)
        return solve(*things, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tissue_data, "simulate_many", recording)
        sample = problem.sample(seed)
    (((domain,), (((stimulus,),),), times),) = calls
    return Asked(sample=sample, domain=domain, stimulus=stimulus, times=times)


# Tissue.


@each_problem
@settings(max_examples=10)
@given(seed=seeds)
def test_a_seed_is_the_same_tissue_however_fine_its_mesh_and_however_it_is_paced(problem: type, seed: int):
    coarse = asked(problem(pacing=toy), seed)
    for pacing in (replace(toy, edge_mm=0.5, first_ms=6.0, n_saves=5), replace(toy, edge_mm=1.1, cell="aliev-panfilov")):
        other = asked(problem(pacing=pacing), seed)
        assert other.stimulus == coarse.stimulus and other.domain.n_nodes != coarse.domain.n_nodes
        np.testing.assert_allclose(other.domain.points.max(axis=0), coarse.domain.points.max(axis=0), rtol=1e-12)
        # Nodes of the corners are the same places in all meshes.
        for here, there in zip(corners(other.domain), corners(coarse.domain), strict=True):
            np.testing.assert_allclose(other.domain.fibres[here], coarse.domain.fibres[there], atol=1e-12)
            np.testing.assert_allclose(other.domain.diffusion[here], coarse.domain.diffusion[there], atol=1e-12)


def corners(domain: Domain) -> list[int]:
    low, high = domain.points.min(axis=0), domain.points.max(axis=0)
    places = [(x, y) for x in (low[0], high[0]) for y in (low[1], high[1])]
    return [int(np.linalg.norm(domain.points - place, axis=1).argmin()) for place in places]


@given(seed=seeds)
def test_rectangles_have_the_sides_of_the_paper_and_fibres_along_x(seed: int):
    made = asked(RectangleProblem(pacing=toy), seed)
    domain, site = made.domain, made.site
    sides = domain.points.max(axis=0)
    assert (domain.points.min(axis=0) == 0).all() and ((sides >= 15) & (sides <= 30)).all()
    assert ((site >= 0) & (site <= sides)).all()
    np.testing.assert_array_equal(domain.fibres, np.tile([1.0, 0.0], (domain.n_nodes, 1)))
    across = diffusivity(0.5)
    np.testing.assert_allclose(domain.diffusion, np.tile(np.diag([5 * across, across]), (domain.n_nodes, 1, 1)), rtol=1e-12)


@given(seed=seeds)
def test_fibre_squares_have_one_ratio_from_four_to_six_and_unit_fibres_along_which_it_is(seed: int):
    made = asked(FibreSquareProblem(pacing=toy), seed)
    domain, site = made.domain, made.site
    np.testing.assert_array_equal(domain.points.max(axis=0), [20.0, 20.0])
    assert ((site >= 0) & (site <= 20)).all()
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1, rtol=1e-12)
    across, along = np.linalg.eigvalsh(domain.diffusion).T
    np.testing.assert_allclose(across, diffusivity(0.5), rtol=1e-9)
    np.testing.assert_allclose(along, along[0], rtol=1e-9)
    assert 4 <= along[0] / across[0] <= 6
    pulled = np.einsum("nij,nj->ni", domain.diffusion, domain.fibres)
    np.testing.assert_allclose(pulled, along[:, None] * domain.fibres, atol=1e-9)
    # Equation 20 is smooth: neighbours differ little.
    corners_of = domain.fibres[domain.cells]
    assert np.abs(corners_of - corners_of[:, [1, 2, 0]]).max() < 0.5


def test_sides_sites_and_ratios_fill_their_ranges():
    coarse = replace(toy, edge_mm=1.3)
    made = [asked(RectangleProblem(pacing=coarse), seed) for seed in range(40)]
    sides = np.array([each.domain.points.max(axis=0) for each in made])
    sites = np.array([each.site for each in made]) / sides
    for part in (*((sides - 15) / 15).T, *sites.T):
        assert part.min() < 0.15 and part.max() > 0.85 and abs(part.mean() - 0.5) < 0.15
    tensors = [asked(FibreSquareProblem(pacing=coarse), seed).domain.diffusion[0] for seed in range(40)]
    ratios = np.array([np.divide(*np.linalg.eigvalsh(tensor)[::-1]) for tensor in tensors])
    assert ratios.min() < 4.3 and ratios.max() > 5.7


# What is kept.


@each_problem
@pytest.mark.parametrize("at_nodes", [True, False])
@pytest.mark.parametrize(("edge", "voxel"), [(0.5, 1.0), (0.8, 0.25), (0.7, 1.3)])
def test_kept_values_are_those_of_the_node_nearest_to_each_kept_point(
    problem: type, at_nodes: bool, edge: float, voxel: float
):
    made = asked(problem(pacing=replace(toy, edge_mm=edge, voxel_mm=voxel, at_nodes=at_nodes)), 3)
    sample, mesh = made.sample, made.domain
    node = sample.values[0, 0].round().astype(int)
    gap = np.linalg.norm(sample.domain.points[:, None] - mesh.points, axis=2)
    np.testing.assert_allclose(gap[np.arange(len(node)), node], gap.min(axis=1), atol=1e-5)
    assert len(np.unique(node)) == len(node)
    if at_nodes:
        np.testing.assert_array_equal(sample.domain.points, mesh.points[node])
    for saved, t in zip(sample.values[0], made.times, strict=True):
        np.testing.assert_allclose(saved, node + t / 1000, atol=1e-9)
    if voxel < edge / 2:
        # Every node is alone in its voxel: all are kept as they are.
        np.testing.assert_array_equal(sample.domain.points, mesh.points[node])
        assert sample.domain.n_nodes == mesh.n_nodes


@each_problem
def test_kept_domains_cover_the_tissue_with_its_tensors(problem: type):
    made = asked(problem(pacing=replace(toy, edge_mm=0.4)), 5)
    domain, mesh = made.sample.domain, made.domain
    area = cell_sizes(domain.points, domain.cells).sum()
    np.testing.assert_allclose(area, ConvexHull(domain.points).volume, rtol=1e-9)
    sides = mesh.points.max(axis=0)
    assert area > np.prod(sides - toy.voxel_mm)
    for values, expected in ((domain.diffusion[0], mesh.diffusion[0]), (domain.diffusion[-1], mesh.diffusion[-1])):
        np.testing.assert_allclose(np.linalg.eigvalsh(values), np.linalg.eigvalsh(expected), rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize(("edge", "voxel", "side"), [(0.5, 1.0, 8.0), (0.125, 0.25, 2.0), (0.1, 0.3, 2.1), (0.7, 0.7, 4.2)])
def test_kept_triangles_of_fibre_squares_are_whole_numbers_of_the_solvers(edge: float, voxel: float, side: float):
    pacing = replace(toy, edge_mm=edge, voxel_mm=voxel)
    found = FibreSquareProblem(pacing=pacing, side_mm=side).experiment(3)
    kept, mesh = found.kept, found.tissue
    np.testing.assert_array_equal(kept.points, mesh.points[found.nearest])
    np.testing.assert_array_equal(kept.fibres, mesh.fibres[found.nearest])
    np.testing.assert_array_equal(kept.diffusion, mesh.diffusion[found.nearest])
    regular = rectangle(side, side, voxel)
    np.testing.assert_allclose(kept.points, regular.points, atol=1e-12)
    np.testing.assert_array_equal(kept.cells, regular.cells)
    centres = mesh.points[mesh.cells].mean(axis=1)
    inside = triangles_around(kept, centres)
    np.testing.assert_array_equal(np.bincount(inside, minlength=len(kept.cells)), round(voxel / edge) ** 2)
    # None reaches across: where its centre is, there are its corners, pulled in by a hair.
    for corner in mesh.points[mesh.cells].swapaxes(0, 1):
        np.testing.assert_array_equal(triangles_around(kept, corner + 1e-6 * (centres - corner)), inside)


def triangles_around(domain: Domain, places: np.ndarray) -> np.ndarray:
    """The one triangle each place lies in."""
    origin, first, second = domain.points[domain.cells].swapaxes(0, 1)
    to_shares = np.linalg.inv(np.stack([first - origin, second - origin], axis=2))
    shares = np.einsum("cij,pcj->pci", to_shares, places[:, None] - origin)
    is_inside = (shares > 0).all(axis=2) & (shares.sum(axis=2) < 1)
    assert (is_inside.sum(axis=1) == 1).all()
    return is_inside.argmax(axis=1)


def test_fibre_squares_keep_one_node_in_four_and_rectangles_those_of_their_voxels():
    square = FibreSquareProblem().experiment(0)
    assert (square.tissue.n_nodes, square.kept.n_nodes) == (161**2, 81**2)
    assert len(square.tissue.cells) == 4 * len(square.kept.cells)
    # Were its sides to fit as well, a rectangle's points are still those of its voxels.
    pacing = replace(toy, edge_mm=0.5, voxel_mm=1.0)
    fitting = RectangleProblem(pacing=pacing, shortest_mm=20.0, longest_mm=20.0).experiment(0)
    _, nearest = voxel_means(fitting.tissue.points, 1.0)
    np.testing.assert_array_equal(fitting.nearest, nearest)
    np.testing.assert_array_equal(fitting.kept.cells, triangulated(fitting.tissue.points[nearest]))


@settings(max_examples=6)
@given(width=st.floats(15, 30), height=st.floats(15, 30))
def test_the_papers_voxels_keep_about_sixteen_points_a_square_millimetre(width: float, height: float):
    usual = FlatPacing()
    points, _ = voxel_means(rectangle(width, height, usual.edge_mm).points, usual.voxel_mm)
    assert 0.95 < len(points) / (width * height / 0.25**2) < 1.15


def test_times_are_zero_to_a_hundred_after_the_first_ten_and_errors_are_taken_ten_apart():
    usual = FlatPacing(edge_mm=1.0)
    made = asked(RectangleProblem(pacing=usual), 0)
    sample, stimulus = made.sample, made.stimulus
    np.testing.assert_array_equal(sample.times, np.arange(101.0))
    np.testing.assert_array_equal(made.times, 10.0 + np.arange(101.0))
    assert sample.values.shape == (1, 101, sample.domain.n_nodes)
    assert sample.times[RectangleProblem(pacing=usual).report_every] == 10.0
    assert (stimulus.start_ms, stimulus.duration_ms, stimulus.strength, stimulus.radius_mm) == (0.0, 2.0, 50.0, 1.0)


@each_problem
def test_recipes_hold_these_problems_as_the_paper_has_them(problem: type):
    name = {kind: name for name, kind in problems.items()}[problem]
    found = recipe_named(name).problem
    assert found == problem()
    # But for the edges among random fibres, which are half a voxel.
    edge_mm = 0.125 if problem is FibreSquareProblem else 0.2
    assert (found.pacing.edge_mm, found.pacing.base_conductivity, found.pacing.voxel_mm) == (edge_mm, 0.0625, 0.25)


# Waves.


def test_a_wave_starts_at_the_site_and_spreads():
    made = asked(RectangleProblem(pacing=toy), 2, solve=simulate_many)
    sample, site = made.sample, made.site
    is_active = sample.values[0] > -20
    assert (np.diff(is_active.sum(axis=1)) > 0).all()
    gap = np.linalg.norm(sample.domain.points - site, axis=1)
    assert is_active[0, gap < 1.5].all() and not is_active[0, gap > 9].any()
    offset = sample.domain.points[is_active[-1]] - site
    assert np.abs(offset[:, 0]).max() > 1.3 * np.abs(offset[:, 1]).max()  # along the fibres first
    assert sample.values.min() > -85 and sample.values.max() < 30


@each_problem
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(problem: type, tmp_path: Path):
    def written(seed: int, folder: str) -> bytes:
        sample = problem(pacing=replace(toy, n_saves=1)).sample(seed)
        write_sample(tmp_path / folder, replace(sample, seed=0))
        return (tmp_path / folder / "000000.safetensors").read_bytes()

    assert written(1, "a") == written(1, "b") != written(4, "c")


@each_problem
def test_samples_solved_together_are_as_each_alone_within_the_error_of_the_solver(problem: type):
    family = problem(pacing=replace(toy, n_saves=1))
    together = list(family.solved([family.experiment(seed) for seed in (1, 2, 3)], "cpu"))
    for found, seed in zip(together, (1, 2, 3), strict=True):
        alone = family.sample(seed)
        assert found.seed == seed
        np.testing.assert_array_equal(found.domain.points, alone.domain.points)
        np.testing.assert_array_equal(found.times, alone.times)
        np.testing.assert_allclose(found.values, alone.values, rtol=0, atol=0.2)


batches: list[list[int]] = []


@dataclass(frozen=True, kw_only=True)
class Elsewhere(RectangleProblem):
    """Says what it is given to solve on another device, and solves it here."""

    def solved(self, experiments: Sequence[Experiment], device: str) -> Iterator[Sample]:
        batches.append([each.seed for each in experiments])
        return super().solved(experiments, "cpu")


def test_a_device_solves_one_sample_first_and_then_as_many_as_it_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def folders(name: str) -> dict[int, Path]:
        return dict.fromkeys(range(6), tmp_path / name)

    monkeypatch.setattr(simulation, "NODES_AT_ONCE", 2 * RectangleProblem(pacing=toy).experiment(1).n_nodes)
    batches.clear()
    made = list(simulate_missing(Elsewhere(pacing=toy), folders("together"), 1, device="elsewhere"))
    assert made == list(range(6)) and [seed for batch in batches for seed in batch] == made
    assert len(batches[0]) == 1 and max(map(len, batches)) > 1
    list(simulate_missing(RectangleProblem(pacing=toy), folders("alone"), 1))
    for seed in made:
        together, alone = (read_sample(tmp_path / how, seed) for how in ("together", "alone"))
        np.testing.assert_array_equal(together.values, alone.values)


@dataclass(frozen=True, kw_only=True)
class OfKinds(Elsewhere):
    """Says that every third sample is of a kind."""

    def company(self, experiment: Experiment) -> int:
        return experiment.seed % 3


@pytest.mark.parametrize("waiting", [4, 1], ids=["all may wait", "few may wait"])
def test_samples_that_are_solved_alike_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waiting: int):
    n_nodes = [RectangleProblem(pacing=toy).experiment(seed).n_nodes for seed in range(13)]
    monkeypatch.setattr(simulation, "NODES_AT_ONCE", sum(n_nodes[1:]) / 3)
    monkeypatch.setattr(simulation, "WAITING", waiting)
    batches.clear()
    made = list(simulate_missing(OfKinds(pacing=toy), dict.fromkeys(range(13), tmp_path), 1, device="elsewhere"))
    assert sorted(made) == list(range(13)) and [seed for batch in batches for seed in batch] == made
    assert all(len({seed % 3 for seed in batch}) == 1 for batch in batches)
    # One alone, then a batch of each kind; or, sent off for want of room, more of them, the fullest first.
    assert len(batches) == 4 if waiting == 4 else len(batches) > 4 and len(batches[1]) >= 2


def test_squares_of_random_fibres_are_of_several_kinds_and_rectangles_of_one():
    def kinds(problem: TissueProblem) -> set[Hashable]:
        return {problem.company(problem.experiment(seed)) for seed in range(8)}

    assert len(kinds(RectangleProblem())) == 1 and len(kinds(FibreSquareProblem())) > 3


def simulated(capsys: pytest.CaptureFixture[str], out: Path, recipe: str, *words: str) -> list[dict]:
    chosen = {**TOY_SETTINGS, "n_saves": 1}
    options = [word for name, value in chosen.items() for word in ("--set", f"pacing.{name}={value}")]
    capsys.readouterr()
    assert main(["simulate", recipe, "--out", str(out), "--workers", "1", "--json", *options, *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_line_makes_a_readable_dataset_twice_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    made = simulated(capsys, tmp_path / "a", "rectangles", "--seed", "7", "--n", "1")
    assert [(row["split"], row["samples"], row["simulated"]) for row in made] == [("train", 1, 1)]
    simulated(capsys, tmp_path / "b", "rectangles", "--split", "train", "--seed", "7", "--n", "1")
    first, second = (tmp_path / name / "train" / "000007.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert sample_seeds(tmp_path / "a" / "train") == [7]
    read = read_sample(tmp_path / "a" / "train", 7)
    fresh = RectangleProblem(pacing=replace(toy, n_saves=1)).sample(7)
    assert isinstance(read, Sample) and read.seed == 7
    np.testing.assert_array_equal(read.values, fresh.values.astype(np.float32))
    np.testing.assert_array_equal(read.domain.points, fresh.domain.points)
    assert simulated(capsys, tmp_path / "a", "rectangles", "--seed", "7", "--n", "1")[0]["simulated"] == 0


def test_a_seed_on_the_command_line_says_which_split(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tissue_data, "simulate_many", unsolved)
    for seed, split in ((7, "train"), (100_003, "val"), (299_999, "test")):
        made = simulated(capsys, tmp_path, "random-fibres", "--seed", str(seed), "--n", "1")
        assert [row["split"] for row in made] == [split]
        assert sample_seeds(tmp_path / split) == [seed]
    everything = simulated(capsys, tmp_path / "all", "random-fibres", "--n", "2")
    assert [(row["split"], row["samples"]) for row in everything] == [("train", 2), ("val", 2), ("test", 2)]


def test_a_mesh_too_coarse_for_its_stimulus_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    options = ["--set", "pacing.edge_mm=10", "--set", "pacing.radius_mm=0.01", "--n", "1", "--workers", "1"]
    assert main(["simulate", "rectangles", "--out", str(tmp_path), "--split", "train", *options]) == 2
    assert "no node within 0.01 mm of site" in capsys.readouterr().err


# Datasets that meet with an accident. What the waves are does not matter here: `unsolved` stands for the solver.


def words_to_make(out: Path, *words: str) -> list[str]:
    options = [word for name, value in TOY_SETTINGS.items() for word in ("--set", f"pacing.{name}={value}")]
    return ["simulate", "rectangles", "--out", str(out), "--split", "train", "--workers", "1", *options, *words]


def refusal(capsys: pytest.CaptureFixture[str], out: Path, *words: str) -> str:
    """The one line the command ends with."""
    capsys.readouterr()
    assert main(words_to_make(out, *words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    return said.err


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Three samples, in a folder of their own."""
    monkeypatch.setattr(tissue_data, "simulate_many", unsolved)
    assert main(words_to_make(tmp_path / "whole", "--n", "3")) == 0
    return tmp_path / "whole" / "train"


@pytest.fixture
def small_disk(dataset: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one sample and a half, if we may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    room = int(1.5 * sample_path(dataset, 0).stat().st_size) + 2**14
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk as Linux does")
def test_a_full_disk_is_said_in_one_line_and_with_more_room_the_same_command_ends_with_the_same_bytes(
    capsys: pytest.CaptureFixture[str], dataset: Path, small_disk: Path
):
    said = refusal(capsys, small_disk / "waves", "--n", "3")
    assert str(small_disk / "waves" / "train") in said and "No space left on device" in said
    # One sample is there, whole; no other, nor a part of it.
    whole = files_in(dataset)
    made = files_in(small_disk / "waves" / "train")
    assert made.keys() == {"000000.safetensors", "dataset.json"}
    assert all(made[name] == whole[name] for name in made)
    subprocess.run(["mount", "-o", "remount,size=10M", str(small_disk)], check=True)
    assert main(words_to_make(small_disk / "waves", "--n", "3")) == 0
    assert files_in(small_disk / "waves" / "train") == whole


@pytest.mark.parametrize("n_written", range(4))
def test_wherever_the_disk_is_full_only_whole_files_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dataset: Path, tmp_path: Path, n_written: int
):
    # dataset.json first, then the samples.
    with monkeypatch.context() as full:
        calls, fsync = [], os.fsync

        def fsync_until_full(file: int):
            calls.append(file)
            if len(calls) > n_written:
                raise OSError(28, "No space left on device")
            fsync(file)

        full.setattr(os, "fsync", fsync_until_full)
        said = refusal(capsys, tmp_path / "waves", "--n", "3")
    assert f"{tmp_path / 'waves' / 'train'}" in said and "No space left on device" in said
    whole, made = files_in(dataset), files_in(tmp_path / "waves" / "train")
    assert made.keys() == set(["dataset.json", "000000.safetensors", "000001.safetensors"][:n_written])
    assert all(made[name] == whole[name] for name in made)
    assert main(words_to_make(tmp_path / "waves", "--n", "3")) == 0
    assert files_in(tmp_path / "waves" / "train") == whole


def test_a_folder_that_cannot_be_written_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path
):
    (tmp_path / "file").write_text("no folder")
    assert str(tmp_path / "file" / "train") in refusal(capsys, tmp_path / "file", "--n", "1")
    (tmp_path / "a" / "train" / "000000.safetensors").mkdir(parents=True)
    said = refusal(capsys, tmp_path / "a", "--n", "1")
    assert str(tmp_path / "a" / "train" / "000000.safetensors") in said and "Is a directory" in said


def test_a_dataset_of_another_schema_or_problem_is_refused_and_left_as_it_is(
    capsys: pytest.CaptureFixture[str], dataset: Path
):
    about = json.loads((dataset / "dataset.json").read_text())
    whole = files_in(dataset)
    for changes in (["pacing.every_ms=3.0"], ["pacing.cell=aliev-panfilov"], ["ratio=4.0"], ["pacing.n_saves=4"]):
        said = refusal(capsys, dataset.parent, "--n", "5", "--set", *changes)
        assert f"{dataset}: holds trajectories of another problem or schema; choose another folder" in said
    assert files_in(dataset) == whole
    for schema in (0, 2, "1", None):
        (dataset / "dataset.json").write_text(json.dumps(about | {"schema": schema}))
        assert "another problem or schema" in refusal(capsys, dataset.parent, "--n", "3")
    for name in ("000000.safetensors", "000001.safetensors", "000002.safetensors"):
        assert (dataset / name).read_bytes() == whole[name]


def damages() -> dict[str, Callable[[bytes], bytes]]:
    def flipped(where: float) -> Callable[[bytes], bytes]:
        def damage(file: bytes) -> bytes:
            at = int(where * (len(file) - 1))
            return file[:at] + bytes([file[at] ^ 16]) + file[at + 1 :]

        return damage

    cuts = {f"cut to {n} bytes": (lambda file, n=n: file[:n]) for n in (0, 1, 7, 8, 9, 100, 400)}
    parts = {f"cut at {part}": (lambda file, part=part: file[: int(part * len(file))]) for part in (0.3, 0.99)}
    flips = {f"a bit flipped at {where}": flipped(where) for where in (0.0, 0.001, 0.01, 0.3, 0.7, 1.0)}
    longer = {"a byte more": lambda file: file + b" ", "zeros": lambda file: bytes(len(file))}
    return cuts | parts | flips | longer


@pytest.mark.parametrize("damage", damages().values(), ids=damages().keys())
def test_a_damaged_sample_and_no_other_is_simulated_again(dataset: Path, damage: Callable[[bytes], bytes]):
    whole = files_in(dataset)
    before = {name: (dataset / name).stat().st_mtime_ns for name in whole}
    (dataset / "000001.safetensors").write_bytes(damage(whole["000001.safetensors"]))
    assert files_in(dataset) != whole
    assert main(words_to_make(dataset.parent, "--n", "3")) == 0
    assert files_in(dataset) == whole
    changed = [name for name, moment in before.items() if (dataset / name).stat().st_mtime_ns != moment]
    assert changed == ["000001.safetensors"]


def test_a_whole_sample_under_the_name_of_another_is_simulated_again(dataset: Path):
    whole = files_in(dataset)
    (dataset / "000001.safetensors").write_bytes(whole["000002.safetensors"])
    with pytest.raises(InputError, match=r"000001\.safetensors: holds sample 2"):
        read_sample(dataset, 1)
    assert main(words_to_make(dataset.parent, "--n", "3")) == 0
    assert files_in(dataset) == whole


def test_files_that_are_none_of_ours_are_left_alone(dataset: Path):
    whole = files_in(dataset)
    foreign = {
        "notes.txt": b"mine", "weights.safetensors": b"also mine", "7.safetensors": b"not as we write it",
        ".backup.safetensors.gz": b"hidden", ".000001.safetensors.swp": b"an editor's", "²²²²²².safetensors": b"no number",
    }  # fmt: skip
    for name, content in foreign.items():
        (dataset / name).write_bytes(content)
        os.utime(dataset / name, (0, 0))
    assert main(words_to_make(dataset.parent, "--n", "3")) == 0
    assert files_in(dataset) == dict(sorted((whole | foreign).items()))
    assert sample_seeds(dataset) == [0, 1, 2]


def test_a_reader_beside_a_writer_sees_whole_samples_only(tmp_path: Path):
    folder = tmp_path / "train"
    command = [sys.executable, "-m", "gfunk.cli", *words_to_make(tmp_path, "--n", "12", "--set", "pacing.n_saves=1")]
    writer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    n_seen = set()
    try:
        end = time.monotonic() + 120
        while writer.poll() is None:
            assert time.monotonic() < end
            listed = sample_seeds(folder) if list(folder.glob("0*.safetensors")) else []
            assert listed == list(range(len(listed)))
            for seed in listed:
                assert read_sample(folder, seed).seed == seed  # whole, or CorruptFile
            n_seen.add(len(listed))
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0 and sample_seeds(folder) == list(range(12))
    assert len(n_seen) > 3, "the reader looked while the writer wrote"


# Splits.


@given(seed=st.integers(0, 299_999))
def test_every_seed_lies_in_the_split_whose_range_it_is(seed: int):
    split = split_of(seed)
    assert seed in split_seeds(split, 1, seed)
    for other in set(FIRST_SEED) - {split}:
        with pytest.raises(InputError, match=f"not all of split '{other}'"):
            split_seeds(other, 1, seed)


def test_splits_begin_and_end_where_they_say_and_no_seed_lies_beyond():
    edges = {0: "train", 99_999: "train", 100_000: "val", 199_999: "val", 200_000: "test", 299_999: "test"}
    assert {seed: split_of(seed) for seed in edges} == edges
    for seed in (-1, 300_000, 2**40):
        with pytest.raises(InputError, match=f"seed {seed} belongs to no split: they have 0 to 299999"):
            split_of(seed)


# Voxels and triangles.


def random_points(seed: int, n_nodes: int, n_dims: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 5, size=(n_nodes, n_dims))


many_points = {"seed": seeds, "n_nodes": st.integers(2, 60), "n_dims": st.sampled_from([2, 3])}


@given(**many_points, voxel=st.floats(0.05, 20))
def test_every_point_lies_in_one_voxel_and_each_voxel_gives_its_mean(seed: int, n_nodes: int, n_dims: int, voxel: float):
    points = random_points(seed, n_nodes, n_dims)
    means, nearest = voxel_means(points, voxel)
    groups = defaultdict(list)
    for point in points:
        groups[tuple(np.floor((point - points.min(axis=0)) / voxel + 0.5).astype(int))].append(point)
    expected = np.array([np.mean(group, axis=0) for _, group in sorted(groups.items())])
    np.testing.assert_allclose(means, expected, atol=1e-12)
    for cube, mean in zip(sorted(groups), means, strict=True):
        centre = points.min(axis=0) + voxel * np.array(cube)
        assert (np.abs(mean - centre) <= voxel / 2 + 1e-9).all()
    assert (means >= points.min(axis=0) - 1e-12).all() and (means <= points.max(axis=0) + 1e-12).all()
    gap = np.linalg.norm(means[:, None] - points, axis=2)
    np.testing.assert_allclose(gap[np.arange(len(means)), nearest], gap.min(axis=1), rtol=1e-12)


@given(**many_points)
def test_voxels_smaller_than_every_gap_keep_every_point_as_it_is(seed: int, n_nodes: int, n_dims: int):
    points = random_points(seed, n_nodes, n_dims)
    gap = np.linalg.norm(points[:, None] - points, axis=2) + 99 * np.eye(n_nodes)
    assume(gap.min() > 1e-3)
    means, nearest = voxel_means(points, gap.min() / 2)
    np.testing.assert_array_equal(means, points[nearest])
    assert sorted(nearest.tolist()) == list(range(n_nodes))


@given(**many_points)
def test_one_voxel_for_all_is_the_mean_of_all(seed: int, n_nodes: int, n_dims: int):
    points = random_points(seed, n_nodes, n_dims)
    means, _ = voxel_means(points, 100.0)
    np.testing.assert_allclose(means, [points.mean(axis=0)], atol=1e-12)


@given(**many_points, voxel=st.floats(0.5, 5))
def test_voxels_do_not_see_the_order_of_points(seed: int, n_nodes: int, n_dims: int, voxel: float):
    points = random_points(seed, n_nodes, n_dims)
    order = np.random.default_rng(seed).permutation(n_nodes)
    np.testing.assert_allclose(voxel_means(points[order], voxel)[0], voxel_means(points, voxel)[0], atol=1e-12)


def test_nodes_on_the_faces_between_voxels_fall_to_one_side_all_alike():
    # Edges of 0.1 and voxels of 0.2: every other node lies on a face, in floating point now before, now behind it.
    means, _ = voxel_means(rectangle(6.0, 6.0, 0.1).points, 0.2)
    assert len(means) == 31**2
    for column in means.T:
        assert len(np.unique(column.round(9))) == 31
        np.testing.assert_allclose(np.diff(np.unique(column.round(9)))[1:-1], 0.2, atol=1e-6)


@given(seed=seeds, n_nodes=st.integers(3, 80), squeeze=st.floats(0.2, 1))
def test_triangles_cover_the_hull_once_but_for_its_flattest_and_use_every_point(seed: int, n_nodes: int, squeeze: float):
    points = random_points(seed, n_nodes, 2) * np.array([1.0, squeeze])
    cells = triangulated(points)
    hull = ConvexHull(points)
    missing = hull.volume - cell_sizes(points, cells).sum()
    assert -1e-6 * hull.volume < missing < 0.02 * hull.area**2
    assert set(cells.ravel().tolist()) == set(range(n_nodes))


@given(width=st.floats(2, 9), height=st.floats(2, 9), edge=st.floats(0.15, 0.6), voxel=st.floats(0.15, 0.9))
def test_voxels_of_a_rectangle_make_a_mesh_that_a_domain_takes(width: float, height: float, edge: float, voxel: float):
    points, _ = voxel_means(rectangle(width, height, edge).points, voxel)
    assume(len(points) > 8)
    domain = make_domain(points, triangulated(points))
    np.testing.assert_allclose(cell_sizes(domain.points, domain.cells).sum(), ConvexHull(points).volume, rtol=0.03)


@given(seed=st.integers(0, 10**6))
def test_points_of_a_rectangle_are_joined_to_near_ones_only(seed: int):
    width, height = np.random.default_rng(seed).uniform(15, 30, 2)
    points, _ = voxel_means(rectangle(width, height, 0.2).points, 0.5)
    sides = points[triangulated(points)]
    assert np.linalg.norm(sides - np.roll(sides, 1, axis=1), axis=2).max() < 1.5
