import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, Int
from problems import box, random_rotation, sphere

from gfunk.domain import cell_sizes, make_domain, rectangle
from gfunk.errors import InputError
from gfunk.files.mending import Mended, Unit, mended
from gfunk.files.raw import Block, RawMesh
from gfunk.surface import (
    boundary_loops,
    enclosed_volume,
    genus,
    nonmanifold_edges,
    nonmanifold_nodes,
    oriented,
    outward,
    sides_of,
    triangle_normals,
)

seeds = st.integers(0, 2**32 - 1)
real_atria = os.environ.get("GFUNK_REAL_ATRIA")


def atrium(n_holes: int = 5) -> tuple[Float[np.ndarray, "node 3"], Int[np.ndarray, "cell 3"]]:
    """A ball 60 mm wide with holes of about 20 mm round, normals outwards, every point used."""
    ball = sphere(3)
    cells = outward(ball.points, oriented(ball.cells)[0])[0]
    cells = cells[~np.isin(cells, np.arange(n_holes)).any(axis=1)]
    return 30 * ball.points[n_holes:], cells - n_holes


def raw_mesh(
    points: np.ndarray, cells: np.ndarray, *more: Block, point_data: dict | None = None, **data: np.ndarray
) -> RawMesh:
    blocks = (Block(kind="triangle", nodes=cells, data=data), *more)
    return RawMesh(points=points, blocks=blocks, point_data=point_data or {})


def same_mesh(mesh: Mended, points: np.ndarray, cells: np.ndarray) -> bool:
    """The same points in the same order, the same triangles in the same order and wound alike."""
    start = [np.take_along_axis(t, (t.argmin(axis=1)[:, None] + np.arange(3)) % 3, axis=1) for t in (mesh.cells, cells)]
    return np.allclose(mesh.points_mm, points, rtol=0, atol=1e-12 * 30) and np.array_equal(start[0], start[1])


def said(mesh: Mended, *words: str) -> bool:
    """Exactly one repair, with all these words."""
    return len(mesh.repairs) == 1 and all(word in mesh.repairs[0] for word in words)


def tangent_fibres(points: np.ndarray, cells: np.ndarray) -> Float[np.ndarray, "cell 3"]:
    """Circles about the z axis, in the planes of the triangles."""
    normals = triangle_normals(points, cells)
    around = np.cross([0.0, 0, 1], normals)
    return around / np.linalg.norm(around, axis=1, keepdims=True)


