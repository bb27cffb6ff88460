"""Numbers in the sentences that tell what was changed."""

import numpy as np


def counted(count: int | np.integer, what: str) -> str:
    """A count with its noun: 1 triangle, 2,300 triangles."""
    plural = {"tetrahedron": "tetrahedra"}.get(what, f"{what}s")
    return f"{int(count):,} {what if count == 1 else plural}"


def percent(share: float) -> str:
    return "less than 0.01 %" if 0 < share < 1e-4 else f"{100 * share:.2g} %"


def rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
