"""VTK's surfaces and volumes, read without VTK: legacy `.vtk` and XML `.vtp` and `.vtu`."""

from pathlib import Path

from gfunk.errors import InputError
from gfunk.files.raw import RawMesh
from gfunk.files.tables import file_bytes
from gfunk.files.vtk_cells import raw_mesh
from gfunk.files.vtk_legacy import legacy_grid
from gfunk.files.vtk_xml import xml_grid


def read_vtk(path: Path) -> RawMesh:
    """The mesh in a `.vtk`, `.vtp` or `.vtu` file; which of them it is, its content says."""
    content = file_bytes(path)
    try:
        if content[:14].lower() == b"# vtk datafile":
            grid = legacy_grid(content)
        elif content[:512].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            grid = xml_grid(content)
        else:
            raise InputError("neither a legacy nor an XML VTK file: save the mesh as .vtk, .vtp or .vtu")
        return raw_mesh(grid, len(content))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
