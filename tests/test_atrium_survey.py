"""Atria from the command line, and the survey of many."""

import json
from pathlib import Path

import numpy as np
import pytest

from gfunk.atria.anatomy import REGIONS
from gfunk.atria.synthetic import left_atrium
from gfunk.atrium_survey import REAL, Surveyed, compared, surveyed
from gfunk.cli import main
from gfunk.files.reading import read_domain, read_mesh
from gfunk.store import read_json


@pytest.fixture(scope="module")
def atrium() -> Surveyed:
    return surveyed(0, 1.5)


def test_an_atrium_has_no_faults_and_a_figure_for_all_that_is_known_of_real_ones(atrium: Surveyed):
    assert atrium.faults == () and atrium.labels == "right"
    assert list(atrium.figures) == list(REAL)
    figures = atrium.figures
    np.testing.assert_allclose(
        figures["area / volume^(2/3)"], figures["area, cm2"] / figures["volume, ml"] ** (2 / 3), rtol=1e-9
    )
    spectrum = [value for name, value in figures.items() if "eigenvalue" in name]
    assert spectrum == sorted(spectrum) and spectrum[0] > 0
    # Weyl: eigenvalues times area grow by 4 pi each.
    assert 0.7 < spectrum[-1] / (4 * np.pi * 30) < 1.3


def test_a_range_is_covered_when_it_lies_within_that_of_the_atria(atrium: Surveyed):
    def like(factor: float) -> Surveyed:
        figures = {name: factor * bound for name, (bound, _) in REAL.items()}
        return Surveyed(**{**vars(atrium), "figures": figures})

    assert all(row["covers"] for row in compared([like(0.9), like(4.0)]))
    assert not any(row["covers"] for row in compared([like(1.01), like(4.0)]))
    assert not any(row["covers"] for row in compared([like(0.9), like(1.0)]))


def test_the_command_surveys_many_and_records_it(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    record = tmp_path / "atria.json"
    picture = tmp_path / "atria.png"
    words = [
        "bench",
        "atria",
        "--n",
        "1",
        "--edge",
        "1.5",
        "--workers",
        "1",
        "--record",
        record,
        "--picture",
        picture,
        "--json",
    ]
    assert main([str(word) for word in words]) == 0
    assert picture.stat().st_size > 10_000
    said = json.loads(capsys.readouterr().out)
    assert (said["atria"], said["valid"], said["faults"], len(said["rows"])) == (1, 1, {}, len(REAL))
    assert said["labels"] == {"right": 1}
    (row,) = read_json(record)
    assert row["label"] == "survey" and row["command"].startswith("gfunk bench atria --n 1")


@pytest.mark.parametrize("name", ["atrium.vtp", "atrium.vtu", "atrium.pts"])
def test_a_made_atrium_is_read_back_as_it_is_in_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str):
    path = tmp_path / name
    assert main(["atrium", "--seed", "2", "--edge", "1.5", "--out", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    made, read = left_atrium(2, 1.5), read_domain(path)
    assert (said["holes"], said["genus"], said["nodes"]) == (5, 0, made.n_nodes)
    np.testing.assert_allclose(read.points, made.points, atol=1e-4)
    np.testing.assert_allclose(read.diffusion, made.diffusion, atol=1e-3)
    tags = read_mesh(path).tags
    assert tags is not None and set(np.unique(tags)) == set(range(len(REGIONS)))
    assert {name: len(nodes) for name, nodes in made.regions.items()} == {
        name: region["nodes"] for name, region in said["regions"].items()
    }
