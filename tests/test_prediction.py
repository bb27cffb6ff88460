"""Waves on a user's mesh: laws that hold for any operator, learned or not."""

import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import batch_of, random_rotation, relabelled, shaken_box, turned
from toy_surfaces import ACROSS, EDGE_MM, PROBLEM, egg, fibrous, strip, write_untrained

from gfunk import foretelling, load_pretrained, readiness
from gfunk.activation import ACTIVE_MV
from gfunk.batch import TrajectorySet
from gfunk.batched_modes import batched_modes
from gfunk.domain import Domain, fibre_tensors, halved, make_domain, refined
from gfunk.errors import InputError
from gfunk.evaluation import evaluate
from gfunk.foretelling import AT_REST, BEHIND_MS, FADING_MS, UNFELT
from gfunk.homogenising import homogenised
from gfunk.laplacian import laplacian
from gfunk.operators.arrival import Arrival
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import Scheme
from gfunk.prediction import Prediction, asked_times, carried_back, compared, predict, predicted
from gfunk.prediction_report import shown_moments
from gfunk.readiness import Ready, made_ready
from gfunk.recipes.heat_data import HeatProblem
from gfunk.rollout import rollout
from gfunk.runs import read_card, write_bounds, write_card
from gfunk.sites import site_at, usual_site
from gfunk.surface import cross, main_tangents, triangle_normals
from gfunk.trust import Bounds, Trust, seen_in
from gfunk.user_cache import trim_cache, user_cache

TIMES = asked_times(30.0, 2.5)
SCALE_MV = 105.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untrained(tmp_path_factory.mktemp("untrained"))


@pytest.fixture(scope="module")
def ready(run: Path) -> Ready:
    return made_ready(surface(), run, cache=None)


@pytest.fixture(scope="module")
def wave(ready: Ready) -> Prediction:
    (found,) = predicted(ready, [[100]], TIMES)
    return found


@cache
def surface() -> Domain:
    """Even enough to be taken as it is."""
    return egg()


@cache
def finer() -> Domain:
    """The same surface with edges half as long."""
    points, cells = refined(surface())
    return make_domain(points, cells, np.tile(surface().diffusion, (4, 1, 1)), diffusion_at="cell")


def test_a_mesh_that_is_even_is_taken_as_it_is(ready: Ready, wave: Prediction):
    assert ready.even is ready.domain and ready.back is None
    assert np.array_equal(wave.values_mV, wave.even_mV)


def rolled_out(ready: Ready, wave: Prediction) -> np.ndarray:
    """What the operator alone says, from its first time on, in mV."""
    offset, scale = ready.problem.offset, ready.problem.scale
    u = (torch.from_numpy(wave.values_mV[TIMES == 10.0]) - offset) / scale
    with torch.no_grad():
        later = rollout(ready.operator, u[..., None], ready.batch, [2.5] * int((TIMES > 10).sum()), ready.variant.integrator)
    return later[0, :, :, 0].numpy() * scale + offset


def test_the_operator_is_rolled_out_from_its_first_time(ready: Ready, wave: Prediction):
    added = wave.values_mV[TIMES >= 10.0] - rolled_out(ready, wave)
    is_behind = wave.activation_ms <= 10.0 - BEHIND_MS
    assert np.abs(added[:, ~is_behind]).max() < 1e-3
    # What it missed of the first state where the wave has been.
    fading = added[1:, is_behind]
    assert np.abs(fading[0]).max() > 1
    assert np.allclose(fading[1:], fading[:-1] * np.exp(-2.5 / FADING_MS), atol=1e-3)


def test_where_the_wave_has_been_nothing_jumps_as_the_operator_takes_over(ready: Ready, wave: Prediction):
    (moment,) = predicted(ready, [[100]], np.array([10.0, 10.001]))
    step = np.abs(np.diff(moment.values_mV, axis=0)[0])
    is_behind = wave.activation_ms <= 10.0 - BEHIND_MS
    assert is_behind.sum() > 20 and step[is_behind].max() < 0.1 and step.max() > 1