def angle_between(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """In degrees, blind to sign."""
    return np.rad2deg(np.arccos(np.clip(np.abs(np.einsum("ni,ni->n", one, other)), 0, 1)))


def test_a_sound_mesh_comes_back_untouched_and_nothing_is_said():
    points, cells = atrium()
    mesh = mended(raw_mesh(points, cells))
    assert same_mesh(mesh, points, cells) and mesh.repairs == ()
    assert mesh.fibres is None and mesh.tags is None
    assert np.array_equal(mesh.file_nodes, np.arange(len(points)))
    make_domain(mesh.points_mm, mesh.cells)


@pytest.mark.parametrize(
    ("per_mm", "words"),
    [(1000, ("micrometres", "60,000 wide", "divided by 1,000")), (0.001, ("metres", "0.06 wide")), (0.1, ("centimetres",))],
)
def test_the_same_mesh_in_another_unit_gives_the_same_points(per_mm: float, words: tuple[str, ...]):
    points, cells = atrium()
    points[0] *= 60 / np.ptp(points, axis=0).max()
    mesh = mended(raw_mesh(points * per_mm, cells))
    assert same_mesh(mesh, points, cells)
    assert said(mesh, *words[:1])
    units: dict[float, Unit] = {1000: "um", 0.001: "m", 0.1: "cm"}
    assert same_mesh(mended(raw_mesh(points * per_mm, cells), unit=units[per_mm]), points, cells)


def test_the_sentence_about_units_has_the_numbers():
    points, cells = atrium()
    points *= 93.4 / np.ptp(points, axis=0).max()
    assert mended(raw_mesh(points * 1000, cells)).repairs == (
        "coordinates taken as micrometres, as the mesh is 93,400 wide: divided by 1,000",
    )


def test_a_given_unit_is_believed_and_an_odd_size_is_told():
    points, cells = atrium()
    mesh = mended(raw_mesh(points * 0.1, cells), unit="mm", largest_stray_hole_mm=0.1)
    assert same_mesh(mesh, points * 0.1, cells)
    assert said(mesh, "mm wide", "check the unit")


@given(seed=seeds)
def test_a_soup_of_separate_triangles_becomes_the_mesh_again(seed: int):
    rng = np.random.default_rng(seed)
    points, cells = atrium()
    soup = points[cells].reshape(-1, 3) + rng.uniform(-1e-6, 1e-6, (cells.size, 3))
    mesh = mended(raw_mesh(soup, np.arange(cells.size).reshape(-1, 3)))
    assert len(mesh.points_mm) == len(points) and len(boundary_loops(mesh.cells)) == 5
    assert np.allclose(mesh.points_mm[mesh.cells], points[cells], atol=3e-6)
    assert said(mesh, f"{cells.size - len(points):,} points of {cells.size:,} merged")


@given(seed=seeds)
def test_random_turns_of_windings_are_undone_and_counted(seed: int):
    points, cells = atrium()
    is_turned = np.random.default_rng(seed).random(len(cells)) < 0.7
    mesh = mended(raw_mesh(points, np.where(is_turned[:, None], cells[:, ::-1], cells)))
    assert same_mesh(mesh, points, cells)
    assert said(mesh, f"{is_turned.sum():,} of {len(cells):,} triangles")


def test_normals_that_all_point_inwards_are_turned():
    points, cells = atrium()
    mesh = mended(raw_mesh(points, cells[:, ::-1]))
    assert same_mesh(mesh, points, cells) and said(mesh, "all triangles", "inwards")


def test_turning_the_frame_turns_the_mended_mesh():
    points, cells = atrium()
    fibres = tangent_fibres(points, cells)
    turn = random_rotation(3, 4)
    mesh, turned = (mended(raw_mesh(points @ r.T, cells, fiber=fibres @ r.T)) for r in (np.eye(3), turn))
    assert np.allclose(mesh.points_mm @ turn.T, turned.points_mm)
    assert mesh.fibres is not None and turned.fibres is not None
    assert np.allclose(mesh.fibres @ turn.T, turned.fibres)


def test_small_parts_far_away_are_removed_and_told_or_kept_on_demand():
    points, cells = atrium()
    crumb = 3 * sphere(0).points + 60
    crumbs = outward(crumb, oriented(sphere(0).cells)[0])[0] + len(points)
    raw = raw_mesh(np.concatenate([points, crumb]), np.concatenate([cells, crumbs]), tag=np.repeat([7, 8], [len(cells), 20]))
    mesh = mended(raw)
    assert same_mesh(mesh, points, cells) and said(mesh, "2 separate parts", "20 triangles", "%")
    assert mesh.tags is not None and set(mesh.tags.tolist()) == {7}
    kept = mended(raw, keep_all=True)
    assert len(kept.cells) == len(cells) + 20 and said(kept, "2 separate parts, all kept")


def test_flaps_at_an_edge_of_three_triangles_are_removed():
    points, cells = atrium()
    inner = np.flatnonzero(~np.isin(cells, np.concatenate(boundary_loops(cells))).any(axis=1))
    a, b, _ = cells[inner[0]]
    fin = np.concatenate([points, [1.1 * points[a], 1.1 * points[b]]])
    flap = np.array([[a, b, len(points)], [b, len(points) + 1, len(points)]])
    mesh = mended(raw_mesh(fin, np.concatenate([cells, flap])))
    assert same_mesh(mesh, points, cells) and said(mesh, "2 triangles in 1 flap", "1 edge")


def test_a_lump_on_a_face_loses_the_face_below():
    points, cells = atrium()
    inner = np.flatnonzero(~np.isin(cells, np.concatenate(boundary_loops(cells))).any(axis=1))
    a, b, c = cells[inner[0]]
    top = len(points)
    lump = np.array([[a, b, top], [b, c, top], [c, a, top]])
    raised = np.concatenate([points, 1.1 * points[[a, b, c]].mean(axis=0, keepdims=True)])
    mesh = mended(raw_mesh(raised, np.concatenate([cells, lump])))
    assert nonmanifold_edges(mesh.cells).size == 0 and len(boundary_loops(mesh.cells)) == 5 and genus(mesh.cells) == 0
    assert len(mesh.cells) == len(cells) + 2


def test_walls_that_touch_along_an_edge_are_parted():
    points, cells = atrium(0)
    # Dented from above and below, like a red blood cell, until one edge on top lies on one of the bottom.
    radius = np.linalg.norm(points[:, :2], axis=1)
    top = np.lexsort([-points[:, 1], radius.round(6), -np.sign(points[:, 2])])[:2]
    bottom = [int(np.linalg.norm(points - points[node] * [1, 1, -1], axis=1).argmin()) for node in top]
    points[:, 2] *= 1 - np.exp(-((radius / 15) ** 2))
    points[[*top, *bottom], 2] = 0
    mesh = mended(raw_mesh(points, cells), largest_stray_hole_mm=30.0)
    assert nonmanifold_edges(mesh.cells).size == 0 and nonmanifold_nodes(mesh.cells).size == 0
    assert len(boundary_loops(mesh.cells)) == 0 and genus(mesh.cells) == 0
    words = ("2 points", "4 triangles", "2 nodes", "2 stray holes")
    assert all(word in repair for word, repair in zip(words, mesh.repairs, strict=True))


def test_three_large_sheets_at_one_edge_are_refused_with_the_edge_and_its_place():
    points = np.array([[0, 0, 0], [50, 0, 0], [0, 50, 0], [0, -50, 0], [0, 0, 50]], dtype=float)
    with pytest.raises(InputError, match=r"node 0 \(0, 0, 0\) to node 1 \(50, 0, 0\) belongs to 3 triangles"):
        mended(raw_mesh(points, np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]])))


