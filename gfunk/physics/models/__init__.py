"""The cells by name: one file for each model."""

from gfunk.physics.cells import Cell
from gfunk.physics.models.aliev_panfilov import AlievPanfilov
from gfunk.physics.models.courtemanche import REMODELLED, Courtemanche
from gfunk.physics.models.mitchell_schaeffer import MitchellSchaeffer
from gfunk.physics.models.ten_tusscher import TenTusscher

CELLS: dict[str, Cell] = {
    "courtemanche": Courtemanche(),
    "courtemanche-af": REMODELLED,
    "ten-tusscher": TenTusscher(),
    "mitchell-schaeffer": MitchellSchaeffer(),
    "aliev-panfilov": AlievPanfilov(),
}
