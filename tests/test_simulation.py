import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from laws import relative_gap
from toy_heat import SIZES, TOY_OPTIONS, toy_problem

from gfunk.cli import main
from gfunk.domain import cell_sizes, fibre_tensors, make_domain, refined
from gfunk.errors import InputError
from gfunk.homogenising import homogenised
from gfunk.laplacian import Fem, fem_laplacian
from gfunk.physics.heat import simulate_heat
from gfunk.recipes.heat_data import HeatProblem, random_fibres, random_heat
from gfunk.settings import from_json, to_json
from gfunk.simulation import (
    FIRST_SEED,
    View,
    missing_seeds,
    on_grid,
    prepare,
    prepared,
    simulate_missing,
    split_seeds,
    viewed,
)
from gfunk.store import CorruptFile, Sample, read_sample, sample_path, sample_seeds


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def moments(folder: Path) -> dict[str, int]:
    """When each file was last written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}


def make(folder: Path, seeds: range, n_workers: int = 1, problem: HeatProblem = toy_problem) -> list[int]:
    """Simulate what is missing; returns the seeds that were."""
    return list(simulate_missing(problem, dict.fromkeys(missing_seeds(folder, problem, seeds), folder), n_workers))


@pytest.fixture
def train_copy(toy_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_data / "train", tmp_path / "train"))


def test_simulating_twice_does_nothing_the_second_time(train_copy: Path):
    before = moments(train_copy)
    assert make(train_copy, split_seeds("train", SIZES["train"])) == []
    assert moments(train_copy) == before


def test_only_samples_that_are_missing_or_broken_are_made_again_and_to_the_same_bytes(train_copy: Path):
    original, before = contents(train_copy), moments(train_copy)
    sample_path(train_copy, 2).unlink()
    cut = sample_path(train_copy, 5)
    cut.write_bytes(cut.read_bytes()[:-100])
    flipped = sample_path(train_copy, 7)
    flipped.write_bytes(original[flipped.name][:-1] + bytes([original[flipped.name][-1] ^ 1]))
    sample_path(train_copy, 8).write_bytes(b"")
    assert make(train_copy, split_seeds("train", SIZES["train"])) == [2, 5, 7, 8]
    assert contents(train_copy) == original
    changed = {name for name, moment in moments(train_copy).items() if moment != before[name]}
    assert changed == {sample_path(train_copy, seed).name for seed in (2, 5, 7, 8)}


def test_more_samples_are_added_to_those_there(train_copy: Path):
    assert make(train_copy, split_seeds("train", SIZES["train"] + 2)) == [10, 11]
    assert sample_seeds(train_copy) == list(range(12))


def test_the_number_of_workers_does_not_change_a_byte(toy_data: Path, tmp_path: Path):
    assert make(tmp_path, split_seeds("train", 4), n_workers=2) == [0, 1, 2, 3]
    expected = contents(toy_data / "train")
    assert contents(tmp_path) == {name: expected[name] for name in sorted(expected)[:4]}


def test_a_killed_simulation_is_completed_to_the_bytes_of_one_never_killed(tmp_path: Path):
    options = [*TOY_OPTIONS, "--set", "max_cell=0.002", "--split", "train", "--n", "40"]
    command = [sys.executable, "-m", "gfunk.cli", "simulate", "heat", "--out", str(tmp_path), "--workers", "2", *options]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = tmp_path / "train"
    try:
        end = time.monotonic() + 60
        while len(list(folder.glob("*.safetensors"))) < 3:
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.003)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    survivors = sample_seeds(folder)
    assert 3 <= len(survivors) < 40
    problem = replace(toy_problem, max_cell=0.002)
    for seed in survivors:
        read_sample(folder, seed)  # whole, or CorruptFile
    assert make(folder, range(40), problem=problem) == [seed for seed in range(40) if seed not in survivors]
    make(tmp_path / "whole", range(40), problem=problem)
    assert contents(folder) == contents(tmp_path / "whole")


def test_what_killed_writers_left_is_never_read_and_removed_when_old(train_copy: Path):
    old, young = train_copy / ".000003.safetensors.abcd1234", train_copy / ".000099.safetensors.efgh5678"
    for draft in (old, young):
        draft.write_bytes(b"half a sam")
    os.utime(old, (0, 0))
    assert sample_seeds(train_copy) == list(range(SIZES["train"]))
    assert make(train_copy, split_seeds("train", SIZES["train"])) == []
    # A young one may belong to a simulation that is running now.
    assert young.exists() and not old.exists()


def test_another_problem_in_the_same_folder_is_refused(train_copy: Path):
    before = contents(train_copy)
    for other in (replace(toy_problem, ratio=4.0), replace(toy_problem, max_cell=0.004)):
        with pytest.raises(InputError, match="another problem or schema; choose another folder"):
            missing_seeds(train_copy, other, [0])
    assert contents(train_copy) == before


def test_a_folder_whose_description_is_broken_is_refused(train_copy: Path):
    for content in ("", "[1, 2]", '{"schema": 1'):
        (train_copy / "dataset.json").write_text(content)
        with pytest.raises(CorruptFile, match=r"dataset\.json"):
            missing_seeds(train_copy, toy_problem, [0])


def test_no_seed_is_in_two_splits():
    everything = [set(split_seeds(split, 100_000)) for split in FIRST_SEED]
    assert sum(map(len, everything)) == len(set.union(*everything)) == 300_000
    assert [min(seeds) for seeds in everything] == [0, 100_000, 200_000]


@pytest.mark.parametrize(
    ("split", "n", "first"),
    [
        ("train", 1, 100_000),
        ("train", 2, 99_999),
        ("train", 100_001, None),
        ("train", 1, -1),
        ("val", 1, 0),
        ("test", 5, 299_996),
        ("test", 1, 100_000),
        ("test", 0, None),
    ],
)
def test_seeds_outside_the_split_are_refused(split: str, n: int, first: int | None):
    with pytest.raises(InputError, match=f"are not all of split '{split}'"):
        split_seeds(split, n, first)


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="none of train, val, test"):
        split_seeds("exam", 1)


@pytest.mark.parametrize("words", [["--n", "100001"], ["--n", "2", "--seed", "99999"], ["--n", "1", "--seed", "300000"]])
def test_seeds_are_checked_before_anything_is_simulated(tmp_path: Path, words: list[str]):
    assert main(["simulate", "heat", "--out", str(tmp_path), *words, *TOY_OPTIONS]) == 2
    assert list(tmp_path.iterdir()) == []


def test_preparing_twice_reads_the_modes_from_the_cache(toy_data: Path, tmp_path: Path):
    view = View(discretisation=Fem(), n_modes=9)
    first, second = (
        list(prepare(toy_data / "val", [100_000, 100_001], view, cache=tmp_path, n_workers=1)) for _ in range(2)
    )
    assert len(list(tmp_path.iterdir())) == 2
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.spectrum.eigenvectors, other.spectrum.eigenvectors)


def test_modes_of_homogenised_domains_are_kept_beside_the_others_and_not_in_their_place(toy_data: Path, tmp_path: Path):
    views = [View(discretisation=Fem(), n_modes=9, homogenises=homogenises) for homogenises in (False, True)]
    kept, fresh = (
        [next(prepare(toy_data / "val", [100_000], view, cache=cache, n_workers=1)) for view in views]
        for cache in (tmp_path, None)
    )
    assert len(list(tmp_path.iterdir())) == 2
    for one, other in zip(kept, fresh, strict=True):
        np.testing.assert_array_equal(one.spectrum.eigenvalues, other.spectrum.eigenvalues)
    assert np.abs(kept[0].spectrum.eigenvalues - kept[1].spectrum.eigenvalues).max() > 1e-6


def test_a_view_that_homogenises_changes_tensors_and_what_is_made_of_them_and_no_value(toy_data: Path):
    sample = read_sample(toy_data / "test", 200_000)
    plain = View(discretisation=Fem(), n_modes=9)
    seen = prepared(sample, replace(plain, homogenises=True), None)
    expected = homogenised(sample.domain)
    np.testing.assert_array_equal(seen.sample.domain.diffusion, expected.diffusion)
    assert (seen.laplacian.stiffness != fem_laplacian(expected).stiffness).nnz == 0
    assert (seen.laplacian.mass != prepared(sample, plain, None).laplacian.mass).nnz == 0
    np.testing.assert_array_equal(seen.sample.values, sample.values)


def test_a_view_written_before_it_could_homogenise_does_not():
    view = View(discretisation=Fem(), n_modes=9)
    written = to_json(view)
    del written["homogenises"]
    assert from_json(written, (View, Fem)) == view and not view.homogenises


@pytest.mark.parametrize("homogenises", [False, True])
def test_turning_a_view_turns_the_domain_and_leaves_eigenvalues_and_values(toy_data: Path, homogenises: bool):
    sample = read_sample(toy_data / "test", 200_000)
    view = View(discretisation=Fem(), n_modes=9, homogenises=homogenises)
    straight, turned = (prepared(sample, replace(view, rotation_degrees=angle), None) for angle in (0.0, 33.0))
    np.testing.assert_allclose(turned.spectrum.eigenvalues, straight.spectrum.eigenvalues, atol=1e-8)
    np.testing.assert_array_equal(turned.sample.values, straight.sample.values)
    assert np.abs(turned.sample.domain.points - straight.sample.domain.points).max() > 0.3


def test_a_linear_field_is_the_same_on_the_grid(toy_data: Path):
    sample = read_sample(toy_data / "test", 200_000)
    linear = (1 + 2 * sample.domain.points @ np.array([1.0, -3.0]))[None, None]
    gridded = on_grid(replace(sample, values=np.repeat(linear, len(sample.times), axis=1)), 12)
    assert gridded.domain.n_nodes == 144
    expected = 1 + 2 * gridded.domain.points @ np.array([1.0, -3.0])
    np.testing.assert_allclose(gridded.values[0, 3], expected, atol=1e-12)


# The heat problem of the paper.


@pytest.fixture(scope="module")
def sample() -> Sample:
    return toy_problem.sample(3)


def test_a_seed_means_the_same_fields_at_every_mesh_size():
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    starts, fibres = [], []
    for max_cell in (0.02, 0.005, 0.002):
        each = replace(toy_problem, max_cell=max_cell).sample(11)
        at_corner = [int(np.abs(each.domain.points - corner).sum(axis=1).argmin()) for corner in corners]
        np.testing.assert_array_equal(each.domain.points[at_corner], corners)
        starts.append(each.values[0, 0, at_corner])
        fibres.append(each.domain.fibres[at_corner])
    np.testing.assert_allclose(starts[1:], [starts[0]] * 2, rtol=1e-12)
    np.testing.assert_allclose(fibres[1:], [fibres[0]] * 2, rtol=1e-12)


def test_a_seed_gives_the_same_sample_again_and_another_seed_another(sample: Sample):
    again, other = toy_problem.sample(3), toy_problem.sample(4)
    np.testing.assert_array_equal(again.values, sample.values)
    np.testing.assert_array_equal(again.domain.points, sample.domain.points)
    assert np.abs(other.values[0, 0].max() - sample.values[0, 0].max()) > 0.1


def test_the_saved_times_are_evenly_spaced_from_zero(sample: Sample):
    np.testing.assert_allclose(sample.times, np.arange(7) * 0.001, atol=1e-15)
    assert sample.values.shape == (1, 7, sample.domain.n_nodes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heat_is_neither_lost_nor_made(seed: int):
    each = replace(toy_problem, max_cell=0.0005).sample(seed)
    total = each.values[0].astype(np.float32) @ fem_laplacian(each.domain).lumped_mass()
    # The sum over nodes misses a little of the first, sharp field; later ones it hardly does.
    np.testing.assert_allclose(total, total[0], rtol=1e-3)
    np.testing.assert_allclose(total[1:], total[1], rtol=1e-4)


def test_fibres_are_unit_vectors_and_diffusion_is_nine_along_them_and_one_across(sample: Sample):
    fibres, tensors = sample.domain.fibres, sample.domain.diffusion
    np.testing.assert_allclose(np.linalg.norm(fibres, axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.eigvalsh(tensors), [[1.0, 9.0]] * len(tensors), atol=1e-12)
    np.testing.assert_allclose(np.einsum("nij,nj->ni", tensors, fibres), 9 * fibres, atol=1e-12)
    assert np.abs(fibres - fibres[0]).max() > 0.1, "fibres turn from place to place"


@pytest.mark.parametrize("max_cell", [0.02, 0.005, 0.001])
def test_no_cell_is_larger_than_asked_and_none_much_smaller_than_it_need_be(max_cell: float):
    domain = replace(toy_problem, max_cell=max_cell).sample(0).domain
    sizes = cell_sizes(domain.points, domain.cells)
    assert sizes.max() <= max_cell < 4 * sizes.mean()


def solved(problem: HeatProblem, sample: Sample, n_refinements: int) -> np.ndarray:
    """The plain finite element solution on the sample's mesh refined so often, at the sample's nodes."""
    rng = np.random.default_rng(sample.seed)
    fibres, heat = random_fibres(rng), random_heat(rng)
    mesh = make_domain(sample.domain.points, sample.domain.cells)
    for _ in range(n_refinements):
        mesh = make_domain(*refined(mesh))
    domain = make_domain(mesh.points, mesh.cells, fibre_tensors(fibres(mesh.points), problem.ratio, 1.0))
    values = simulate_heat(fem_laplacian(domain), heat(mesh.points), sample.times, steps_per_save=problem.steps_per_save)
    return values.values[:, : sample.domain.n_nodes]


@pytest.mark.parametrize("seed", [0, 3])
def test_the_truth_is_far_more_accurate_than_finite_elements_on_its_mesh(seed: int):
    problem = replace(toy_problem, max_cell=0.002)
    each = problem.sample(seed)
    finer, finest = solved(problem, each, 2), solved(problem, each, 3)
    reference = (4 * finest - finer) / 3
    plain, truth = relative_gap(solved(problem, each, 0), reference), relative_gap(each.values[0], reference)
    assert truth < plain / 5
    assert truth < 1e-3


@pytest.mark.parametrize(("degrees", "homogenises"), [(0.0, False), (30.0, False), (30.0, True)])
def test_samples_are_seen_as_they_are_prepared_and_a_damaged_one_is_refused(
    train_copy: Path, degrees: float, homogenises: bool
):
    view = View(discretisation=Fem(), n_modes=5, rotation_degrees=degrees, homogenises=homogenises)
    seeds = sample_seeds(train_copy)[:3]
    ready = list(prepare(train_copy, seeds, view, cache=None, n_workers=1))
    for (sample, matrices), each in zip(viewed(train_copy, seeds, view, n_workers=1), ready, strict=True):
        assert sample.seed == each.sample.seed
        np.testing.assert_array_equal(sample.values, each.sample.values)
        np.testing.assert_array_equal(sample.domain.points, each.sample.domain.points)
        np.testing.assert_array_equal(sample.domain.diffusion, each.sample.domain.diffusion)
        assert (matrices.stiffness != each.laplacian.stiffness).nnz == 0
    # A value, at the end of the file, that no Laplacian depends on.
    damaged = sample_path(train_copy, seeds[1])
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptFile, match=damaged.name):
        next(viewed(train_copy, seeds, view, n_workers=1))