def test_a_second_surface_that_touches_in_one_node_is_split_off_and_removed():
    points, cells = atrium()
    tip = int(points[:, 2].argmin())
    crumb = 2 * sphere(0).points
    crumb += points[tip] - crumb[0]
    names = np.append(tip, len(points) + np.arange(11))
    crumbs = names[sphere(0).cells]
    both = np.concatenate([points, crumb[1:]])
    mesh = mended(raw_mesh(both, np.concatenate([cells, crumbs])))
    assert same_mesh(mesh, points, cells) and len(mesh.repairs) == 2
    kept = mended(raw_mesh(both, np.concatenate([cells, crumbs])), keep_all=True)
    assert nonmanifold_nodes(kept.cells).size == 0 and len(kept.points_mm) == len(points) + 12


def test_lines_and_points_no_triangle_uses_are_left_out():
    points, cells = atrium()
    n = len(points)
    links = Block(kind="line", nodes=np.array([[0, n], [1, n + 1]]), data={"tag": np.array([100, 100])})
    raw = raw_mesh(np.concatenate([points, [[np.nan] * 3, [9000.0] * 3]]), cells, links, tag=np.full(len(cells), 11.0))
    mesh = mended(raw)
    assert same_mesh(mesh, points, cells)
    assert mesh.repairs == ("2 lines (links or cables) left out", "2 points that no cell uses removed")
    assert mesh.tags is not None and mesh.tags.tolist() == [11] * len(cells)


def test_repeated_and_collapsed_triangles_are_removed():
    points, cells = atrium()
    more = np.array([cells[3][[1, 2, 0]], cells[7][::-1], [5, 5, 6]])
    mesh = mended(raw_mesh(points, np.concatenate([cells, more])))
    assert same_mesh(mesh, points, cells) and len(mesh.repairs) == 2


def test_a_triangle_without_area_is_taken_out_and_no_crack_opens():
    points, cells = atrium(0)
    a, b, c = cells[0]
    middle = len(points)
    # Node `middle` lies on the edge from a to b: this side is cut in two there, and a flat triangle bridges to the other.
    split = np.array([[middle, b, c], [a, middle, c], [a, b, middle]])
    places = np.concatenate([points, points[[a, b]].mean(axis=0, keepdims=True)])
    tags = np.append(np.zeros(len(cells) + 1, dtype=int), 9)
    mesh = mended(raw_mesh(places, np.concatenate([cells[1:], split]), tag=tags))
    assert mesh.tags is not None and not mesh.tags.any()
    assert boundary_loops(mesh.cells) == [] and genus(mesh.cells) == 0
    assert len(mesh.cells) == len(cells) + 2 and said(mesh, "1 triangle without area")
    assert enclosed_volume(mesh.points_mm, mesh.cells) == pytest.approx(enclosed_volume(points, cells))
    make_domain(mesh.points_mm, mesh.cells)


