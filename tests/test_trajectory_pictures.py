import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from problems import box, relabelled, sphere, turning_square

from gfunk import experiments, trajectory_pictures
from gfunk.cli import main
from gfunk.domain import Domain, make_domain
from gfunk.errors import InputError
from gfunk.figures import comparison_picture, view_axes
from gfunk.recipes.atrium_data import AtrialPacing, AtriumProblem
from gfunk.recipes.recipe import RecipeProblem
from gfunk.recipes.tissue_data import FlatPacing, RectangleProblem
from gfunk.rollout import FlowMap

TIMES = np.arange(0.0, 41.0, 10.0)
WAVE = {"cell": "mitchell-schaeffer", "scheme": "paper", "first_ms": 4.0, "every_ms": 1.0, "n_saves": 4}
FLAT = RectangleProblem(
    pacing=FlatPacing(**WAVE, edge_mm=0.8, voxel_mm=1.0, base_conductivity=0.5, radius_mm=2.5)
)  # fmt: skip
ATRIUM = AtriumProblem(
    pacing=AtrialPacing(**WAVE, radius_mm=4.0), kept_edge_mm=1.5, n_halvings=0, n_sites=2, atrium_seed=3
)  # fmt: skip


def wave(domain: Domain, late: float = 0.0) -> np.ndarray:
    """A front that runs over all of the domain in 40."""
    far = np.linalg.norm(domain.points - domain.points.min(axis=0), axis=1)
    return 1 / (1 + np.exp(-(TIMES[:, None] - late - 40 * far / far.max()) / 3))


def drawn(path: Path, domain: Domain, late: float) -> np.ndarray:
    comparison_picture(path, domain, TIMES, wave(domain), wave(domain, late), "a wave", columns=(1, 3))
    assert path.read_bytes().startswith(b"\x89PNG")
    return imread(path)[..., :3]


def is_grey(pixels: np.ndarray) -> np.ndarray:
    return np.ptp(pixels, axis=2) < 0.1


@pytest.mark.parametrize("domain", [turning_square(0.002), sphere(3)], ids=["flat", "surface"])
def test_what_is_late_colours_the_difference_and_what_is_perfect_does_not(domain: Domain, tmp_path: Path):
    perfect, late = (drawn(tmp_path / "new" / f"{late}.png", domain, late) for late in (0.0, 8.0))
    assert perfect.std() > 0.05
    # The last row is the difference; the scale of colours is at the right.
    last_row = np.s_[int(0.7 * len(late)) :, : int(0.8 * late.shape[1])]
    assert is_grey(perfect[last_row]).all()
    assert 0.02 < 1 - is_grey(late[last_row]).mean() < 0.9


def test_the_numbers_of_nodes_do_not_change_a_picture(tmp_path: Path):
    domain = turning_square(0.01)
    order = np.random.default_rng(1).permutation(domain.n_nodes)
    one, other = (drawn(tmp_path / "one.png", each, 5.0) for each in (domain, relabelled(domain, order)))
    maps = np.s_[:, int(0.2 * one.shape[1]) :]  # without fibres, of which some are drawn
    assert np.abs(one[maps] - other[maps]).mean() < 1e-3


def test_what_is_nearer_hides_what_is_behind(tmp_path: Path):
    # Two halves of a sphere: the front one rests, the back one is active.
    domain = sphere(3)
    halves = np.where(domain.points[:, 1] > 0, 1.0, 0.0)
    values = np.stack([halves, halves])
    comparison_picture(tmp_path / "a.png", domain, TIMES[:2], values, values, "", columns=(1,))
    picture = imread(tmp_path / "a.png")[..., :3]
    first_row = picture[int(0.05 * len(picture)) : int(0.33 * len(picture)), : int(0.8 * picture.shape[1])]
    front, back = np.array_split(first_row, 2, axis=1)

    def yellow(side: np.ndarray) -> float:
        return float(((side[..., 0] > 0.6) & (side[..., 2] < 0.3)).mean())

    assert yellow(back) > 0.2 and yellow(front) < 0.05


def test_a_viewer_sees_up_as_up_and_the_right_hand_rule():
    for viewer in [(0.0, -1.0, 0.15), (2.0, 1.0, -0.5)]:
        axes = view_axes(np.array(viewer))
        np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(axes) == pytest.approx(1) and axes[1, 2] > 0 and axes[2] @ viewer > 0


