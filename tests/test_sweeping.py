"""Waves from many sites: each is what it would be alone, and nothing finished is lost."""

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import relabelled
from scipy.sparse.csgraph import dijkstra
from toy_surfaces import egg, write_untrained

import gfunk
from gfunk import prediction, sweeping
from gfunk.batch import Batch
from gfunk.cli import main
from gfunk.domain import Domain, cell_sizes
from gfunk.errors import InputError
from gfunk.files.reading import read_mesh
from gfunk.files.vtk_write import write_vtp
from gfunk.first_waves import FirstWave
from gfunk.physics.stimulus import Stimulus
from gfunk.prediction import predicted, predicted_activation
from gfunk.readiness import Ready, made_ready
from gfunk.sites import site_at
from gfunk.sweep_report import site_rows, total_over_surface
from gfunk.sweeping import Sweep, edge_graph, spread_nodes, sweep_times, swept

Capture = pytest.CaptureFixture[str]
SITES = [100, 7, 300, 555, 20]
UNTIL_MS = 20.0


@cache
def surface() -> Domain:
    is_top = egg().points[:, 2] > 8.0
    parts = {"top": np.flatnonzero(is_top), "rest": np.flatnonzero(~is_top), "gone": np.flatnonzero(is_top & ~is_top)}
    return replace(egg(), regions=parts)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untrained(tmp_path_factory.mktemp("untrained"))


@pytest.fixture(scope="module")
def ready(run: Path) -> Ready:
    return made_ready(surface(), run, cache=None)


@pytest.fixture(scope="module")
def waves(ready: Ready) -> Sweep:
    return swept(ready, SITES, UNTIL_MS)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "cache"))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, atol=1e-3, equal_nan=True)


def made_up(*maps: list[float]) -> Sweep:
    """On all nodes beyond those given the wave comes as at the last of them."""
    rows = np.array([each + each[-1:] * (surface().n_nodes - len(each)) for each in maps], dtype=np.float32)
    return Sweep(domain=surface(), sites=surface().points[: len(rows)], activation_ms=rows, until_ms=50.0)


def test_each_wave_is_the_one_predicted_alone(ready: Ready, waves: Sweep):
    for site, found in zip(SITES, waves.activation_ms, strict=True):
        (alone,) = predicted(ready, [[site]], sweep_times(UNTIL_MS))
        assert same(found, alone.activation_ms)
    assert not same(waves.activation_ms[0], waves.activation_ms[1])


def test_so_it_is_with_operators_that_go_step_by_step(tmp_path: Path):
    ready = made_ready(surface(), write_untrained(tmp_path, steps=True), cache=None)
    found = swept(ready, SITES[:2], 15.5)
    for site, row in zip(SITES, found.activation_ms, strict=False):
        (alone,) = predicted(ready, [[site]], sweep_times(15.5))
        assert np.isfinite(row).any() and same(row, alone.activation_ms)


def test_an_operator_that_sees_waves_together_tells_of_each_what_it_would_alone(ready: Ready, waves: Sweep):
    places = [np.array([site_at(ready.domain, site)]) for site in SITES]
    found = predicted_activation(ready, places, sweep_times(UNTIL_MS), at_once=3)
    assert same(found, waves.activation_ms)


def test_a_gpu_finds_first_waves_itself(ready: Ready, monkeypatch: pytest.MonkeyPatch):
    called, at_rest = [], np.full((1, ready.even.n_nodes), np.nan, dtype=np.float32)
    wave = FirstWave(times_ms=np.array([10.0]), values_mV=at_rest, activation_ms=at_rest[0], n_stepped=0)

    def found_there(_domain: Domain, batch: Batch, stimuli: list[Stimulus], *_: Any, **__: Any) -> list[FirstWave]:
        called.append(batch.points.device.type)
        return [wave] * len(stimuli)

    monkeypatch.setattr(prediction, "first_waves_together", found_there)
    # A batch without values stands for one on a GPU.
    far = replace(ready, device=torch.device("cuda"), batch=ready.batch.to("meta"))
    vars(far).update(tissue_there=None)
    assert prediction._first_waves(far, [surface().points[:1]], wave.times_ms, None) == [wave]
    assert called == ["meta"]


def test_the_order_of_sites_orders_the_waves_and_no_more(ready: Ready, waves: Sweep):
    order = [3, 0, 4, 2, 1]
    again = swept(ready, [SITES[number] for number in order], UNTIL_MS)
    assert same(again.activation_ms, waves.activation_ms[order])
    assert np.array_equal(again.nodes, np.array(SITES)[order])


@settings(max_examples=2)
@given(seed=st.integers(0, 1000))
def test_relabelling_the_nodes_relabels_the_maps(run: Path, waves: Sweep, seed: int):
    order = np.random.default_rng(seed).permutation(surface().n_nodes)
    moved = relabelled(egg(), order)
    found = swept(made_ready(moved, run, cache=None), np.argsort(order)[SITES[:2]].tolist(), UNTIL_MS)
    assert np.allclose(found.activation_ms, waves.activation_ms[:2, order], atol=0.01, equal_nan=True)