def test_quads_become_triangles_of_the_same_area_with_their_data_twice():
    points, cells = atrium()
    sides = sides_of(cells)
    one, other = (side[0] for side in sides.meeting())
    (tail, head), pair = sides.nodes[one], [one // 3, other // 3]
    apex, far = (cells[t].sum() - tail - head for t in pair)
    quad = Block(kind="quad", nodes=np.array([[tail, far, head, apex]]), data={"tag": np.array([5])})
    rest = np.delete(cells, pair, axis=0)
    mesh = mended(raw_mesh(points, rest, quad, tag=np.zeros(len(rest), dtype=int)))
    assert len(mesh.cells) == len(cells) and said(mesh, "1 quad cut into 2 triangles")
    assert genus(mesh.cells) == 0 and len(boundary_loops(mesh.cells)) == 5
    assert mesh.tags is not None and mesh.tags[-2:].tolist() == [5, 5] and mesh.tags.sum() == 10


@pytest.mark.parametrize("n_removed", [1, 2])
def test_stray_holes_are_closed_and_large_ones_kept(n_removed: int):
    points, cells = atrium()
    inner = np.flatnonzero(~np.isin(cells, np.concatenate(boundary_loops(cells))).any(axis=1))
    gone = inner[:1]
    if n_removed == 2:
        side = 3 * inner[0] + 1
        sides = sides_of(cells)
        gone = np.flatnonzero(sides.edge == sides.edge[side]) // 3
    rest = np.delete(cells, gone, axis=0)
    lat = np.arange(len(points), dtype=float)
    raw = raw_mesh(points, rest, point_data={"lat": lat, "code": np.arange(len(points))}, tag=np.full(len(rest), 3))
    mesh = mended(raw, largest_stray_hole_mm=19.0)
    assert len(boundary_loops(mesh.cells)) == 5 and genus(mesh.cells) == 0
    assert said(mesh, "1 stray hole closed", "5 holes left")
    assert mesh.tags is not None and mesh.tags.tolist() == [3] * len(mesh.cells)
    assert np.array_equal(mesh.point_data["lat"][: len(lat)], lat) and len(mesh.point_data["code"]) == len(mesh.points_mm)
    assert cell_sizes(mesh.points_mm, mesh.cells).min() > 1
    alike, n_flipped = oriented(mesh.cells)
    assert n_flipped == 0 and outward(mesh.points_mm, alike)[1] == 0
    assert len(boundary_loops(mended(raw, largest_stray_hole_mm=1.0).cells)) == 6
    assert (mesh.file_cells == -1).sum() == len(mesh.cells) - len(rest)


def test_a_hole_too_crooked_for_a_fan_is_closed_by_ears():
    sheet = rectangle(24.0, 24.0, 0.3)
    points = np.column_stack([sheet.points, -0.01 * (sheet.points**2).sum(axis=1)])
    # A C, open to the right, whose middle lies outside of it.
    column, row = np.floor(sheet.points[sheet.cells].mean(axis=1) / 0.3).astype(int).T - 40
    is_hole = (column >= 0) & (column < 4) & (np.abs(row) <= 2) & ~((column > 0) & (np.abs(row) <= 1))
    mesh = mended(raw_mesh(points, sheet.cells[~is_hole]))
    assert len(mesh.points_mm) == len(points) and len(boundary_loops(mesh.cells)) == 1 and genus(mesh.cells) == 0
    assert said(mesh, "1 stray hole closed", "1 hole left")
    assert cell_sizes(mesh.points_mm, mesh.cells).sum() == pytest.approx(cell_sizes(points, sheet.cells).sum(), rel=1e-4)


def test_the_rim_of_a_small_sheet_is_no_stray_hole():
    points = np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]], dtype=float)
    mesh = mended(raw_mesh(points, np.array([[0, 1, 2], [0, 2, 3]])), unit="mm")
    assert len(mesh.cells) == 2


def test_marks_of_no_data_become_nan():
    points, cells = atrium()
    lat = np.arange(len(points), dtype=float)
    lat[[3, 5]] = -10000
    code = np.zeros(len(cells), dtype=int)
    code[4] = -10000
    data = {"LAT": lat, "flag": np.zeros(len(points), dtype=np.uint8), "name": np.full(len(points), "a")}
    mesh = mended(raw_mesh(points, cells, point_data=data, code=code))
    assert mesh.point_data["flag"].dtype == np.uint8 and mesh.point_data["name"][0] == "a"
    assert np.flatnonzero(np.isnan(mesh.point_data["LAT"])).tolist() == [3, 5]
    assert np.flatnonzero(np.isnan(mesh.cell_data["code"])).tolist() == [4]
    assert len(mesh.repairs) == 2 and "2 values -10000" in mesh.repairs[0]


