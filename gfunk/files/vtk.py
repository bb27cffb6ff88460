"""VTK's surfaces and volumes, read without VTK: legacy `.vtk` and XML `.vtp` and `.vtu`."""

from pathlib import Path

from gfunk.errors import InputError
from gfunk.files.raw import RawMesh
from gfunk.files.vtk_cells import raw_mesh
from gfunk.files.vtk_legacy import legacy_grid
from gfunk.files.vtk_xml import xml_grid


def read_vtk(path: Path) -> RawMesh:
    """The mesh in a `.vtk`, `.vtp` or `.vtu` file; which of them it is, its content says."""
    try:
        # A pipe or a device could be read for ever.
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from error
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
