"""Coordinates in millimetres, whatever the file's unit."""

from dataclasses import replace
from typing import Literal

import numpy as np

from gfunk.files.mending.draft import Draft
from gfunk.files.mending.words import rounded

Unit = Literal["mm", "um", "m", "cm"]
MM_PER_UNIT = {"mm": 1.0, "um": 1e-3, "m": 1e3, "cm": 10.0}
UNIT_NAMES = {"mm": "millimetres", "um": "micrometres", "m": "metres", "cm": "centimetres"}


def in_mm(draft: Draft, unit: Unit | None) -> Draft:
    width = float(np.ptp(draft.points, axis=0).max())
    if unit is None:
        guess = _unit_of(width)
        reason = f"taken as {UNIT_NAMES[guess]}, as the mesh is {rounded(width)} wide"
    else:
        guess, reason = unit, f"given as {UNIT_NAMES[unit]}"
    factor = MM_PER_UNIT[guess]
    width_mm = width * factor
    if factor != 1:
        said = f"divided by {1 / factor:,.0f}" if factor < 1 else f"multiplied by {factor:,.0f}"
        draft = replace(draft, points=draft.points * factor).saying(f"coordinates {reason}: {said}")
    if not 20 <= width_mm <= 200:
        draft = draft.saying(f"the mesh is {rounded(width_mm)} mm wide, where a left atrium has 40 to 110: check the unit")
    return draft


def _unit_of(width: float) -> Unit:
    """By the width of a left atrium, 40 to 110 mm, with room on both sides."""
    if width > 1000:
        return "um"
    if width < 0.2:
        return "m"
    return "cm" if 4 <= width <= 11 else "mm"
