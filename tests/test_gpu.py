"""What only a CUDA GPU can show (make gpu): the same numbers as on the CPU, and recorded iterations that change nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import batch_of, turning_square, with_diffusion
from toy_heat import logged, small_options, small_variant, toy_set, train_small
from toy_surfaces import strip
from toy_waves import train_waves, wave_set, wave_variant

from gfunk.domain import halved, rectangle
from gfunk.evaluation import evaluate
from gfunk.experiments import seeded_operator
from gfunk.first_waves import FirstWave, first_waves_together, tissue_on
from gfunk.operators.arrival import Arrival, ArrivalConfig
from gfunk.operators.eikonal import marched
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import coupling
from gfunk.physics.stimulus import Stimulus
from gfunk.recipes import atrium_data
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.replay import Replay
from gfunk.rollout import Adaptive
from gfunk.store import read_sample
from gfunk.training import mean_loss, train, with_firsts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TRAINED = ("ours", "paper", "fno", "gnn", "gnn-unweighted")


def losses(run: Path) -> list[float]:
    return [epoch["loss"] for epoch in logged(run)]


@pytest.mark.parametrize("name", TRAINED)
def test_recorded_iterations_learn_what_launched_ones_do(name: str, toy_data: Path, tmp_path: Path):
    # A growing horizon: several recordings share their memory.
    growing = {"epochs": 6, "first_horizon": 1, "growth": 0.8}
    _, replayed = train_small(toy_data, tmp_path / "replayed", name, settings=growing, device="cuda")
    _, launched = train_small(toy_data, tmp_path / "launched", name, settings=growing, device="cuda", replays=False)
    assert losses(tmp_path / "replayed") == pytest.approx(losses(tmp_path / "launched"), rel=1e-3)
    assert replayed.best_validation == pytest.approx(launched.best_validation, rel=1e-3)


@pytest.mark.parametrize("name", TRAINED)
def test_a_gpu_learns_what_a_cpu_does(name: str, toy_data: Path, tmp_path: Path):
    train_small(toy_data, tmp_path / "gpu", name, device="cuda")
    train_small(toy_data, tmp_path / "cpu", name)
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)


@pytest.mark.parametrize("name", TRAINED)
def test_a_gpu_predicts_what_a_cpu_does(name: str, toy_data: Path):
    variant = small_variant(name)
    data = toy_set(toy_data, "test", name)
    operator = seeded_operator(variant)
    on_cpu, on_gpu = (evaluate(operator.to(to).eval(), data.to(to), variant.integrator) for to in ("cpu", "cuda"))
    assert on_gpu.rel_l2 == pytest.approx(on_cpu.rel_l2, rel=1e-4)


@pytest.mark.parametrize(
    "how", [{"half_precision": True}, {"saves_memory": True}, {"strides": ((1, 1), (2, 1), (1, 2))}], ids=str
)
def test_settings_of_training_can_be_recorded(how: dict, toy_data: Path, tmp_path: Path):
    _, replayed = train_small(toy_data, tmp_path / "replayed", settings=how, device="cuda")
    _, launched = train_small(toy_data, tmp_path / "launched", settings=how, device="cuda", replays=False)
    assert replayed.best_validation == pytest.approx(launched.best_validation, rel=1e-2)


@pytest.mark.parametrize("how", [{}, {"n_sizes": 3}, {"half_precision": True}], ids=str)
def test_recorded_iterations_of_a_direct_operator_learn_what_launched_ones_do(how: dict, tmp_path: Path):
    # Times drawn anew for each batch are values to a recording: one serves them all.
    settings, close = {"epochs": 6} | how, 1e-2 if how.get("half_precision") else 1e-3
    _, replayed = train_waves(tmp_path / "replayed", settings=settings, device="cuda")
    _, launched = train_waves(tmp_path / "launched", settings=settings, device="cuda", replays=False)
    assert losses(tmp_path / "replayed") == pytest.approx(losses(tmp_path / "launched"), rel=close)
    assert replayed.best_validation == pytest.approx(launched.best_validation, rel=close)


def test_a_recorded_validation_reads_no_memory_given_away():
    variant, data = wave_variant(), wave_set("val", 3).to(torch.device("cuda"))
    operator, config = seeded_operator(variant).cuda(), variant.training
    assert config is not None
    data, replay = with_firsts(operator, data, config), Replay(True)
    first = mean_loss(operator, data, variant.integrator, config, replay)
    # What the first call left, others take.
    taken = [torch.full((n,), 1, device="cuda") for n in range(1, 64) for _ in range(8)]
    assert mean_loss(operator, data, variant.integrator, config, replay) == pytest.approx(first, rel=1e-6)
    assert len(taken) == 63 * 8


def test_a_gpu_learns_waves_as_a_cpu_does(tmp_path: Path):
    train_waves(tmp_path / "gpu", device="cuda")
    train_waves(tmp_path / "cpu")
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)


def test_a_gpu_predicts_waves_as_a_cpu_does():
    variant, data = wave_variant(), wave_set("val", 3)
    operator = seeded_operator(variant)
    on_cpu, on_gpu = (evaluate(operator.to(to).eval(), data.to(to), variant.integrator) for to in ("cpu", "cuda"))
    assert on_gpu.rel_l2 == pytest.approx(on_cpu.rel_l2, rel=1e-4)


def test_fronts_of_many_domains_arrive_on_a_gpu_when_they_do_on_a_cpu():
    data, operator = wave_set("train", 8), seeded_operator(wave_variant())
    assert isinstance(operator, Arrival)
    start = data.values[:, 0]
    on_cpu = operator.first(start, data.batch)
    on_gpu = operator.to("cuda").first(start.to("cuda"), data.batch.to("cuda")).cpu()
    # In ms.
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-5, atol=1e-4)
    # From random times, where a front comes from everywhere.
    random = 5 * torch.rand(3, *start.shape[:2], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        marched(random.to("cuda"), data.batch.to("cuda")).cpu(), marched(random, data.batch), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("has_triton", [True, False])
def test_slowed_fronts_of_a_gpu_are_those_of_a_cpu(has_triton: bool, monkeypatch: pytest.MonkeyPatch):
    for module in ("eikonal", "front_solver", "fronts"):
        monkeypatch.setattr(f"gfunk.operators.{module}.HAS_TRITON", has_triton)
    for accuracy in ("SLOWED_ACCURACY", "MET_ACCURACY"):
        monkeypatch.setattr(f"gfunk.operators.fronts.{accuracy}", 1e-10)
    operator = Arrival(ArrivalConfig(speed=30.0, time_scale=0.1, ray_times=(0.002, 0.01)))
    batch = batch_of(turning_square(0.002, 4.0), n_modes=1)
    for seed in range(2):
        centres = torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, (3, 1, 2)))
        u = torch.exp(-(batch.points - centres).square().sum(-1, keepdim=True) / 0.01)
        on_cpu = operator.first(u, batch)
        on_gpu = operator.first(u.to("cuda"), batch.to("cuda")).cpu()
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-6, atol=1e-7 * float(on_cpu.abs().max()))


def test_a_resumed_run_of_waves_on_a_gpu_is_the_run_never_stopped(tmp_path: Path):
    train_waves(tmp_path / "whole", device="cuda")
    train_waves(tmp_path / "parts", device="cuda", minutes=0.0)
    train_waves(tmp_path / "parts", device="cuda", resume=True)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_a_compiled_step_can_be_recorded(toy_data: Path, tmp_path: Path):
    # In its own process, as checked signatures can't be compiled.
    command = [sys.executable, "-m", "gfunk.cli", "train", "heat", *small_options("paper"), "--data", toy_data]
    for folder, how in (("compiled", ["--compile"]), ("plain", [])):
        subprocess.run([*command, "--device", "cuda", "--out", tmp_path / folder, *how], check=True)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-2)


def test_a_resumed_run_on_a_gpu_is_the_run_never_stopped(toy_data: Path, tmp_path: Path):
    settings = {"epochs": 4}
    train_small(toy_data, tmp_path / "whole", settings=settings, device="cuda")
    train_small(toy_data, tmp_path / "parts", settings=settings, device="cuda", minutes=0.0)
    assert len(losses(tmp_path / "parts")) == 1
    train_small(toy_data, tmp_path / "parts", settings=settings, device="cuda", resume=True)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_an_adaptive_integrator_is_launched_not_recorded(toy_data: Path, tmp_path: Path):
    pytest.importorskip("torchdiffeq")
    variant = small_variant("paper", epochs=1)
    sets = [toy_set(toy_data, split, "paper", 2).to("cuda") for split in ("train", "val")]
    assert variant.training is not None
    outcome = train(seeded_operator(variant).to("cuda"), *sets, Adaptive(), variant.training, tmp_path)
    assert outcome.epochs == 1


def test_a_gpu_carries_the_waves_a_cpu_does():
    sheets = [with_diffusion(rectangle(width, 2.0, 0.2), np.diag([0.2, 0.05])) for width in (4.0, 5.0)]
    protocols = [[[Stimulus(sites=((0.0, 0.0),))], [Stimulus(sites=((2.0, 2.0),), start_ms=3.03)]] for _ in sheets]
    times = [0.0, 5.0, 7.77, 20.0]
    on_cpu, on_gpu = (simulate_many(sheets, protocols, times, device=device, compiles=False) for device in ("cpu", "cuda"))
    for expected, got in zip(on_cpu, on_gpu, strict=True):
        np.testing.assert_allclose(got.values_mV, expected.values_mV, atol=0.05)
        np.testing.assert_allclose(got.activation_ms, expected.activation_ms, atol=1e-3)


def test_waves_of_a_gpu_do_not_depend_on_their_company():
    sheets = [with_diffusion(rectangle(width, 2.0, 0.2), np.diag([0.2, 0.05])) for width in (4.0, 5.0)]
    protocols = [[[Stimulus(sites=((0.0, 0.0),))]], [[Stimulus(sites=((2.0, 2.0),), start_ms=3.03)]]]
    together = simulate_many(sheets, protocols, [5.0, 15.0], device="cuda", compiles=False)
    for sheet, protocol, got in zip(sheets, protocols, together, strict=True):
        alone = simulate_many([sheet], [protocol], [5.0, 15.0], device="cuda", compiles=False)[0]
        np.testing.assert_array_equal(got.values_mV, alone.values_mV)


def test_first_waves_cut_out_on_a_gpu_are_those_of_a_cpu_and_do_not_depend_on_their_company():
    sheet, pacing, times = strip(), AtrialPacing(), np.array([2.0, 5.0, 10.0])
    batch, step = batch_of(sheet, n_modes=2, dtype=torch.float32), coupling(halved(sheet, 1), pacing.scheme)
    stimuli = [pacing.stimulus((x, y, z)) for x, y, z in sheet.points[[0, 300, 660]].tolist()]

    def solved(device: str, some: list[Stimulus]) -> list[FirstWave]:
        there = tissue_on(torch.device(device), sheet, halved(sheet, 1), step)
        return first_waves_together(sheet, batch.to(device), some, times, pacing, there, compiles=False)

    on_cpu, on_gpu = (solved(device, stimuli) for device in ("cpu", "cuda"))
    for stimulus, expected, got in zip(stimuli, on_cpu, on_gpu, strict=True):
        assert got.n_stepped == pytest.approx(expected.n_stepped, rel=0.01) and got.n_stepped < len(step.neighbors[0])
        np.testing.assert_allclose(got.values_mV, expected.values_mV, atol=0.05)
        np.testing.assert_allclose(got.activation_ms, expected.activation_ms, atol=1e-3)
        np.testing.assert_array_equal(solved("cuda", [stimulus])[0].values_mV, got.values_mV)


def test_converged_waves_of_a_gpu_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(atrium_data, "left_atrium", lambda *_args, **_settings: strip(12.0, 4.0, 1.0))
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    pacing = AtrialPacing(cell="mitchell-schaeffer", every_ms=2.0, n_saves=3)
    problem = AtriumProblem(pacing=pacing, n_sites=2, n_halvings=0, is_converged=True)
    on_cpu, on_gpu = (next(problem.solved([problem.experiment(0)], device)) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(on_gpu.values, on_cpu.values, atol=0.5)


def test_a_dataset_made_on_a_gpu_is_that_of_a_cpu(tmp_path: Path):
    words = ["simulate", "rectangles", "--seed", "7", "--n", "2", "--set", "pacing.edge_mm=0.4", "--set", "pacing.n_saves=2"]
    for device in ("cpu", "cuda"):
        command = [sys.executable, "-m", "gfunk.cli", *words, "--out", tmp_path / device, "--device", device]
        subprocess.run(command, check=True)
    for seed in (7, 8):
        on_cpu, on_gpu = (read_sample(tmp_path / device / "train", seed) for device in ("cpu", "cuda"))
        np.testing.assert_array_equal(on_gpu.domain.points, on_cpu.domain.points)
        np.testing.assert_allclose(on_gpu.values, on_cpu.values, atol=0.5)