def test_a_prediction_that_blew_up_is_drawn_too(tmp_path: Path):
    domain = turning_square(0.01)
    broken = wave(domain)
    broken[3:], broken[4] = np.nan, np.inf
    comparison_picture(tmp_path / "a.png", domain, TIMES, wave(domain), broken, "", columns=(1, 2, 3, 4))
    assert imread(tmp_path / "a.png")[..., :3].std() > 0.05


def test_what_has_no_triangles_is_refused(tmp_path: Path):
    for domain in (box(3), make_domain(np.random.default_rng(1).uniform(size=(20, 2)))):
        with pytest.raises(InputError, match="no triangles"):
            drawn(tmp_path / "a.png", domain, 1.0)


def evaluated(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict:
    capsys.readouterr()
    assert main(["evaluate", *map(str, words), "--workers", "1", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("options", [[], ["--rotate", "30"]], ids=["straight", "turned"])
def test_the_command_draws_the_worst_and_keeps_all_rows(
    capsys: pytest.CaptureFixture[str], toy_data: Path, tmp_path: Path, options: list[str]
):
    rows, picture = tmp_path / "new" / "rows.jsonl", tmp_path / "other" / "worst.png"
    files = ["--rows", rows, "--worst", picture]
    answer = evaluated(capsys, "heat/no-learning-50", "--data", toy_data, *files, *options)
    assert [json.loads(line) for line in rows.read_text().splitlines()] == answer["rows"]
    assert answer["worst_rel_l2"] == max(row["rel_l2"] for row in answer["rows"])
    assert len(answer["times"]) == len(answer["rel_l2_by_time"]) == 6
    assert imread(picture)[..., :3].std() > 0.05
    halved = evaluated(capsys, "heat/no-learning-50", "--data", toy_data, "--every", "2", *options)
    assert halved["times"] == answer["times"][1::2]


def test_the_time_of_the_largest_error_is_drawn(
    capsys: pytest.CaptureFixture[str], toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(trajectory_pictures, "comparison_picture", lambda *things, **_: asked.append(things))
    monkeypatch.setattr(trajectory_pictures, "N_MOMENTS", 2)
    answer = evaluated(capsys, "heat/no-learning-50", "--data", toy_data, "--worst", tmp_path / "worst.png")
    [(_, _, times, *_, columns)] = asked
    worst = max(answer["rows"], key=lambda row: row["rel_l2"])["rel_l2_by_time"]
    assert len(columns) == 2 and answer["times"][np.argmax(worst)] in times[columns]


@pytest.mark.parametrize(
    ("problem", "n"),
    [pytest.param(FLAT, 2, id="flat"), pytest.param(ATRIUM, 1, id="atrium", marks=pytest.mark.slow)],
)
def test_waves_predicted_to_stand_still_are_drawn_and_never_arrive(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: RecipeProblem, n: int
):
    class Still(torch.nn.Module):
        def forward(self, u: torch.Tensor, batch: object, tau: object) -> torch.Tensor:
            return torch.zeros_like(u)

    variant = experiments.RECIPES["rectangles"].variant("paper")
    still = replace(variant, view=replace(variant.view, n_modes=2), integrator=FlowMap(longest_step=1.0))
    monkeypatch.setattr(experiments, "operator_named", lambda _: (Still(), "waves", problem, still))
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    sites = [] if problem is FLAT else ["--set", "n_sites=2"]
    words = ["--n", str(n), "--device", "cpu", "--every", "1", "--worst", tmp_path / "worst.png", *sites]
    answer = evaluated(capsys, "any", *words)
    assert [row["number"] for row in answer["rows"]] == ([0, 0] if problem is FLAT else [0, 1])
    assert answer["lag_ms"] is None and answer["n_wrongly_active"] > 5 and answer["cross_correlation"] > 0
    assert imread(tmp_path / "worst.png")[..., :3].std() > 0.05


def test_files_that_cannot_be_written_are_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def worked(*_: object, **__: object):
        raise AssertionError("it set to work")

    monkeypatch.setattr(experiments, "operator_named", worked)
    file = tmp_path / "file"
    file.write_text("not a folder")
    for words, said in [
        (["--worst", file / "below.png"], "can't be written"),
        (["--rows", file / "below.jsonl"], "can't be written"),
        (["--rows", tmp_path], "can't be written"),
        (["--worst", tmp_path / "worst.txt"], "a picture is written as .png"),
    ]:
        assert main(["evaluate", "heat/no-learning-50", "--data", str(toy_data), *map(str, words)]) == 2
        refused = capsys.readouterr()
        assert said in refused.err and refused.err.count("\n") == 1 and refused.out == ""