def test_what_was_killed_goes_on_and_ends_as_if_it_never_stopped(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sweeping, "SITES_AT_ONCE", 2)
    never_stopped = swept(ready, SITES, UNTIL_MS)
    told: list[int] = []

    def killed(n_sites: int):
        told.append(n_sites)
        if sum(told) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(ready, SITES, UNTIL_MS, folder=tmp_path, on_sites=killed)
    assert told == [0, 2]
    told.clear()
    whole = swept(ready, SITES, UNTIL_MS, folder=tmp_path, on_sites=told.append)
    assert told == [2, 2, 1] and np.array_equal(whole.activation_ms, never_stopped.activation_ms, equal_nan=True)
    # All is there: nothing is found anew.
    monkeypatch.setattr(sweeping, "predicted_activation", None)
    again = swept(ready, SITES, UNTIL_MS, folder=tmp_path)
    assert np.array_equal(again.activation_ms, whole.activation_ms, equal_nan=True)


def test_a_damaged_file_is_made_again(ready: Ready, waves: Sweep, tmp_path: Path):
    swept(ready, SITES[:2], UNTIL_MS, folder=tmp_path)
    (path,) = tmp_path.glob("maps/*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    again = swept(ready, SITES[:2], UNTIL_MS, folder=tmp_path)
    assert same(again.activation_ms, waves.activation_ms[:2]) and path.read_bytes() == whole


def test_a_folder_with_other_settings_is_refused(ready: Ready, tmp_path: Path):
    swept(ready, SITES[:1], UNTIL_MS, folder=tmp_path)
    thicker = replace(ready, domain=replace(surface(), diffusion=1.01 * surface().diffusion))
    other = write_untrained(tmp_path / "steps", steps=True)
    for of, sites, until, what in (
        (ready, SITES[:1], 21.0, "time"),
        (ready, SITES[1:2], UNTIL_MS, "choice of sites"),
        (thicker, SITES[:1], UNTIL_MS, "mesh"),
        (made_ready(surface(), other, cache=None), SITES[:1], UNTIL_MS, "model"),
    ):
        with pytest.raises(InputError, match=f"holds a sweep with another {what}: choose another folder"):
            swept(of, sites, until, folder=tmp_path)


def test_the_total_time_is_the_last_of_the_map(waves: Sweep):
    assert np.array_equal(waves.total_ms, np.nanmax(waves.activation_ms, axis=1))
    assert np.array_equal(waves.total_ms, waves.activation_ms[np.arange(len(SITES)), waves.last_nodes])
    assert (waves.total_ms <= UNTIL_MS).all() and (waves.mean_ms < waves.total_ms).all()


def test_shares_and_means_are_of_the_area():
    area = np.bincount(surface().cells.ravel(), np.repeat(cell_sizes(surface().points, surface().cells), 3) / 3)
    found = made_up([10.0, np.nan, 30.0], [5.0])
    assert found.share[0] == pytest.approx(1 - area[1] / area.sum()) and found.share[1] == 1
    kept = area.sum() - area[1]
    assert np.allclose(found.mean_ms, [(10 * area[0] + 30 * (kept - area[0])) / kept, 5.0])


def test_waves_that_are_not_everywhere_in_time_are_later_than_all_others():
    found = made_up([10.0, 40.0], [np.nan, 20.0], [10.0, 30.0], [np.nan, np.nan, 5.0], [np.nan])
    assert found.earliest_first.tolist() == [2, 0, 1, 3, 4]
    assert np.isnan(found.total_ms[4]) and np.isnan(found.mean_ms[4]) and found.share[4] == pytest.approx(0)
    assert site_rows(found)[4]["last_node"] is None


def test_waves_cut_short_are_said_to_be(ready: Ready, waves: Sweep):
    short = swept(ready, SITES[:2], 11.0)
    assert any("2 of 2 waves are not everywhere after 11 ms" in sentence for sentence in short.warnings)
    assert same(short.activation_ms, np.where(waves.activation_ms[:2] <= 11.0, waves.activation_ms[:2], np.nan))


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n_sites=st.integers(2, 30))
def test_no_place_is_farther_from_all_sites_than_these_are_apart(seed: int, n_sites: int):
    nodes = spread_nodes(surface(), n_sites, seed=seed)
    ways = dijkstra(edge_graph(surface()), directed=False, indices=nodes)
    apart = ways[:, nodes][~np.eye(n_sites, dtype=bool)].min()
    assert ways.min(axis=0).max() <= apart + 1e-9
    assert np.array_equal(spread_nodes(surface(), n_sites - 1, seed=seed), nodes[:-1])


def test_another_seed_spreads_sites_otherwise():
    assert len({tuple(spread_nodes(surface(), 3, seed=seed).tolist()) for seed in range(5)}) > 1


def test_sites_of_a_region_lie_in_it():
    nodes = spread_nodes(surface(), 10, "TOP")
    assert len(set(nodes.tolist())) == 10 and np.isin(nodes, surface().regions["top"]).all()
    everywhere = spread_nodes(surface(), len(surface().regions["top"]), "top")
    assert np.array_equal(np.sort(everywhere), surface().regions["top"])


