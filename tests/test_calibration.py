"""Bounds of errors, found and tried by the command, for runs and for models that come with the package."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_surfaces import ACROSS, PROBLEM, egg, write_untrained
from toy_waves import toy_waves

from gfunk import pretrained
from gfunk.calibration import bounds_by_roughness, errors_of_waves, kept_by_roughness
from gfunk.cli import main
from gfunk.domain import Domain, fibre_tensors
from gfunk.doubts import fibre_turn
from gfunk.errors import InputError
from gfunk.experiments import chosen_device, trust_in
from gfunk.pretrained import read_model_card
from gfunk.readiness import made_ready
from gfunk.runs import read_card, write_card
from gfunk.settings import to_json
from gfunk.store import Sample, write_json, write_sample
from gfunk.surface import cross, main_tangents, triangle_normals
from gfunk.trust import Bounds, Trust, roughness_of

N_WAVES = 12


def egg_with_fibres(rough_degrees: float, seed: int) -> Domain:
    normals = triangle_normals(egg().points, egg().cells)
    along = main_tangents(egg().cell_diffusion(), normals)
    angle = np.random.default_rng(seed).normal(scale=np.radians(rough_degrees), size=(len(along), 1))
    turned = np.cos(angle) * along + np.sin(angle) * cross(normals, along)
    return replace(egg(), diffusion=fibre_tensors(turned, 5 * ACROSS, ACROSS))


def write_waves(folder: Path, first_seed: int, problem=PROBLEM, rough_degrees: tuple[float, ...] = (0.0,)):
    """On eggs with fibres so rough: twelve waves each, that run from some node at 1 mm/ms."""
    times = np.arange(11.0)
    write_json(folder / "dataset.json", {"problem": to_json(problem)})
    for number, degrees in enumerate(rough_degrees):
        domain = egg_with_fibres(degrees, number)
        starts = np.random.default_rng(number).choice(domain.n_nodes, (N_WAVES, 1), replace=False)
        distance = np.linalg.norm(domain.points - domain.points[starts], axis=2)
        values = np.where(distance[:, None] < 5.0 + times[:, None], 20.0, -84.0).astype(np.float32)
        write_sample(folder, Sample(seed=first_seed + number, domain=domain, times=times, values=values))


SMOOTH_AND_ROUGH = replace(PROBLEM, rough_degrees=20.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_untrained(tmp_path / "run")


def rows(turns: list[float]) -> list[dict[str, float]]:
    return [{"rel_l2": 0.01 * turn, "seed": number, "fibre_turn": turn} for number, turn in enumerate(turns)]


def test_each_roughness_has_bounds_of_its_own_where_enough_waves_have_it():
    found = bounds_by_roughness(rows([4.0] * 10 + [12.0] * 3 + [20.0] * 9 + [99.0] * 50))
    assert [(each.fibre_turn, each.n_waves, each.rel_l2) for each in found] == [(None, 10, 0.04), (32.0, 9, 0.2)]
    with pytest.raises(InputError, match="5 waves are too few: bounds take 9"):
        bounds_by_roughness(rows([4.0] * 5))


def test_the_share_that_keeps_its_bounds_is_told_by_roughness():
    waves = rows([4.0] * 10 + [12.0] * 10)
    trust = Trust().with_bounds(bounds_by_roughness(waves))
    worse = [row | {"rel_l2": row["rel_l2"] * 1.01} for row in waves[:15]]
    assert kept_by_roughness(trust, waves[15:] + worse) == [
        {"fibre_turn": None, "n": 10, "kept_rel_l2": 0.0},
        {"fibre_turn": 16.0, "n": 10, "kept_rel_l2": 0.5},
    ]
    with pytest.raises(InputError, match="no bounds are known for fibres like these"):
        kept_by_roughness(Trust(), waves)


def test_a_run_says_its_bounds_after_it_was_calibrated(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_waves(tmp_path / "data" / "val", 100_000)
    assert made_ready(egg(), run, cache=None).bounds is None
    assert main(["calibrate", str(run), "--data", str(tmp_path / "data"), "--workers", "1", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["n_waves"], told["n_domains"], told["fibre_turn"]) == (N_WAVES, 1, None)
    bounds = made_ready(egg(), run, cache=None).bounds
    assert bounds is not None and bounds.rel_l2 == told["rel_l2"]


def test_with_fewer_modes_no_bounds_are_known_and_none_are_taken(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_waves(tmp_path / "data" / "val", 100_000)
    words = ["calibrate", str(run), "--data", str(tmp_path / "data"), "--workers", "1"]
    assert main(words) == 0
    assert trust_in(str(run)).bounds is not None and trust_in(f"{run}@7").bounds is None
    capsys.readouterr()
    assert main(["calibrate", f"{run}@7", *words[2:]]) == 2
    assert f"bounds are kept for a model with all its modes alone: calibrate {run}" in capsys.readouterr().err
    assert made_ready(egg(), f"{run}@7", cache=None).bounds is None


def test_what_is_known_of_smooth_fibres_stays_when_rough_ones_are_tried(run: Path, tmp_path: Path):
    write_waves(tmp_path / "smooth" / "val", 100_000)
    write_waves(tmp_path / "rough" / "val", 100_100, SMOOTH_AND_ROUGH, (0.0, 5.0, 10.0))
    for data in ("smooth", "rough"):
        assert main(["calibrate", str(run), "--data", str(tmp_path / data), "--workers", "1"]) == 0
    trust = trust_in(str(run))
    turns = [fibre_turn(egg_with_fibres(degrees, number)) for number, degrees in ((1, 5.0), (2, 10.0))]
    assert trust.bounds is not None and trust.bounds.n_domains == 1
    assert [each.fibre_turn for each in trust.rough] == sorted({roughness_of(turn) for turn in turns} - {None})
    rough = made_ready(egg_with_fibres(10.0, 2), run, cache=None)
    assert rough.bounds == trust.bounds_on(turns[1]) and not any("degrees per mm" in each for each in rough.warnings)


def test_a_model_of_smooth_and_rough_fibres_has_bounds_on_both_by_one_dataset(run: Path, tmp_path: Path):
    write_card(run, replace(read_card(run), problem=SMOOTH_AND_ROUGH))
    write_waves(tmp_path / "val", 100_000, SMOOTH_AND_ROUGH, (0.0, 10.0))
    assert main(["calibrate", str(run), "--data", str(tmp_path), "--workers", "1"]) == 0
    trust = trust_in(str(run))
    assert trust.bounds is not None and trust.bounds.n_waves == N_WAVES and len(trust.rough) == 1


def test_checking_tells_of_the_test_split_and_writes_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_waves(tmp_path / "data" / "val", 100_000)
    write_waves(tmp_path / "data" / "test", 200_000)
    words = ["calibrate", str(run), "--data", str(tmp_path / "data"), "--workers", "1", "--json"]
    assert main([*words, "--check"]) == 2
    assert "no bounds are known" in capsys.readouterr().err
    assert main(words) == 0
    known = trust_in(str(run))
    capsys.readouterr()
    record = tmp_path / "record.json"
    assert main([*words, "--check", "--record", str(record)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    # The same waves as were held back: eleven of twelve or all of them.
    assert told["n"] == N_WAVES and told["kept_rel_l2"] >= 11 / 12
    assert trust_in(str(run)) == known
    (row,) = json.loads(record.read_text())
    assert row["label"] == "bounds kept" and row["rows"] == [told]


def test_a_shipped_models_card_takes_the_bounds_and_keeps_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weights = tmp_path / "weights"
    shutil.copytree(pretrained.weights_folder(), weights)
    monkeypatch.setattr(pretrained, "weights_folder", lambda: weights)
    before = read_model_card("atria")
    found = Bounds(share=0.9, rel_l2=0.1, lat_error_ms=None, lat_error_ms_95=None, n_waves=9, n_domains=9, fibre_turn=16.0)
    monkeypatch.setattr("gfunk.calibration.errors_of_waves", lambda *_, **__: [])
    monkeypatch.setattr("gfunk.calibration.bounds_by_roughness", lambda _: [found])
    assert main(["calibrate", "atria", "--data", str(tmp_path)]) == 0
    after = read_model_card("atria")
    assert found in after.trust.rough and after.trust.bounds == before.trust.bounds
    assert replace(after, trust=before.trust) == before


def test_waves_of_another_problem_bound_nothing(run: Path, tmp_path: Path):
    write_waves(tmp_path / "val", 100_000, replace(PROBLEM, ratio=3.0))
    with pytest.raises(InputError, match="made from another problem"):
        errors_of_waves(str(run), tmp_path, "val", device=chosen_device("cpu"))
    write_json(tmp_path / "val" / "dataset.json", {"problem": to_json(toy_waves)})
    with pytest.raises(InputError, match="made from another problem"):
        errors_of_waves(str(run), tmp_path, "val", device=chosen_device("cpu"))
