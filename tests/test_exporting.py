import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import batch_of, cloud, relabelled, sliver_mesh, sphere, turning_square
from toy_heat import small_variant, toy_problem
from toy_waves import SMALL, toy_waves, wave_variant

from gfunk import InputError, Paced, Prediction, Trajectory, as_xarray, load_pretrained, make_domain
from gfunk.batch import Batch
from gfunk.cli import main
from gfunk.domain import Domain
from gfunk.experiments import seeded_operator
from gfunk.exporting import networks
from gfunk.exporting.fronts import Front, front_inputs
from gfunk.exporting.networks import Exported, export_model, front_of
from gfunk.homogenising import homogenised
from gfunk.laplacian import laplacian
from gfunk.operators import fronts
from gfunk.operators.arrival import ArrivalConfig
from gfunk.operators.fronts import LEAST_RISE, MOST_BENT, N_BENDS, NEVER, THINNEST
from gfunk.recipes.heat_data import HeatProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.rollout import rollout
from gfunk.runs import RunCard, load_run, write_card
from gfunk.settings import to_json
from gfunk.store import Sample, read_object, write_arrays, write_json, write_sample

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "7_onnx_prediction.py"
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def make_run(folder: Path, variant: Variant, problem: RecipeProblem = toy_problem, recipe: str = "heat") -> Path:
    """A run as training leaves it, its weights those it began with."""
    write_card(folder, RunCard(recipe=recipe, problem=problem, variant=variant, data_fingerprint="f00", commit="c0ffee"))
    weights = {name: tensor.numpy() for name, tensor in seeded_operator(variant).state_dict().items()}
    write_arrays(folder / "best.safetensors", weights)
    return folder


RAYS = replace(SMALL, ray_times=(0.002, 0.01))
with_and_without_rays = pytest.mark.parametrize("name", ["waves", "rays"])
# Curvature is a small difference of times, which torch diffuses in single precision.
WITHIN = {"waves": 1e-5, "rays": 2e-5}