@given(seed=seeds, name=st.sampled_from(["fibre", "Fibers", "LON", "longitudinal_fibres", "e_l"]))
def test_tangent_fibres_come_back_whatever_their_sign_length_and_name(seed: int, name: str):
    points, cells = atrium()
    rng = np.random.default_rng(seed)
    fibres = tangent_fibres(points, cells)
    given = fibres * (rng.choice([-1, 1], len(cells)) * rng.uniform(0.1, 5, len(cells)))[:, None]
    mesh = mended(RawMesh(points=points, blocks=(Block(kind="triangle", nodes=cells, data={name: given}),)))
    assert mesh.fibres is not None
    assert np.allclose(mesh.fibres, np.sign(np.einsum("ni,ni->n", given, fibres))[:, None] * fibres)
    assert said(mesh, name, "0 % of them zero or NaN", "mean |f.n| 0.000")


def test_fibres_are_laid_into_the_surface():
    points, cells = atrium()
    fibres, normals = tangent_fibres(points, cells), triangle_normals(points, cells)
    mesh = mended(raw_mesh(points, cells, fiber=fibres + 0.5 * normals))
    assert mesh.fibres is not None and np.allclose(mesh.fibres, fibres)
    assert said(mesh, f"{0.5 / np.sqrt(1.25):.3f}", "different frames")


@given(seed=seeds)
def test_node_fibres_agree_with_cell_fibres_and_their_signs_are_nothing(seed: int):
    points, cells = atrium()
    around = np.cross([0.0, 0, 1], points) + 1e-9
    signs = np.random.default_rng(seed).choice([-1, 1], len(points))[:, None]
    mesh, other = (mended(raw_mesh(points, cells, point_data={"f0": f})) for f in (around, signs * around))
    assert mesh.fibres is not None and other.fibres is not None
    assert np.allclose(angle_between(mesh.fibres, other.fibres), 0, atol=1e-5)
    away_from_poles = np.abs(points[cells].mean(axis=1)[:, 2]) < 20
    assert angle_between(mesh.fibres, tangent_fibres(points, cells))[away_from_poles].max() < 5
    assert np.allclose(np.linalg.norm(mesh.fibres, axis=1), 1)


def test_missing_fibres_come_from_the_neighbours_up_to_half():
    points, cells = atrium()
    fibres = tangent_fibres(points, cells)
    middle = points[cells].mean(axis=1)
    given = fibres.copy()
    is_gap = np.linalg.norm(middle - [30, 0, 0], axis=1) < 8
    given[is_gap], given[np.flatnonzero(is_gap)[0]] = 0, np.nan
    mesh = mended(raw_mesh(points, cells, fiber=given))
    assert mesh.fibres is not None and is_gap.sum() > 10
    assert angle_between(mesh.fibres, fibres)[is_gap].max() < 10
    assert np.allclose(mesh.fibres[~is_gap], fibres[~is_gap])
    assert np.abs(np.einsum("ni,ni->n", mesh.fibres, triangle_normals(points, cells))).max() < 1e-9
    assert f"{is_gap.sum()} cells without a fibre" in mesh.repairs[-1]
    given[middle[:, 0] > -1] = 0
    none = mended(raw_mesh(points, cells, fiber=given))
    assert none.fibres is None and "discarded" in none.repairs[-1]


def test_tetrahedra_win_over_the_surface_beside_them():
    block = box(4)
    fibres = np.tile([0.0, 3, 4], (len(block.cells), 1))
    positive = mended(RawMesh(points=50 * block.points, blocks=(Block(kind="tetra", nodes=block.cells),))).cells
    mirrored = np.where(np.arange(len(positive))[:, None] % 2 == 0, positive, positive[:, [1, 0, 2, 3]])
    skin = Block(kind="triangle", nodes=block.cells[:5, :3])
    raw = RawMesh(points=50 * block.points, blocks=(skin, Block(kind="tetra", nodes=mirrored, data={"fiber": fibres})))
    mesh = mended(raw)
    assert mesh.cells.shape == block.cells.shape and np.allclose(mesh.points_mm, 50 * block.points)
    assert mesh.fibres is not None and np.allclose(mesh.fibres, [0, 0.6, 0.8])
    a, b, c, d = mesh.points_mm[mesh.cells].swapaxes(0, 1)
    assert (np.einsum("ni,ni->n", b - a, np.cross(c - a, d - a)) > 0).all()
    assert len(mesh.repairs) == 3 and "5 surface cells" in mesh.repairs[0]
    assert mesh.file_cells[0] == 5