def test_up_to_the_operators_first_time_the_wave_is_the_solvers(ready: Ready, wave: Prediction):
    early = TIMES[TIMES <= 10.0]
    pacing = ready.problem.pacing
    x, y, z = surface().points[100].tolist()
    (truth,) = simulate_many(
        [surface()], [[[pacing.stimulus((x, y, z))]]], early,
        cell=pacing.cell, scheme=pacing.scheme, compiles=False, activated_mV=ACTIVE_MV,
    )  # fmt: skip
    assert np.abs(wave.values_mV[: len(early)] - truth.values_mV[0]).max() < 1e-3 * SCALE_MV
    came = np.isfinite(truth.activation_ms[0])
    assert np.abs(wave.activation_ms[came] - truth.activation_ms[0, came]).max() < 0.01
    assert not (wave.activation_ms[~came] < 10.0).any()


def test_a_view_that_homogenises_is_the_operators_alone(run: Path, tmp_path: Path):
    """The solver, its first wave, and what is said of the tissue stay with K as it is."""
    normals = triangle_normals(surface().points, surface().cells)
    along = main_tangents(surface().diffusion, normals)
    angle = np.deg2rad(20) * np.random.default_rng(0).normal(size=(len(normals), 1))
    fibres = np.cos(angle) * along + np.sin(angle) * cross(normals, along)
    tensors = fibre_tensors(fibres, 5 * ACROSS, ACROSS)
    rough = make_domain(surface().points, surface().cells, tensors, diffusion_at="cell")
    shutil.copytree(run, tmp_path / "run")
    card = read_card(run)
    view = replace(card.variant.view, homogenises=True)
    write_card(tmp_path / "run", replace(card, variant=replace(card.variant, view=view)))
    plain, seen = made_ready(rough, run, cache=None), made_ready(rough, tmp_path / "run", cache=None)
    expected = batch_of(homogenised(rough), n_modes=12, dtype=torch.float32)
    for name in ("fibres", "couplings", "sides", "eigenvalues"):
        torch.testing.assert_close(getattr(seen.batch, name), getattr(expected, name))
        assert not torch.allclose(getattr(seen.batch, name), getattr(plain.batch, name), rtol=1e-3)
    assert seen.even is rough and torch.equal(seen.coupling.couplings, plain.coupling.couplings)
    assert seen.warnings == plain.warnings and any("degrees per mm" in said for said in seen.warnings)
    waves = [predicted(each, [[100]], TIMES)[0].values_mV for each in (plain, seen)]
    is_early = TIMES <= 10.0
    assert np.abs(waves[0] - waves[1])[is_early].max() < 1e-3 * SCALE_MV < np.abs(waves[0] - waves[1])[~is_early].max()


@torch.no_grad()
def test_activation_is_when_values_rise_through_the_threshold_not_when_the_network_says_arrival():
    operator, _ = load_pretrained("atria")
    assert isinstance(operator, Arrival)
    n_nodes = 50
    known = torch.full((1, n_nodes, 3), operator.config.resting)
    latents = 0.1 * torch.randn(1, n_nodes, operator.config.n_latents, generator=torch.Generator().manual_seed(0))
    arrival = torch.linspace(5, 60, n_nodes)[None, :, None]
    late = foretelling._activated(operator, known[..., :1], arrival, latents)[..., None] - arrival
    assert late.abs().max() < 1 and (late != 0).any()
    then = operator.profile(late[:, None], torch.cat([known[..., :1], latents], dim=-1))[:, 0]
    assert (then - operator.config.threshold).abs()[late != 0].max() < 0.02


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_tissue_at_rest_stays_as_it_was_until_the_wave_can_be_felt(seed: int, at_once: int):
    operator, _ = load_pretrained("atria")
    assert isinstance(operator, Arrival)
    rng, resting = torch.Generator().manual_seed(seed), operator.config.resting
    u = resting + 1.5 * AT_REST * torch.rand(1, 40, 1, generator=rng)
    arrival, latents = 60 * torch.rand(1, 40, 1, generator=rng) - 10, torch.randn(1, 40, 8, generator=rng)
    times = torch.cat([torch.zeros(1), 50 * torch.rand(20, generator=rng)]).sort().values
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(foretelling, "NODES_AT_ONCE", at_once)
        found = foretelling._told(operator, u, arrival, latents, times)
        everywhere = operator.told(u, arrival, latents, times)
    # Ahead of a wave u rises from rest as exp(speed^2 t).
    risen = torch.exp(operator.config.speed**2 * (times[:, None, None] - arrival[:, None]))
    is_unfelt = (risen < UNFELT) & ((u - resting).abs() < AT_REST)[:, None]
    assert is_unfelt.any() and not is_unfelt.all()
    torch.testing.assert_close(found, torch.where(is_unfelt, u[:, None], everywhere), rtol=0, atol=1e-5)


