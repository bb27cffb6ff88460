from pathlib import Path

import numpy as np
import pytest

from gfunk.errors import InputError
from gfunk.files.carto import read_carto_mesh

# A made-up mesh of four vertices, in the form of CARTO's.
MESH = """#TriangulatedMeshVersion2.0

[GeneralAttributes]
MeshID               = 1
MeshName             = "r\xe9sum\xe9"
NumVertex            = 4
NumTriangle          = 3
Matrix               = 1 0 0 0 0 1 0 0 0 0 1 0 0 0 0 1
NumVertexColors      = 3
ColorsIDs            = 0 1 2
ColorsNames          = Unipolar LAT \xb5Bi

[VerticesSection]
;             X   Y   Z   NormalX  NormalY  NormalZ  GroupID

0 =  1.5 0 0  0 0 1  0
1 =  0 -2.25 0  0 0 1  0
2 =  0 0 1e1  0 0 1  0
3 =  1 1 1  0 0 1  -1000000

[TrianglesSection]
; Vertex0 Vertex1 Vertex2 NormalX NormalY NormalZ GroupID

0 = 0 1 2  0 0 1  0
1 = 0 1 77  0 0 1  -1000000
2 = 2 1 3  0 0 1  -4

[VerticesColorsSection]
; Color Value= -10000 means none
; Unipolar LAT \xb5Bi

0 = 1.0 -20.5 0
1 = -10000 3 0.5
2 = 2 -10000.0 0
3 = 3 4 -10000

[VerticesAttributesSection]
; no flags = 0
; Scar EML
"""


def write_mesh(folder: Path, text: str = MESH, line_end: str = "\r\n") -> Path:
    (folder / "1-map.mesh").write_bytes(text.replace("\n", line_end).encode("latin-1"))
    return folder / "1-map.mesh"


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_a_mesh_is_read_with_its_groups_and_colours(tmp_path: Path, line_end: str):
    mesh = read_carto_mesh(write_mesh(tmp_path, line_end=line_end))
    np.testing.assert_array_equal(mesh.points, [[1.5, 0, 0], [0, -2.25, 0], [0, 0, 10], [1, 1, 1]])
    (block,) = mesh.blocks
    assert (block.kind, block.nodes.tolist(), block.data["group"].tolist()) == ("triangle", [[0, 1, 2], [2, 1, 3]], [0, -4])
    assert mesh.point_data["group"].tolist() == [0, 0, 0, -1000000]
    np.testing.assert_array_equal(mesh.point_data["Unipolar"], [1, np.nan, 2, 3])
    np.testing.assert_array_equal(mesh.point_data["LAT"], [-20.5, 3, np.nan, 4])
    np.testing.assert_array_equal(mesh.point_data["\xb5Bi"], [0, 0.5, 0, np.nan])


def test_inactive_and_invisible_triangles_are_counted_aloud(tmp_path: Path):
    remarks = read_carto_mesh(write_mesh(tmp_path)).remarks
    assert len(remarks) == 2
    assert "1 of 3 triangles are inactive: left out" in remarks[0]
    assert "1 triangles are in groups CARTO doesn't show" in remarks[1]


def test_a_map_without_colours_is_a_mesh_all_the_same(tmp_path: Path):
    mesh = read_carto_mesh(write_mesh(tmp_path, MESH[: MESH.index("[VerticesColors")]))
    assert set(mesh.point_data) == {"group"}


def test_colours_are_named_by_the_comment_above_them_or_else_by_number(tmp_path: Path):
    text = MESH.replace("ColorsNames          = Unipolar LAT \xb5Bi", "ColorsNames = Unipolar")
    assert list(read_carto_mesh(write_mesh(tmp_path, text)).point_data) == ["group", "Unipolar", "LAT", "\xb5Bi"]
    mesh = read_carto_mesh(write_mesh(tmp_path, text.replace("; Unipolar LAT", "; LAT")))
    assert list(mesh.point_data) == ["group", "colour0", "colour1", "colour2"]
    assert "called colour0 to colour2" in mesh.remarks[-1]


def test_attributes_and_another_version_are_passed_over_aloud(tmp_path: Path):
    text = MESH.replace("Version2.0", "Version3.0") + "0 = 1 0\n"
    remarks = read_carto_mesh(write_mesh(tmp_path, text)).remarks
    assert "doesn't start with" in remarks[0]
    assert "[VerticesAttributesSection]" in remarks[-1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[VerticesSection]", "", "no [VerticesSection]"),
        ("[TrianglesSection]", "[VerticesSection]", "a second [VerticesSection]"),
        ("NumVertex            = 4", "NumVertex = 1000000000", "NumVertex is '1000000000', but 4 rows are there"),
        ("NumTriangle          = 3", "NumTriangle = x", "NumTriangle is 'x', but 3 rows are there"),
        ("1.5 0 0", "1.5 0", "line 16: `i = x y z`, a normal and a group expected, 7 numbers found"),
        ("1.5 0 0", "1.5 0 O", "line 16: 'O' is not a number"),
        ("1.5 0 0", "1.5 0 nan", "line 16: a coordinate is not finite"),
        ("0 =  1.5 0 0", "1 =  1.5 0 0", "line 16: vertex 1 where 0 is due"),
        ("0 = 0 1 2", "0 = 0 1 4", "line 24: 4 is not one of the 4 nodes"),
        ("0 = 0 1 2", "0 = 0 1 -1", "line 24: -1 is not one of the 4 nodes"),
        ("0 = 0 1 2", "0 = 0 1 .5", "line 24: 0.5 is not one of the 4 nodes"),
        ("2 = 2 -10000.0 0", "2 = 2 0", "line 34: `i =` and 3 colours"),
        ("3 = 3 4 -10000\n", "", "colours of 3 vertices, but there are 4"),
        ("2 = 2 -10000.0 0", "3 = 2 -10000.0 0", "line 34: vertex 3 where 2 is due"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, old: str, new: str, said: str):
    assert old in MESH
    with pytest.raises(InputError) as caught:
        read_carto_mesh(write_mesh(tmp_path, MESH.replace(old, new, 1)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mesh_of_inactive_triangles_only_is_refused(tmp_path: Path):
    text = MESH.replace("0 0 1  0\n1 = 0 1 77", "0 0 1  -1000000\n1 = 0 1 77").replace("-4", "-1000000")
    with pytest.raises(InputError, match="no active triangle"):
        read_carto_mesh(write_mesh(tmp_path, text))


def test_missing_files_and_others_are_refused(tmp_path: Path):
    (tmp_path / "g.mesh").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "empty.mesh").write_bytes(b"")
    for name in ("none.mesh", "g.mesh", "empty.mesh", "."):
        with pytest.raises(InputError):
            read_carto_mesh(tmp_path / name)