def test_what_cannot_be_used_is_refused_with_the_reason():
    points, cells = atrium()
    broken = points.copy()
    broken[4, 1] = np.inf
    with pytest.raises(InputError, match=r"node 4 \(.*inf.*\) of cell \d+ has no finite place"):
        mended(raw_mesh(broken, cells))
    wrong = cells.copy()
    wrong[6, 2] = len(points)
    with pytest.raises(InputError, match=f"cell 6 names node {len(points)}"):
        mended(raw_mesh(points, wrong))
    with pytest.raises(InputError, match="1 hexahedron cells"):
        mended(raw_mesh(points, cells, Block(kind="hexahedron", nodes=np.arange(8)[None])))
    with pytest.raises(InputError, match="no triangles or tetrahedra"):
        mended(RawMesh(points=points, blocks=()))
    with pytest.raises(InputError, match="point data 'lat' has 3 rows"):
        mended(raw_mesh(points, cells, point_data={"lat": np.zeros(3)}))


def test_one_point_far_away_is_named_before_all_others_coincide():
    ball = sphere(5)
    points = 30 * ball.points
    points[77] *= 1e9
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"node 77 \(.*\) is so far from the others"):
            mended(raw_mesh(points, ball.cells))
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


def test_many_flaps_at_one_edge_take_no_longer_than_reading_them():
    n_pages = 20_000
    angle = np.linspace(0, 2 * np.pi, n_pages, endpoint=False)
    pages = np.stack([np.full(n_pages, 25.0), 50 * np.cos(angle), 50 * np.sin(angle)], axis=1)
    points = np.concatenate([[[0.0, 0, 0], [50, 0, 0]], pages])
    cells = np.stack([np.zeros(n_pages, int), np.ones(n_pages, int), np.arange(2, n_pages + 2)], axis=1)
    start = time.process_time()
    mesh = mended(raw_mesh(points, cells))
    assert time.process_time() - start < 5
    assert len(mesh.cells) == 2


def test_the_readers_remarks_come_first():
    points, cells = atrium()
    raw = RawMesh(points=points, blocks=(Block(kind="triangle", nodes=cells),), remarks=("no header",))
    assert mended(raw).repairs == ("no header",)


@pytest.mark.skipif(not real_atria, reason="GFUNK_REAL_ATRIA doesn't name a folder with real atria")
@pytest.mark.parametrize(
    ("name", "n_nodes", "n_holes", "has_fibres", "words"),
    [
        ("heart1/heart1.pts", 60100, 5, True, "micrometres"),
        ("heart3.vtp", 20938, 5, True, "fibres"),
        ("mixed_winding.vtp", 4581, 5, False, "wound"),
        ("two_components.vtk", 8787, 7, False, "2 separate parts"),
    ],
)
def test_real_atria_are_mended(name: str, n_nodes: int, n_holes: int, has_fibres: bool, words: str):
    path = Path(str(real_atria)) / name
    if path.suffix == ".pts":
        raw = pytest.importorskip("gfunk.files.opencarp").read_opencarp(path)
    else:
        raw = pytest.importorskip("gfunk.files.vtk").read_vtk(path)
    mesh = mended(raw)
    assert len(mesh.points_mm) == n_nodes and len(boundary_loops(mesh.cells)) == n_holes and genus(mesh.cells) == 0
    assert (mesh.fibres is not None) == has_fibres
    assert any(words in repair for repair in mesh.repairs)
    assert oriented(mesh.cells)[1] == 0 and enclosed_volume(mesh.points_mm, mesh.cells) > 20_000
    make_domain(mesh.points_mm, mesh.cells)
    again = mended(raw_mesh(mesh.points_mm, mesh.cells))
    assert again.repairs == () and np.array_equal(again.cells, mesh.cells)