def test_where_the_wave_does_not_come_in_time_it_has_no_time(ready: Ready, wave: Prediction):
    (short,) = predicted(ready, [[100]], asked_times(12.5, 2.5))
    assert np.isfinite(wave.activation_ms).sum() > np.isfinite(short.activation_ms).sum() > 0
    assert np.array_equal(
        short.activation_ms, np.where(wave.activation_ms <= 12.5, wave.activation_ms, np.nan), equal_nan=True
    )


def test_a_wave_does_not_depend_on_which_other_times_are_asked_for(ready: Ready, wave: Prediction):
    (sparse,) = predicted(ready, [[100]], np.array([7.5, 20.0]))
    assert np.allclose(sparse.values_mV, wave.values_mV[[3, 8]], atol=1e-3)


@pytest.mark.parametrize("until_ms", [20.0, 29.9])
def test_a_wave_that_has_begun_is_the_beginning_of_all_of_it(ready: Ready, wave: Prediction, until_ms: float):
    begun: list[Prediction] = []
    (found,) = predicted(ready, [[100]], TIMES, begun_ms=until_ms, on_begun=begun.append)
    np.testing.assert_allclose(found.values_mV, wave.values_mV, atol=1e-3)
    (first,), is_begun = begun, until_ms >= TIMES
    np.testing.assert_array_equal(first.times_ms, TIMES[is_begun])
    np.testing.assert_array_equal(first.values_mV, found.values_mV[is_begun])
    np.testing.assert_array_equal(first.activation_ms, found.activation_ms)
    assert (first.warnings, first.trust) == (found.warnings, found.trust)


@pytest.mark.parametrize("until_ms", [0.0, 11.0, 30.0])
def test_where_nothing_was_predicted_or_all_of_it_no_wave_is_said_to_have_begun(ready: Ready, until_ms: float):
    begun: list[Prediction] = []
    predicted(ready, [[100]], TIMES, begun_ms=until_ms, on_begun=begun.append)
    assert begun == []


def test_two_protocols_in_one_call_are_those_of_two_calls(ready: Ready, wave: Prediction):
    one, other = predicted(ready, [[100], [7, 300]], TIMES)
    (alone,) = predicted(ready, [[7, 300]], TIMES)
    for together, apart in ((one, wave), (other, alone)):
        assert np.allclose(together.values_mV, apart.values_mV, atol=1e-3)
        assert np.allclose(together.activation_ms, apart.activation_ms, atol=1e-3, equal_nan=True)
    assert not np.allclose(one.values_mV, other.values_mV, atol=1.0)


@settings(max_examples=2)
@given(seed=st.integers(0, 1000))
def test_relabelling_the_nodes_relabels_the_wave(run: Path, wave: Prediction, seed: int):
    order = np.random.default_rng(seed).permutation(surface().n_nodes)
    moved = made_ready(relabelled(surface(), order), run, cache=None)
    (found,) = predicted(moved, [[int(np.flatnonzero(order == 100)[0])]], TIMES)
    assert np.allclose(found.values_mV, wave.values_mV[:, order], atol=0.02)
    assert np.allclose(found.activation_ms, wave.activation_ms[order], atol=0.01, equal_nan=True)


@settings(max_examples=2)
@given(seed=st.integers(0, 1000))
def test_a_wave_turns_and_moves_with_mesh_and_sites(run: Path, wave: Prediction, seed: int):
    rotation, move = random_rotation(3, seed), np.random.default_rng(seed).normal(0, 50, 3)
    there = turned(surface(), rotation)
    there = replace(there, points=there.points + move)
    (found,) = predicted(made_ready(there, run, cache=None), [[rotation @ surface().points[100] + move]], TIMES)
    assert np.allclose(found.values_mV, wave.values_mV, atol=0.02)
    assert np.allclose(found.activation_ms, wave.activation_ms, atol=0.01, equal_nan=True)