def test_totals_over_the_surface_are_the_sites_own_at_the_sites(waves: Sweep):
    field = total_over_surface(waves)
    told = field[np.isfinite(field)]
    assert np.allclose(field[waves.nodes], waves.total_ms, atol=1e-4)
    assert waves.total_ms.min() - 1e-4 <= told.min() and told.max() <= waves.total_ms.max() + 1e-4
    near = Sweep(
        domain=surface(),
        sites=surface().points[surface().cells[0]],
        activation_ms=waves.activation_ms[:3],
        until_ms=UNTIL_MS,
    )
    assert np.isfinite(total_over_surface(near)).mean() < 0.1


def test_the_short_way_is_the_long_one(run: Path, waves: Sweep):
    found = gfunk.sweep(surface(), SITES[:2], until_ms=UNTIL_MS, model=run)
    assert isinstance(found, gfunk.Sweep) and same(found.activation_ms, waves.activation_ms[:2])


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mesh") / "egg.vtp"
    fibres = np.linalg.eigh(egg().cell_diffusion())[1][:, :, -1]
    write_vtp(path, egg().points, egg().cells, {}, {"fibre": fibres})
    return path


def called(capsys: Capture, *words: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        status = main(["sweep", *map(str, words)])
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_files_hold_what_was_found(capsys: Capture, mesh: Path, run: Path, tmp_path: Path):
    out = tmp_path / "out"
    words = (mesh, "--sites", 3, "--at", "-9.99,0,0", "--model", run, "--until", 15, "--unit", "mm", "--out", out, "--json")
    status, said, wrong = called(capsys, *words)
    assert status == 0, wrong
    answer = json.loads(said)
    assert answer["sites"] == 4 and {Path(each).name for each in answer["out"]} == {
        "sites.csv", "sweep.vtp", "activation.npz", "sweep.png",
    }  # fmt: skip
    with (out / "sites.csv").open() as file:
        rows = list(csv.DictReader(file))
    with np.load(out / "activation.npz") as found:
        maps, sites = found["activation_ms"], found["sites_mm"]
    assert len(rows) == 4 and rows[0]["site"] == "0" and float(rows[0]["x_mm"]) == pytest.approx(-9.99, abs=0.1)
    for row, times, site in zip(rows, maps, sites, strict=True):
        assert float(row["total_ms"]) == pytest.approx(np.nanmax(times), rel=1e-5)
        assert np.nanargmax(times) == int(row["last_node"])
        assert np.allclose([float(row[axis]) for axis in ("x_mm", "y_mm", "z_mm")], site, atol=1e-3)
    on_surface = read_mesh(out / "sweep.vtp").point_data
    assert np.array_equal(on_surface["activation_02_ms"], maps[2], equal_nan=True)
    assert np.array_equal(on_surface["latest_ms"], maps[answer["latest"]["site"]], equal_nan=True)
    assert on_surface["site"][int(rows[3]["node"])] == 3
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    # The same once more finds all there; another time is refused.
    before = {path.name: path.stat().st_mtime_ns for path in (out / "maps").iterdir()}
    assert called(capsys, *words)[0] == 0
    assert before == {path.name: path.stat().st_mtime_ns for path in (out / "maps").iterdir()}
    status, _, wrong = called(capsys, *words, "--until", 16)
    assert status == 2 and "holds a sweep with another time" in wrong


@pytest.mark.parametrize("words, said", [
    (["--sites", "0"], "'0' is not a positive whole number"),
    ([], "no sites: say how many with --sites"),
    (["--sites", "100000"], "the mesh has only 642 nodes"),
    (["--sites", "3", "--region", "LAA"], "LAA: the parts of"),
    (["--at", "1,2,3", "--region", "LAA"], "--region says where --sites lie"),
    (["--at", "50,0,0"], "mm from the surface"),
    (["--sites", "3", "--model", "nothing"], "no shipped model 'nothing'"),
    (["--sites", "3", "--edge", "-1"], "edges of -1 mm"),
    (["--sites", "3", "--until", "9"], "the model starts 10 ms after the stimulus"),
    (["--sites", "3", "--until", "nan"], "must be positive"),
    (["--sites", "3", "--out", "/proc/nowhere"], "can't be written"),
])  # fmt: skip
def test_bad_input_gets_one_line(capsys: Capture, mesh: Path, run: Path, words: list[str], said: str, tmp_path: Path):
    status, out, wrong = called(capsys, mesh, "--unit", "mm", "--model", run, "--out", tmp_path / "out", *words)
    assert status == 2 and out == "" and wrong.count("\n") == 1 and said in wrong


def test_unknown_and_empty_regions_and_no_sites_are_refused(ready: Ready):
    for region in ("LAA", "gone"):
        with pytest.raises(InputError, match=f"no region '{region}'; known are top, rest"):
            spread_nodes(surface(), 3, region)
    with pytest.raises(InputError, match="0 sites: at least one"):
        spread_nodes(surface(), 0)
    with pytest.raises(InputError, match="at least one site"):
        swept(ready, [], UNTIL_MS)
