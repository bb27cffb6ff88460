import json
import os
from pathlib import Path

import numpy as np
import pytest
from problems import sphere

from gfunk import InputError, read_domain
from gfunk.cli import main
from gfunk.files.mending import Mended, mended
from gfunk.files.raw import Block, RawMesh
from gfunk.files.reading import ATRIAL_ACROSS, described, read_mesh, write_mesh
from gfunk.laplacian import laplacian
from gfunk.surface import boundary_loops, triangle_normals, vertex_normals

REAL = Path(os.environ.get("GFUNK_REAL_ATRIA", "no such folder"))


def heart(has_fibres: bool = True) -> Mended:
    """A ball as large as an atrium with five holes, fibres around its axis."""
    mesh = sphere(4)
    points, cells = 28 * mesh.points / np.linalg.norm(mesh.points, axis=1, keepdims=True), mesh.cells
    for axis in [*np.eye(3), *-np.eye(3)[:2]]:
        cells = cells[((points @ axis)[cells] < 25).all(axis=1)]
    centre = points[cells].mean(axis=1)
    fibres = np.cross([0.1, 0.2, 1.0], centre)
    data = {"fibres": fibres / np.linalg.norm(fibres, axis=1, keepdims=True)} if has_fibres else {}
    data["elemTag"] = (centre[:, 2] > 0).astype(np.int64)
    return mended(RawMesh(points=points, blocks=(Block(kind="triangle", nodes=cells, data=data),)))


@pytest.mark.parametrize("name", ["heart.vtp", "heart.vtu", "heart.pts"])
def test_what_is_written_is_read_back_with_one_call(name: str, tmp_path: Path):
    mesh = heart()
    write_mesh(tmp_path / name, mesh)
    again = read_mesh(tmp_path / name)
    np.testing.assert_allclose(again.points_mm, mesh.points_mm, rtol=1e-12)
    np.testing.assert_array_equal(again.cells, mesh.cells)
    assert again.fibres is not None and mesh.fibres is not None
    assert np.abs((again.fibres * mesh.fibres).sum(axis=1)).min() > 1 - 1e-9
    np.testing.assert_array_equal(again.tags, mesh.tags)
    # openCARP's unit is judged, and said.
    assert any("micrometres" in sentence for sentence in again.repairs) == name.endswith(".pts")


def test_a_domain_diffuses_along_its_fibres(tmp_path: Path):
    mesh = heart()
    write_mesh(tmp_path / "heart.vtp", mesh)
    domain = read_domain(tmp_path / "heart.vtp", across=0.3, ratio=4.0)
    assert domain.diffusion_at == "cell" and mesh.fibres is not None
    along = np.einsum("ci,cij,cj->c", mesh.fibres, domain.diffusion, mesh.fibres)
    np.testing.assert_allclose(along, 1.2, rtol=1e-9)
    np.testing.assert_allclose(np.trace(domain.diffusion, axis1=1, axis2=2), 1.2 + 2 * 0.3, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1)
    assert len(boundary_loops(domain.cells)) == 5
    assert laplacian(domain).stiffness.shape == (domain.n_nodes, domain.n_nodes)
    assert domain.repairs


def test_without_fibres_all_directions_are_alike_and_that_is_said(tmp_path: Path):
    mesh = heart(has_fibres=False)
    write_mesh(tmp_path / "heart.vtp", mesh)
    domain = read_domain(tmp_path / "heart.vtp")
    np.testing.assert_allclose(domain.diffusion, np.broadcast_to(ATRIAL_ACROSS * np.eye(3), domain.diffusion.shape))
    assert any("no fibres" in sentence for sentence in domain.repairs)
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1)
    assert np.abs((domain.fibres * vertex_normals(domain.points, domain.cells)).sum(axis=1)).max() < 1e-6


def test_a_sphere_is_described_as_geometry_knows_it():
    mesh = sphere(4)
    points = 30 * mesh.points / np.linalg.norm(mesh.points, axis=1, keepdims=True)
    clean = mended(RawMesh(points=points, blocks=(Block(kind="triangle", nodes=mesh.cells),)))
    found = described(clean.points_mm, clean.cells)
    assert found.area_cm2 == pytest.approx(4 * np.pi * 9, rel=0.01)
    assert found.volume_ml == pytest.approx(4 / 3 * np.pi * 27, rel=0.01)
    assert (found.genus, found.holes, found.hole_perimeters_mm) == (0, 0, ())


def test_the_command_reads_says_remeshes_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_mesh(tmp_path / "heart.pts", heart())
    out = tmp_path / "even.vtp"
    assert main(["mesh", str(tmp_path / "heart.pts"), "--edge", "4", "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["holes"], answer["genus"], answer["has_fibres"]) == (5, 0, True)
    assert any("micrometres" in sentence for sentence in answer["repairs"])
    assert answer["remeshed"]["holes"] == 5 and answer["remeshed"]["mean_edge_mm"] == pytest.approx(4, rel=0.15)
    even = read_mesh(out)
    assert even.fibres is not None
    assert np.abs((even.fibres * triangle_normals(even.points_mm, even.cells)).sum(axis=1)).max() < 1e-6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heart.stl"], "no reader for '.stl'"),
        (["missing.vtp"], "no such file"),
        (["broken.vtk"], "broken.vtk"),
        (["heart.vtp", "--out", "heart.doc"], "written as .vtp"),
        (["heart.vtp", "--edge", "-1"], "must be positive"),
        (["heart.vtp", "--unit", "ft"], "invalid choice"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_mesh(Path("heart.vtp"), heart())
    Path("broken.vtk").write_text("# vtk DataFile Version 3.0\nheart\nASCII\nDATASET POLYDATA\nPOINTS 9 float\n1 2 3\n")
    try:
        status = main(["mesh", *words])
    except SystemExit as exit:
        status = exit.code
    said = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and message in said[-1]


def test_a_mesh_of_unknown_kind_is_refused_in_python_too():
    with pytest.raises(InputError, match="no reader"):
        read_domain("heart.xyz")


@pytest.mark.skipif(not REAL.is_dir(), reason="GFUNK_REAL_ATRIA names no folder of real atria")
@pytest.mark.parametrize(
    ("name", "n_holes", "has_fibres"),
    [
        ("heart1/heart1.pts", 5, True),
        ("heart3.vtp", 5, True),
        ("mixed_winding.vtp", 5, False),
        ("two_components.vtk", 7, False),
    ],
)
def test_real_atria_load_with_one_call(name: str, n_holes: int, has_fibres: bool):
    domain = read_domain(REAL / name)
    assert len(boundary_loops(domain.cells)) == n_holes
    assert 35 < np.ptp(domain.points, axis=0).max() < 120
    assert (not any("no fibres" in sentence for sentence in domain.repairs)) == has_fibres
    found = described(domain.points, domain.cells)
    # Outward normals enclose a positive volume.
    assert found.volume_ml > 20 and found.genus == 0
    np.testing.assert_allclose(np.linalg.norm(domain.fibres, axis=1), 1, rtol=1e-9)