def test_a_finer_mesh_is_resampled_and_has_nearly_the_same_wave(run: Path, wave: Prediction):
    ready = made_ready(finer(), run, cache=None)
    (found,) = predicted(ready, [[100]], TIMES)
    assert ready.even.n_nodes < finer().n_nodes / 2 and found.values_mV.shape == (len(TIMES), finer().n_nodes)
    n_old = surface().n_nodes
    both = np.isfinite(found.activation_ms[:n_old]) & np.isfinite(wave.activation_ms)
    assert both.mean() > 0.9
    late = found.activation_ms[:n_old][both] - wave.activation_ms[both]
    assert np.abs(late).mean() < 0.7


def test_on_shorter_edges_than_learned_all_is_finer_and_no_bounds_are_known(ready: Ready, tmp_path: Path):
    half, run = EDGE_MM / 2, write_untrained(tmp_path, ray_times=(2.0,))
    write_bounds(run, [Bounds(share=0.9, rel_l2=0.01, lat_error_ms=0.1, lat_error_ms_95=0.2, n_waves=20, n_domains=5)])
    as_it_is, resampled = (made_ready(mesh, run, edge_mm=half, cache=None) for mesh in (finer(), surface()))
    assert made_ready(surface(), run, edge_mm=EDGE_MM, cache=None).bounds is not None
    assert as_it_is.bounds is None and resampled.bounds is None
    assert as_it_is.even is as_it_is.domain and 3.5 < resampled.even.n_nodes / ready.even.n_nodes < 4.5
    # So are the solver's triangles, in which a wave starts and with which it is compared.
    assert as_it_is.problem == replace(ready.problem, kept_edge_mm=half)
    assert as_it_is.tissue.n_nodes == finer().n_nodes
    (wave,) = predicted(as_it_is, [[100]], TIMES)
    assert wave.values_mV.shape == (len(TIMES), finer().n_nodes) and np.isfinite(wave.values_mV).all()


@pytest.mark.parametrize("edge_mm", [0.0, -1.0, 1.01 * EDGE_MM, np.nan, np.inf])
def test_edges_longer_than_learned_or_none_are_refused(run: Path, edge_mm: float):
    with pytest.raises(InputError, match=r"the model has learned on 1\.5 mm, and was tried on shorter ones alone"):
        made_ready(surface(), run, edge_mm=edge_mm, cache=None)


def test_a_model_of_true_waves_has_its_own_edges_alone(tmp_path: Path):
    run = write_untrained(tmp_path, problem=replace(PROBLEM, is_converged=True))
    assert made_ready(surface(), run, edge_mm=EDGE_MM, cache=None).even is surface()
    with pytest.raises(InputError, match=r"edges of 0\.75 mm: the model says true waves on 1\.5 mm"):
        made_ready(surface(), run, edge_mm=EDGE_MM / 2, cache=None)


def test_a_model_that_is_not_told_how_coarse_a_mesh_is_has_its_own_edges_alone(run: Path):
    with pytest.raises(InputError, match=r"what it says is that of 1\.5 mm on any"):
        made_ready(surface(), run, edge_mm=EDGE_MM / 2, cache=None)


def test_edges_too_short_for_any_memory_are_refused_at_once(tmp_path: Path):
    run = write_untrained(tmp_path, ray_times=(2.0,))
    with pytest.raises(InputError, match=r"nodes, more than 300,000"):
        made_ready(surface(), run, edge_mm=1e-3, cache=None)


def test_what_is_carried_back_never_leaves_the_range_it_had(run: Path):
    ready = made_ready(finer(), run, cache=None)
    values = np.random.default_rng(0).normal(size=(40, ready.even.n_nodes)).astype(np.float32)
    back = carried_back(ready, values)
    assert back.dtype == np.float32 and (back.min(axis=1) >= values.min(axis=1) - 1e-6).all()
    assert (back.max(axis=1) <= values.max(axis=1) + 1e-6).all()
    # Linear on the even mesh, so linear functions of place come back exactly where the two surfaces meet.
    x = carried_back(ready, ready.even.points[:, :1].T.astype(np.float32))[0]
    assert np.abs(x - finer().points[:, 0]).max() < 0.2


