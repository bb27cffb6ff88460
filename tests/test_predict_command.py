"""`gfunk predict` from file to file, and what it says to bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_surfaces import EDGE_MM, egg, strip, write_untrained

from gfunk.atria.fibres import ATRIAL_ACROSS
from gfunk.atria.synthetic import left_atrium
from gfunk.cli import main
from gfunk.commands.predicting import TOLD
from gfunk.domain import Domain
from gfunk.files.igb import read_igb
from gfunk.files.raw import Block
from gfunk.files.reading import as_domain, read_mesh
from gfunk.files.tissue import read_tissue
from gfunk.files.vtk_write import write_vtp, write_vtu
from gfunk.prediction import asked_times, predicted
from gfunk.readiness import made_ready

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_untrained(tmp_path_factory.mktemp("untrained"))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mesh") / "egg.vtp", egg())


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GFUNK_COMPILE", "0")
    monkeypatch.setenv("GFUNK_CACHE", str(tmp_path / "cache"))


def written(path: Path, domain: Domain) -> Path:
    write_vtp(path, domain.points, domain.cells, {}, {"fibre": cell_fibres(domain)})
    return path


def cell_fibres(domain: Domain) -> np.ndarray:
    return np.linalg.eigh(domain.cell_diffusion())[1][:, :, -1]


def answer(capsys: Capture, *words: str | Path) -> Any:
    capsys.readouterr()
    assert main(["predict", *map(str, words), "--unit", "mm", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refusal(capsys: Capture, *words: str | Path) -> str:
    """The one line it says when its input is bad."""
    capsys.readouterr()
    try:
        status = main(["predict", *map(str, words)])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2 and said.out == ""
    assert said.err.count("\n") == 1 and said.err.startswith("gfunk: "), said.err
    return said.err


def test_what_is_written_is_what_is_predicted(capsys: Capture, mesh: Path, run: Path, tmp_path: Path):
    site = egg().points[100]
    at = ",".join(map(str, site))
    times = asked_times(20.0, 5.0)
    asked = (mesh, "--model", run, "--at", at, "--until", "20", "--every", "5")
    said = answer(capsys, *asked, "--out", tmp_path / "wave.npz")
    (wave,) = predicted(made_ready(read_tissue(mesh, unit="mm"), run, cache=None), [[site]], times)
    with np.load(tmp_path / "wave.npz") as found:
        assert np.array_equal(found["times_ms"], times) and np.allclose(found["values_mV"], wave.values_mV, atol=1e-3)
        assert np.allclose(found["activation_ms"], wave.activation_ms, atol=1e-3, equal_nan=True)
        assert np.allclose(found["points_mm"], egg().points, atol=1e-5) and np.allclose(found["sites_mm"], [site], atol=1e-5)
    stages = ["read", "model", "resample", "modes", "first wave", "operator", "carry back"]
    assert list(said["seconds"]) == stages and said["nodes"] == said["even_nodes"] == egg().n_nodes
    answer(capsys, *asked, "--out", tmp_path / "wave.igb")
    assert np.allclose(read_igb(tmp_path / "wave.igb").values, wave.values_mV, atol=1e-3)
    answer(capsys, *asked, "--out", tmp_path / "map.vtp")
    assert np.allclose(read_mesh(tmp_path / "map.vtp").point_data["activation_ms"], wave.activation_ms, equal_nan=True)
    answer(capsys, *asked, "--out", tmp_path / "film.pvd")
    last = read_mesh(tmp_path / "film" / "film_000004.vtp").point_data["v_mV"]
    assert np.allclose(last, wave.values_mV[-1], atol=1e-3)


def test_pictures_and_pages_stand_alone(capsys: Capture, mesh: Path, run: Path, tmp_path: Path):
    said = answer(
        capsys, mesh, "--model", run, "--until", "14", "--every", "2", "--compare",
        "--picture", tmp_path / "wave.png", "--report", tmp_path / "wave.html",
    )  # fmt: skip
    assert (tmp_path / "wave.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "wave.html").read_text()
    assert "data:image/png;base64," in page and "http" not in page.replace("http-equiv", "")
    assert f"{said['rel_l2']:.4g}" in page and TOLD["rel_l2"] in page and "rel_l2" not in page
    assert TOLD.keys() <= said.keys() | {"out"}
    assert said["rel_l2"] > 0 and said["speedup"] > 0 and 0 < said["activation_error_ms"] < 10


def test_names_in_a_page_are_no_markup(capsys: Capture, run: Path, tmp_path: Path):
    path = written(tmp_path / "<b>bold.vtp", egg())
    answer(capsys, path, "--model", run, "--until", "12", "--every", "2", "--report", tmp_path / "wave.html")
    page = (tmp_path / "wave.html").read_text()
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page


def test_people_are_told_where_it_starts_and_how_long_it_took(capsys: Capture, mesh: Path, run: Path):
    assert main(["predict", str(mesh), "--model", str(run), "--until", "12", "--unit", "mm"]) == 0
    said = capsys.readouterr()
    assert "no --at: stimulated at the node nearest" in said.err and "first wave" in said.out


def test_an_atrium_of_ours_comes_back_with_its_parts(tmp_path: Path):
    made = left_atrium(300_002, edge_mm=1.5)
    assert main(["atrium", "--seed", "300002", "--edge", "1.5", "--out", str(tmp_path / "atrium.vtp"), "--json"]) == 0
    found = read_tissue(tmp_path / "atrium.vtp", unit="mm")
    assert found.regions.keys() == made.regions.keys()
    assert all(np.array_equal(nodes, made.regions[name]) for name, nodes in found.regions.items())
    # The same name with other numbers under it is another's, and tells nothing.
    mesh = read_mesh(tmp_path / "atrium.vtp")
    for order in ([1, 0, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 0], [0, 1, 2, 3, 4, 6, 5]):
        write_vtp(tmp_path / "other.vtp", made.points, made.cells, {"region": np.array(order)[mesh.point_data["region"]]})
        assert as_domain(read_mesh(tmp_path / "other.vtp")).regions == {}


def test_an_atrium_is_stimulated_beside_the_right_superior_vein_unless_told_otherwise(
    capsys: Capture, run: Path, tmp_path: Path
):
    atrium = left_atrium(4, edge_mm=EDGE_MM)
    path = written(tmp_path / "atrium.vtp", atrium)  # without the names of its parts: they are found by shape
    said = answer(capsys, path, "--model", run, "--until", "12")
    away = np.linalg.norm(atrium.points[atrium.regions["RSPV"]] - said["sites"][0], axis=1)
    assert away.min() < 1e-4


def test_a_place_may_begin_with_a_minus(capsys: Capture, mesh: Path, run: Path):
    node = int(egg().points[:, 0].argmin())
    at = ",".join(map(str, egg().points[node]))
    assert at.startswith("-")
    said = answer(capsys, mesh, "--model", run, "--at", at, "--until", "12")
    assert np.allclose(said["sites"], [egg().points[node]], atol=1e-5)


def test_fibres_may_come_from_another_file(capsys: Capture, run: Path, tmp_path: Path):
    bare, rows = tmp_path / "bare.vtp", tmp_path / "own.lon"
    write_vtp(bare, egg().points, egg().cells)
    rows.write_text("1\n" + "".join(f"{x} {y} {z}\n" for x, y, z in cell_fibres(egg())))
    for source in (rows, written(tmp_path / "fibrous.vtp", egg())):
        tissue = read_tissue(bare, fibres=source, unit="mm")
        assert np.median(np.abs(tissue.diffusion - egg().diffusion)) < 0.02 * ATRIAL_ACROSS
    assert "has no fibres" in refusal(capsys, bare, "--model", run, "--fibres", bare, "--unit", "mm")
    far = written(tmp_path / "far.vtp", strip())
    assert "not the surface of" in refusal(capsys, bare, "--model", run, "--fibres", far, "--unit", "mm")
    rows.write_text("1\n1 0 0\n")
    assert "holds 1 fibres, but the mesh has 1280" in refusal(capsys, bare, "--model", run, "--fibres", rows)


def test_without_fibres_and_without_an_atrium_it_diffuses_alike(tmp_path: Path):
    bare = tmp_path / "bare.vtp"
    write_vtp(bare, egg().points, egg().cells)
    tissue = read_tissue(bare, unit="mm")
    assert np.allclose(tissue.diffusion, ATRIAL_ACROSS * np.eye(3))
    assert any("none could be made by rule" in sentence for sentence in tissue.repairs)


@pytest.mark.parametrize("words, said", [
    (["--model", "nothing"], "no shipped model 'nothing'"),
    (["--model", "heat"], "was trained on heat, not on atria"),
    (["--until", "10"], "the model starts 10 ms after the stimulus"),
    (["--every", "0"], "must be positive"),
    (["--edge", "3"], "edges of 3 mm: the model has learned on 1.5 mm"),
    (["--at", "50,0,0"], "mm from the surface: the nearest place on it is"),
    (["--at", "1,2"], "neither X,Y,Z nor the name of a region"),
    (["--at", "LSPV"], "the parts of"),
    (["--out", "wave.txt"], "a wave is written as .npz, .pvd, .vtp, .igb"),
    (["--out", "/proc/nowhere/wave.npz"], "can't be written"),
    (["--device", "abacus"], "can't be used here"),
    (["--fibres", "gone.lon"], "no such file"),
])  # fmt: skip
def test_bad_input_gets_one_line(
    capsys: Capture, mesh: Path, run: Path, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capsys, mesh, "--unit", "mm", *([] if "--model" in words else ["--model", run]), *words)


def test_meshes_that_are_no_surface_or_too_small_get_one_line(capsys: Capture, run: Path, tmp_path: Path):
    assert "no such file" in refusal(capsys, tmp_path / "gone.vtk", "--model", run)
    solid = Block(kind="tetra", nodes=np.array([[0, 1, 2, 3]]))
    write_vtu(tmp_path / "solid.vtu", 10.0 * np.eye(4, 3), [solid])
    assert "has tetrahedra" in refusal(capsys, tmp_path / "solid.vtu", "--model", run, "--unit", "mm")
    small = written(tmp_path / "small.vtp", strip(12.0, 9.0, EDGE_MM))
    assert "has been everywhere" in refusal(capsys, small, "--model", run, "--unit", "mm")