class Models:
    """A network of rates and two of waves as ONNX files, each made once; sessions and operators of all."""

    def __init__(self, folder: Path):
        variants = {"waves": wave_variant(), "rays": wave_variant(RAYS)}
        self.runs = {name: make_run(folder / name, each, toy_waves, "rectangles") for name, each in variants.items()}
        self.files = {name: folder / f"{name}.onnx" for name in ("heat", "waves", "rays")}
        self.exported = {name: export_model(str(self.runs.get(name, name)), path) for name, path in self.files.items()}
        self.sessions = {name: onnxruntime.InferenceSession(path) for name, path in self.files.items()}
        self.heat = load_pretrained("heat")[0]
        self.operators = {name: load_run(run)[0] for name, run in self.runs.items()}

    def rates(self, u: np.ndarray, batch: Batch, tau: float) -> tuple[np.ndarray, np.ndarray]:
        """Those of the file, and torch's."""
        (found,) = self.sessions["heat"].run(["rate"], modes_of(batch) | {"u": u, "tau": np.array(tau, dtype=np.float32)})
        with torch.no_grad():
            expected = self.heat(torch.from_numpy(u)[..., None], batch, torch.tensor(tau))
        return np.asarray(found), expected[..., 0].numpy()

    def fronts(self, name: str, u: np.ndarray, domain: Domain) -> dict[str, np.ndarray]:
        front = Front(**json.loads(self.exported[name].about["front"]))
        return {"u": u} | front_inputs(u, domain, laplacian(domain), front)

    def wave(
        self, name: str, u: np.ndarray, domain: Domain, batch: Batch, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        given = modes_of(batch) | self.fronts(name, u, domain) | {"times": times}
        (found,) = self.sessions[name].run(["values"], given)
        operator = self.operators[name]
        with torch.no_grad():
            first = operator.first(torch.from_numpy(u)[..., None], batch)
            expected = operator(first, batch, torch.from_numpy(times))
        return np.asarray(found), expected[..., 0].numpy()


def modes_of(batch: Batch) -> dict[str, np.ndarray]:
    return {name: getattr(batch, name)[0].numpy() for name in ("eigenvalues", "analysis", "synthesis")}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def bumps(domain: Domain, n: int, seed: int = 0) -> np.ndarray:
    """Smooth states between 0 and 1."""
    centres = np.random.default_rng(seed).uniform(size=(n, 1, domain.points.shape[1]))
    return np.exp(-(((domain.points - centres) / 0.3) ** 2).sum(axis=2)).astype(np.float32)


def assert_close(found: np.ndarray, expected: np.ndarray, within: float = WITHIN["waves"]):
    np.testing.assert_allclose(found, expected, rtol=0, atol=within * np.ptp(expected))


sizes = st.tuples(st.floats(0.001, 0.004), st.integers(1, 4), st.integers(0, 99))


# Networks.


@settings(max_examples=6)
@given(size=sizes, tau=st.floats(0.0001, 0.002))
def test_a_file_answers_as_its_network_for_any_number_of_nodes_and_trajectories(models: Models, size: Any, tau: float):
    max_cell, n_trajectories, seed = size
    domain = turning_square(max_cell, seed=seed)
    assert_close(*models.rates(bumps(domain, n_trajectories, seed), batch_of(domain, n_modes=128, dtype=torch.float32), tau))


@with_and_without_rays
@settings(max_examples=6)
@given(size=sizes, n_times=st.integers(1, 40))
def test_a_file_of_waves_answers_as_its_network_at_any_number_of_times(models: Models, name: str, size: Any, n_times: int):
    max_cell, n_trajectories, seed = size
    domain = turning_square(max_cell, seed=seed)
    times = np.linspace(0.1, 8, n_times, dtype=np.float32)
    batch = batch_of(domain, n_modes=12, dtype=torch.float32)
    assert_close(*models.wave(name, bumps(domain, n_trajectories, seed), domain, batch, times), WITHIN[name])


def test_how_nodes_are_numbered_changes_nothing(models: Models):
    domain = turning_square(0.003)
    order = np.random.default_rng(0).permutation(domain.n_nodes)
    u, times = bumps(domain, 2), np.array([1.0, 4.0], dtype=np.float32)

    def answers(domain: Domain, u: np.ndarray) -> list[np.ndarray]:
        heat, waves = (batch_of(domain, n_modes=n_modes, dtype=torch.float32) for n_modes in (128, 12))
        of_waves = [models.wave(name, u, domain, waves, times)[0] for name in models.runs]
        return [models.rates(u, heat, 0.001)[0], *of_waves]

    for found, expected in zip(answers(relabelled(domain, order), u[:, order]), answers(domain, u), strict=True):
        # The modes are found anew, so rounding differs.
        np.testing.assert_allclose(found, expected[..., order], rtol=0, atol=1e-4 * np.ptp(expected))


def test_trajectories_do_not_know_of_each_other(models: Models):
    domain = turning_square(0.003)
    batch, u = batch_of(domain, n_modes=128, dtype=torch.float32), bumps(domain, 5)
    together = models.rates(u, batch, 0.001)[0]
    for number in range(5):
        assert_close(models.rates(u[number : number + 1], batch, 0.001)[0], together[number : number + 1])


@with_and_without_rays
def test_a_file_of_waves_tells_when_they_arrive(models: Models, name: str):
    domain = turning_square(0.003)
    u, batch = bumps(domain, 1), batch_of(domain, n_modes=12, dtype=torch.float32)
    given = modes_of(batch) | models.fronts(name, u, domain) | {"times": np.ones(1, dtype=np.float32)}
    (found,) = models.sessions[name].run(["arrival"], given)
    operator = models.operators[name]
    with torch.no_grad():
        expected, _ = operator.arrival(operator.first(torch.from_numpy(u)[..., None], batch), batch)
    assert_close(found, expected[..., 0].numpy(), WITHIN[name])


def test_a_file_names_its_axes_and_takes_what_its_network_reads_alone(models: Models):
    def shapes(values: Any) -> dict[str, list[Any]]:
        return {value.name: value.shape for value in values}

    modes = {"eigenvalues": [128], "analysis": ["node", 128], "synthesis": ["node", 128]}
    session = models.sessions["heat"]
    assert shapes(session.get_inputs()) == {"u": ["trajectory", "node"], "tau": []} | modes
    assert shapes(session.get_outputs()) == {"rate": ["trajectory", "node"]}
    waves = models.sessions["waves"]
    assert [each.name for each in waves.get_inputs()][:4] == ["u", "ahead", "behind", "times"]
    assert "met" not in shapes(waves.get_inputs())
    assert shapes(waves.get_outputs())["values"] == ["trajectory", "time", "node"]
    assert shapes(models.sessions["rays"].get_inputs())["met"] == ["trajectory", "node", RAYS.n_carried + RAYS.n_met]


def test_a_file_says_all_that_is_needed_to_use_it(models: Models):
    card = read_object(ROOT / "gfunk" / "weights" / "heat.json")
    about = models.sessions["heat"].get_modelmeta().custom_metadata_map
    assert about == models.exported["heat"].about
    assert (about["model"], about["recipe"], about["licence"]) == ("heat", "heat", "MIT")
    assert (float(about["offset"]), float(about["scale"]), int(about["n_modes"])) == (0.0, 10.0, 128)
    assert (about["commit"], json.loads(about["card"])) == (card["commit"], card)
    assert json.loads(about["integrator"]) == card["variant"]["integrator"]
    assert json.loads(about["discretisation"]) == card["variant"]["view"]["discretisation"]
    assert set(json.loads(about["inputs"])) == {value.name for value in models.sessions["heat"].get_inputs()}

    waves = models.sessions["waves"].get_modelmeta().custom_metadata_map
    assert json.loads(waves["units"]) == {"value": "mV", "time": "ms", "length": "mm"}
    assert json.loads(waves["card"]) == read_object(models.runs["waves"] / "run.json")
    assert (waves["commit"], waves["licence"], float(waves["offset"])) == ("c0ffee", "unstated", -85.0)
    rays = models.sessions["rays"].get_modelmeta().custom_metadata_map
    assert [json.loads(each["homogenised"]) for each in (about, waves, rays)] == [False, False, True]
    front = json.loads(waves["front"])
    assert front == {
        "speed": 1.0, "resting": 0.0476, "threshold": 45 / 105, "time_scale": 10.0, "ray_times": [],
        "least_rise": LEAST_RISE, "never": 10 * NEVER, "n_bends": N_BENDS, "most_bent": MOST_BENT, "thinnest": THINNEST,
    }  # fmt: skip
    assert json.loads(rays["front"]) == front | {"ray_times": [0.002, 0.01]}
    assert json.loads(rays["inputs"])["met"]["axes"] == ["trajectory", "node", "feature"]


def test_a_program_of_torch_takes_what_its_network_reads_alone(tmp_path: Path):
    made = export_model(str(make_run(tmp_path / "run", small_variant("gnn"))), tmp_path / "model.pt2")
    assert set(made.inputs) == {"u", "points", "fibres", "neighbors", "couplings"} and made.largest_gap < 1e-5
    said = {"about.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=said)
    assert json.loads(said["about.json"]) == made.about
    assert set(program.graph_signature.user_inputs) == set(made.inputs)
    assert_names_no_folder(made)


def test_a_program_of_torch_is_told_what_fronts_met(models: Models, tmp_path: Path):
    made = export_model(str(models.runs["rays"]), tmp_path / "model.pt2")
    assert made.inputs == models.exported["rays"].inputs and made.largest_gap < 1e-5


def assert_names_no_folder(made: Exported):
    """Of the computer that made it."""
    assert str(ROOT).encode() not in made.content and b"site-packages" not in made.content


def test_a_file_names_no_folder_of_the_computer_that_made_it(models: Models):
    for made in models.exported.values():
        assert_names_no_folder(made)


def test_a_file_that_differs_from_its_network_is_not_written(tmp_path: Path, monkeypatch: Patch):
    run = make_run(tmp_path / "run", small_variant("paper"))
    monkeypatch.setattr(networks, "LARGEST_GAP", 1e-12)
    with pytest.raises(InputError, match="not written: its answers differ from"):
        export_model(str(run), tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


rough_meshes = st.one_of(
    st.builds(turning_square, st.floats(0.02, 0.1), ratio=st.floats(1, 50), seed=st.integers(0, 99)),
    st.builds(sliver_mesh, st.integers(0, 99)),
)
durations = st.lists(st.floats(0.001, 0.005), min_size=1, max_size=2)


@given(domain=rough_meshes | st.just(sphere(2)), n=st.integers(1, 3))
def test_fronts_in_numpy_are_those_of_torch(domain: Domain, n: int):
    config = ArrivalConfig()
    u = bumps(domain, n).astype(np.float64)
    found = front_inputs(u, domain, laplacian(domain), front_of(config))
    expected = fronts.front_times(torch.from_numpy(u)[..., None], batch_of(domain, n_modes=1), config)
    assert list(found) == ["ahead", "behind"]
    for one, other in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(one, other[..., 0].numpy(), rtol=1e-12, atol=1e-12)


def bumpy_sphere(seed: int) -> Domain:
    """Without symmetry: where a front comes from two sides at once, rounding tells which of them it is."""
    ball = sphere(2)
    return make_domain(ball.points * np.random.default_rng(seed).uniform(0.9, 1.1, (ball.n_nodes, 1)), ball.cells)


well_shaped = st.one_of(
    st.builds(turning_square, st.floats(0.003, 0.02), ratio=st.floats(1, 9), seed=st.integers(0, 99)),
    st.builds(bumpy_sphere, st.integers(0, 99)),
)
# Among thin triangles each bend makes more of the rounding of the last.
bent = st.one_of(st.tuples(well_shaped, st.just(N_BENDS)), st.tuples(rough_meshes, st.just(1)))


@settings(max_examples=8)
@given(case=bent, seed=st.integers(0, 99), n=st.integers(1, 3), ray_times=durations)
def test_what_fronts_meet_in_numpy_is_what_they_meet_in_torch(
    case: tuple[Domain, int], seed: int, n: int, ray_times: list[float]
):
    (domain, n_bends), config, rng = case, replace(RAYS, ray_times=tuple(ray_times)), np.random.default_rng(seed)
    # Not at nodes, for the same reason.
    near = domain.points[rng.integers(domain.n_nodes, size=n), None]
    centres = near + rng.uniform(0, 0.05, near.shape)
    u = np.exp(-(((domain.points - centres) / 0.3) ** 2).sum(axis=2))
    found = front_inputs(u, domain, laplacian(domain), replace(front_of(config), n_bends=n_bends, thinnest=0.3))
    batch, state = batch_of(domain, n_modes=1), torch.from_numpy(u)[..., None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fronts, "N_BENDS", n_bends)
        # Else too few triangles were left out to tell.
        patch.setattr(fronts, "THINNEST", 0.3)
        # Numpy diffuses and solves to the last digits, and torch as far as it is told.
        patch.setattr(fronts, "MET_ACCURACY", 1e-12)
        patch.setattr(fronts, "SLOWED_ACCURACY", 1e-12)
        slowed = fronts.slowed_front(state, fronts.front_times(state, batch, config)[0], batch, config)
        expected = fronts.met_on_the_way(state, torch.from_numpy(found["ahead"])[..., None], batch, config).numpy()
    np.testing.assert_allclose(found["ahead"], slowed[..., 0].numpy(), rtol=0, atol=1e-10)
    assert (np.abs(found["met"] - expected).max(axis=(0, 1)) <= 1e-8 * np.abs(expected).max(axis=(0, 1))).all()


def test_nothing_is_met_where_the_front_was_at_first_or_never_comes():
    domain = turning_square(0.02)
    # At this speed never, there and back, would be rounded to a little sooner.
    front = front_of(replace(RAYS, speed=1.525))
    found = front_inputs(bumps(domain, 1), domain, laplacian(domain), front)
    ahead, met = found["ahead"], found["met"]
    assert (met[ahead == 0] == 0).all() and (met[ahead > 0, 0] > 0).all()
    at_rest = front_inputs(np.zeros((1, domain.n_nodes)), domain, laplacian(domain), front)
    assert (at_rest["ahead"] == front.never).all() and (at_rest["met"] == 0).all()


def test_fronts_need_triangles():
    domain = cloud(60, np.eye(2))
    with pytest.raises(InputError, match="need a mesh of triangles"):
        front_inputs(bumps(domain, 1), domain, laplacian(domain), front_of(SMALL))


# The example.


def test_the_example_predicts_heat_without_torch(models: Models, tmp_path: Path):
    problem = HeatProblem(max_cell=0.002, n_saves=4, until=0.004)
    write_sample(tmp_path, problem.sample(200_000))
    program = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    said = subprocess.run(
        [sys.executable, "-c", program, str(models.files["heat"]), str(tmp_path), "200000"],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONWARNINGS": "ignore"},
    ).stdout  # fmt: skip
    assert said.startswith("off by ") and float(said.split()[2]) < 0.002


@with_and_without_rays
def test_the_example_predicts_waves_as_torch_does(models: Models, name: str):
    domain = turning_square(0.003)
    seen = homogenised(domain) if name == "rays" else domain
    times = np.arange(5.0)
    first = -85 + 105 * bumps(domain, 2).astype(np.float64)
    found = runpy.run_path(str(EXAMPLE))["predicted"](str(models.files[name]), domain, first, times)
    u = torch.from_numpy(((first + 85) / 105).astype(np.float32))[..., None]
    with torch.no_grad():
        expected = rollout(
            models.operators[name], u, batch_of(seen, n_modes=12, dtype=torch.float32), [1.0] * 4,
            wave_variant().integrator,
        )  # fmt: skip
    assert_close(found, -85 + 105 * expected[..., 0].numpy(), WITHIN[name])


# Trajectories.


def random_sample(n_trajectories: int, n_times: int, seed: int, max_cell: float = 0.05) -> Sample:
    rng = np.random.default_rng(seed)
    domain = turning_square(max_cell, seed=seed)
    values = rng.normal(size=(n_trajectories, n_times, domain.n_nodes)).astype(np.float32)
    return Sample(seed=seed, domain=domain, times=np.sort(rng.uniform(size=n_times)), values=values)


def assert_holds(dataset: xarray.Dataset, sample: Sample):
    np.testing.assert_array_equal(dataset["values"], sample.values)
    assert dataset["values"].dtype == np.float32 and dataset["values"].dims == ("trajectory", "time", "node")
    np.testing.assert_array_equal(dataset["time"], sample.times)
    np.testing.assert_array_equal(np.stack([dataset["x"], dataset["y"]], axis=1), sample.domain.points)
    for name in ("cells", "fibres", "diffusion"):
        np.testing.assert_array_equal(dataset[name], getattr(sample.domain, name))
    assert dataset.attrs["seed"] == sample.seed


@given(n_trajectories=st.integers(1, 3), n_times=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=5)
def test_a_sample_read_back_from_netcdf_has_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, n_trajectories: int, n_times: int, seed: int
):
    folder = tmp_path_factory.mktemp("data")
    sample = random_sample(n_trajectories, n_times, seed)
    write_sample(folder, sample)
    assert main(["export", str(folder / f"{seed:06d}.safetensors"), "--out", str(folder / "one.nc")]) == 0
    with xarray.open_dataset(folder / "one.nc") as dataset:
        assert_holds(dataset, sample)
    assert sorted(path.name for path in folder.iterdir()) == [f"{seed:06d}.safetensors", "one.nc"]


def test_a_data_folder_is_written_with_a_group_for_each_sample(tmp_path: Path, capsys: Capture):
    samples = [random_sample(1, 2, seed, max_cell) for seed, max_cell in ((3, 0.05), (7, 0.1))]
    for sample in samples:
        write_sample(tmp_path / "data", sample)
    write_json(tmp_path / "data" / "dataset.json", {"schema": 1, "problem": to_json(toy_waves), "commit": "c0ffee"})
    assert main(["export", str(tmp_path / "data"), "--out", str(tmp_path / "all.nc"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 2
    with xarray.open_datatree(tmp_path / "all.nc") as tree:
        assert sorted(tree.children) == ["000003", "000007"]
        for sample in samples:
            dataset = tree[f"{sample.seed:06d}"].to_dataset()
            assert_holds(dataset, sample)
            assert dataset["values"].attrs["units"] == "mV" and dataset["time"].attrs["units"] == "ms"
            assert dataset["x"].attrs["units"] == "mm" and dataset.attrs["commit"] == "c0ffee"
            assert json.loads(dataset.attrs["problem"]) == to_json(toy_waves)


def test_waves_keep_their_units_activation_and_regions(tmp_path: Path):
    ball = sphere(1)
    domain = make_domain(ball.points, ball.cells, regions={"top": np.array([0, 3]), "rest": np.array([5])})
    n, times = domain.n_nodes, np.array([0.0, 1.0])
    activation = np.where(np.arange(n) < 5, 0.5, np.nan)
    values = np.zeros((2, n), dtype=np.float32)
    prediction = Prediction(
        times_ms=times, values_mV=values, activation_ms=activation, sites=domain.points[:1], even_mV=values, first_ms=0.5,
        seconds={}, warnings=("far from what it knows",),
    )  # fmt: skip
    paced = Paced(
        times_ms=times, values_mV=values[None], activation_ms=activation[None], repolarisation_ms=activation[None]
    )  # fmt: skip
    as_xarray(prediction, domain, attrs={"model": "atria"}).to_netcdf(tmp_path / "wave.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "wave.nc") as dataset:
        assert dict(dataset.sizes) == {"trajectory": 1, "time": 2, "node": n, "dim": 3, "other_dim": 3, "region": 2} | {
            "cell": len(domain.cells), "corner": 3, "site": 1,
        }  # fmt: skip
        assert dataset["values"].attrs["units"] == "mV" and dataset["time"].dtype == np.float64
        np.testing.assert_array_equal(dataset["activation"][0], activation)
        np.testing.assert_array_equal(np.flatnonzero(dataset["is_in_region"].sel(region="top")), [0, 3])
        assert dataset.attrs == {"model": "atria", "first_ms": 0.5, "warnings": "far from what it knows"}
    assert {"activation", "repolarisation"} <= set(as_xarray(paced, domain))


def test_a_trajectory_needs_no_domain_but_not_one_of_another_size():
    trajectory = Trajectory(times=np.arange(2.0), values=np.zeros((2, 7)))
    assert dict(as_xarray(trajectory).sizes) == {"trajectory": 1, "time": 2, "node": 7}
    with pytest.raises(InputError, match="values at 7 nodes, but a domain of 12"):
        as_xarray(trajectory, sphere(0))


def test_the_python_example_in_the_document_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), flags=re.DOTALL)
    scope: dict[str, Any] = {}
    exec(example, scope)
    assert dict(scope["dataset"].sizes)["time"] == 11 and scope["dataset"].attrs["about"]


# Refusals.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "nobody", "--out", "x.onnx"], "no shipped model 'nobody'"),
        (["export", "heat", "--out", "x.txt"], "models are written as .onnx or .pt2, trajectories as .nc"),
        (["export", "heat", "--out", "taken/x.onnx"], "can't be written"),
        (["export", "runs/none", "--out", "x.pt2"], "no run there"),
        (["export", "nowhere", "--out", "x.nc"], "neither a data folder nor one of its samples"),
        (["export", "empty", "--out", "x.nc"], "holds no trajectories"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, monkeypatch: Patch, capsys: Capture, words: list[str], said: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file, not a folder")
    (tmp_path / "empty").mkdir()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize(
    ("module", "out", "extra"),
    [("onnxscript", "x.onnx", "export"), ("onnxruntime", "x.onnx", "export"), ("xarray", "x.nc", "notebooks")],
)
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: Patch, capsys: Capture, module: str, out: str, extra: str):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["export", "heat", "--out", str(tmp_path / out)]) == 2
    assert f"pip install 'gfunk[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variant", "suffix", "said"),
    [
        (small_variant("fno"), ".pt2", "works on one grid alone"),
        pytest.param(small_variant("gnn"), ".onnx", "as .pt2 it can be exported", marks=pytest.mark.slow),
        (replace(small_variant(), network=replace(small_variant().network, local_width=2)), ".pt2", "local_width=0"),
    ],
)
def test_a_network_that_no_file_can_hold_is_refused(tmp_path: Path, variant: Variant, suffix: str, said: str):
    with pytest.raises(InputError, match=said):
        export_model(str(make_run(tmp_path / "run", variant)), tmp_path / f"model{suffix}")


def test_nothing_but_exports_needs_the_extras():
    extras = ("onnx", "onnxscript", "onnxruntime", "xarray", "h5netcdf")
    program = f"import sys; sys.modules |= dict.fromkeys({extras}); import gfunk.cli, gfunk.exporting.fronts"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