def test_operators_that_go_step_by_step_predict_too(tmp_path: Path):
    ready = made_ready(surface(), write_untrained(tmp_path, steps=True), cache=None)
    begun: list[Prediction] = []
    (found,) = predicted(ready, [[100]], TIMES, begun_ms=20.0, on_begun=begun.append)
    assert begun == []  # activation is read off all values
    assert found.values_mV.shape == (len(TIMES), surface().n_nodes) and np.isfinite(found.values_mV).all()
    # Times are read off the values, which an untrained operator hardly changes.
    arrived = found.activation_ms[np.isfinite(found.activation_ms)]
    assert len(arrived) and arrived.min() < 10.0 and arrived.max() <= TIMES[-1]


def test_the_solvers_own_wave_is_found_faultless(ready: Ready, wave: Prediction):
    pacing, problem = ready.problem.pacing, ready.problem
    x, y, z = surface().points[100].tolist()
    (truth,) = simulate_many(
        [halved(surface(), problem.n_halvings)], [[[pacing.stimulus((x, y, z))]]], TIMES,
        cell=pacing.cell, scheme=pacing.scheme, compiles=False,
    )  # fmt: skip
    same = compared(ready, replace(wave, even_mV=truth.values_mV[0]), compiles=False)
    assert same.rel_l2 < 1e-6 and same.activation_error_ms is not None
    assert np.allclose(same.truth_mV, truth.values_mV[0], atol=1e-3)
    other = compared(ready, wave, compiles=False)
    late = TIMES > 10.0
    scaled = [(values[late] - problem.offset) / problem.scale for values in (wave.values_mV, truth.values_mV[0])]
    assert other.rel_l2 == pytest.approx(np.linalg.norm(scaled[0] - scaled[1]) / np.linalg.norm(scaled[1]), rel=1e-4)
    assert other.speedup > 0
    # As `gfunk evaluate` finds it, starting from the solver's own first state.
    is_asked = TIMES >= 10.0
    values = (truth.values_mV[0][None, is_asked, :, None] - problem.offset) / problem.scale
    data = TrajectorySet(
        batch=ready.batch, domain_of=torch.zeros(1, dtype=torch.int64), seeds=(0,),
        times=torch.from_numpy(TIMES[is_asked] - 10.0), values=torch.from_numpy(values),
    )  # fmt: skip
    alone = compared(ready, replace(wave, even_mV=np.concatenate([wave.even_mV[~is_asked], rolled_out(ready, wave)])))
    assert alone.rel_l2 == pytest.approx(evaluate(ready.operator, data, ready.variant.integrator).rel_l2, rel=1e-3)


def test_a_model_of_converged_waves_is_compared_with_those(tmp_path: Path):
    pacing, times = replace(PROBLEM.pacing, scheme="accurate", cell="mitchell-schaeffer"), asked_times(20.0, 2.5)
    converged = replace(PROBLEM, pacing=pacing, is_converged=True)
    converged = made_ready(surface(), write_untrained(tmp_path, problem=converged), cache=None)
    ready = replace(converged, problem=replace(converged.problem, is_converged=False))
    (wave,) = predicted(ready, [[100]], times)
    usual, steps = compared(ready, wave, compiles=False), []
    found = compared(converged, wave, compiles=False, on_step=steps.append)
    is_early, arrived = times <= 10.0, usual.truth_activation_ms > 10.0
    # It begins as the solver does, and parts from it as edges and steps make that late or early.
    assert np.allclose(found.truth_mV[is_early], usual.truth_mV[is_early], atol=1e-3)
    x, y, z = surface().points[100].tolist()
    (finer,) = simulate_many(
        [halved(surface(), 2)], [[[pacing.stimulus((x, y, z))]]], times, cell=pacing.cell, compiles=False,
        scheme=Scheme(dt_ms=0.05, mass="balanced"), activated_mV=ACTIVE_MV, kept=[np.arange(surface().n_nodes)],
    )  # fmt: skip
    usually_late, late = (
        np.nanmean(np.abs(each.truth_activation_ms - finer.activation_ms[0])[arrived]) for each in (usual, found)
    )
    assert late < usually_late / 3 and found.rel_l2 != usual.rel_l2
    assert steps == sorted(steps) and len(steps) > 10


def test_the_short_way_is_the_long_one(run: Path, wave: Prediction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path))
    found = predict(surface(), [surface().points[100]], until_ms=30.0, every_ms=2.5, model=run)
    assert np.allclose(found.values_mV, wave.values_mV, atol=1e-3)
    assert {"model", "resample", "modes", "first wave", "operator", "carry back"} == set(found.seconds)


def test_modes_and_even_meshes_are_found_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = made_ready(finer(), run, cache=tmp_path)
    assert {path.parent.name for path in tmp_path.glob("*/*.safetensors")} == {"modes", "meshes"}
    monkeypatch.setattr("gfunk.readiness.remeshed", None)
    monkeypatch.setattr("gfunk.store.lowest_modes", None)
    again = made_ready(finer(), run, cache=tmp_path)
    assert torch.equal(first.batch.synthesis, again.batch.synthesis)


def test_modes_found_on_a_gpu_are_those_of_a_cpu_and_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    matrices, calls = laplacian(egg()), []
    monkeypatch.setattr(
        readiness, "batched_modes", lambda *of, device: calls.append(device) or batched_modes(*of, device="cpu")
    )
    of_cpu = readiness._modes(matrices, 4, tmp_path, torch.device("cpu"))
    of_gpu, again = (readiness._modes(matrices, 4, tmp_path, torch.device("cuda")) for _ in range(2))
    assert [device.type for device in calls] == ["cuda"]
    np.testing.assert_allclose(of_gpu.eigenvalues, of_cpu.eigenvalues, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(again.eigenvectors, of_gpu.eigenvectors)
    assert {path.parent.name for path in tmp_path.rglob("*.safetensors")} == {"modes", "rounded-modes"}


def test_a_cache_keeps_the_newest_files_within_its_bound(tmp_path: Path):
    paths = [tmp_path / "modes" / f"{number}.safetensors" for number in range(4)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    trim_cache(tmp_path, most_bytes=250)
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_without_a_place_to_keep_things_nothing_fails(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "file" / "below"))
    assert user_cache() == tmp_path / "file" / "below"
    made_ready(surface(), run)


def test_a_site_is_a_node_a_region_or_the_nearest_place_on_the_surface():
    part = np.flatnonzero(surface().points[:, 2] > 10.0)
    domain = replace(surface(), regions={"RSPV": part, "LAA": part[:0]})
    assert site_at(domain, 5) == site_at(domain, np.int64(5)) == tuple(domain.points[5].tolist())
    node = int(np.flatnonzero((domain.points == site_at(domain, "rspv")).all(axis=1))[0])
    assert node in part and usual_site(domain)[0] == node
    assert np.allclose(site_at(domain, domain.points[5] * 1.05), domain.points[5], atol=0.5)
    with pytest.raises(InputError, match=r"region 'LAA'; known are RSPV$"):
        site_at(domain, "LAA")
    with pytest.raises(InputError, match=r"lies \d+\.\d mm from the surface: the nearest place on it is"):
        site_at(domain, 2 * domain.points[5])


@given(seed=st.integers(0, 2**32 - 1), last=st.floats(20.0, 90.0), every=st.sampled_from([0.5, 1.0, 2.5]))
def test_whenever_a_wave_is_shown_it_is_under_way(seed: int, last: float, every: float):
    arrived = np.random.default_rng(seed).uniform(0.0, last, 200).astype(np.float32)
    arrived[:2] = 0.0, last
    times = asked_times(100.0, every)
    values = np.where(times[:, None] < arrived, -85.0, 0.0)
    wave = Prediction(
        times_ms=times, values_mV=values, activation_ms=arrived, sites=np.zeros((1, 3)), even_mV=values, first_ms=10.0,
        seconds={},
    )  # fmt: skip
    moments = shown_moments(wave)
    assert times[moments[0]] == 10.0 and (np.diff(moments) > 0).all()
    assert all({-85.0, 0.0} == set(values[moment]) for moment in moments)


def test_bounds_are_given_where_nothing_speaks_against_a_wave_and_no_others(ready: Ready, wave: Prediction):
    bounds = Bounds(share=0.9, rel_l2=0.01, lat_error_ms=0.1, lat_error_ms_95=0.4, n_waves=20, n_domains=5)
    first = torch.from_numpy((wave.even_mV[wave.times_ms == ready.first_ms] - ready.problem.offset) / ready.problem.scale)
    known = TrajectorySet(
        batch=ready.batch, domain_of=torch.zeros(1, dtype=torch.int64), seeds=(0,), times=torch.zeros(1),
        values=first.float()[None, :, :, None],
    )  # fmt: skip
    trusted = replace(ready, warnings=(), trust=Trust(seen=seen_in(known)), bounds=bounds)
    alone, both = predicted(trusted, [[100], [100, 500]], TIMES)
    assert (alone.warnings, alone.bounds) == ((), bounds)
    assert "more tissue is active" in both.warnings[0] and both.bounds is None
    (doubted,) = predicted(replace(trusted, warnings=("strange",)), [[100]], TIMES)
    assert doubted.bounds is None and wave.bounds is None
    assert alone.trust.startswith("90 % of waves like this") and "only the solver can tell" in both.trust
    assert "never measured" in replace(alone, bounds=None).trust


def test_times_beyond_those_learned_are_said_to_be(ready: Ready):
    (long,) = predicted(ready, [[100]], np.array([60.0]))
    assert "learned times up to 50 ms" in long.warnings[-1]


def test_a_stimulus_without_a_wave_is_said_to_have_started_none(run: Path):
    quiet = made_ready(surface(), run, cache=None)
    pacing = replace(quiet.problem.pacing, strength=1.0)
    (found,) = predicted(replace(quiet, problem=replace(quiet.problem, pacing=pacing)), [[100]], TIMES)
    assert "started no wave" in found.warnings[-1]


def test_what_can_not_be_predicted_is_refused(ready: Ready, run: Path, tmp_path: Path):
    with pytest.raises(InputError, match="the model starts 10 ms after the stimulus"):
        predicted(ready, [[100]], np.array([5.0, 10.0]))
    with pytest.raises(InputError, match="must be finite, not negative, and rise"):
        predicted(ready, [[100]], np.array([20.0, 15.0]))
    with pytest.raises(InputError, match="at least one site"):
        predicted(ready, [[]], TIMES)
    with pytest.raises(InputError, match="has tetrahedra"):
        made_ready(shaken_box(3, np.eye(3)), run, cache=None)
    with pytest.raises(InputError, match="no shipped model 'nothing'"):
        made_ready(surface(), "nothing", cache=None)
    heat = write_untrained(tmp_path, problem=HeatProblem())
    with pytest.raises(InputError, match="not on atria"):
        made_ready(surface(), heat, cache=None)
    with pytest.raises(InputError, match=r"too long for this surface, 0\.024 mm wide: is its unit right"):
        made_ready(replace(surface(), points=surface().points / 1000), run, cache=None)
    with pytest.raises(InputError, match="more than 300,000, of this surface"):
        made_ready(replace(surface(), points=surface().points * 1000), run, cache=None)
    small = made_ready(strip(12.0, 9.0, EDGE_MM), run, cache=None)
    with pytest.raises(InputError, match="has been everywhere after 10 ms"):
        predicted(small, [[30]], TIMES)


def test_no_protocol_has_no_wave(ready: Ready):
    assert predicted(ready, [], TIMES) == []


def test_a_direction_of_space_makes_fibres_within_the_triangles():
    normals = np.cross(*(surface().points[surface().cells[:, k]] - surface().points[surface().cells[:, 0]] for k in (1, 2)))
    again = fibrous(surface().points, surface().cells, np.array([0.3, 0.2, 0.9]))
    pulled = np.einsum("cij,cj->ci", again.diffusion, normals)
    assert np.allclose(pulled, ACROSS * normals)
