"""Data of a file: places without a measurement, and tags."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from gfunk.files.mending.draft import Draft
from gfunk.files.mending.words import counted
from gfunk.files.tables import LARGEST_WHOLE

TAG_NAMES = ("tag", "tags", "elemtag", "cell_region", "region")
NO_DATA = -10000  # CARTO's mark for a place without a measurement


def with_marks_as_nan(draft: Draft) -> Draft:
    point_data, said_of_points = _unmarked(draft.point_data, "point")
    cell_data, said_of_cells = _unmarked(draft.cell_data, "cell")
    said = (*draft.repairs, *said_of_points, *said_of_cells)
    return replace(draft, point_data=point_data, cell_data=cell_data, repairs=said)


def _unmarked(data: Mapping[str, np.ndarray], site: str) -> tuple[dict[str, np.ndarray], list[str]]:
    clean, said = dict(data), []
    for name, values in data.items():
        if not np.issubdtype(values.dtype, np.number) or not (is_mark := values == NO_DATA).any():
            continue
        clean[name] = np.where(is_mark, np.nan, values)
        said.append(f"{counted(is_mark.sum(), 'value')} {NO_DATA} (no data) in the {site} data '{name}' taken as NaN")
    return clean, said


def tags_of(draft: Draft) -> tuple[Int[np.ndarray, " cell"] | None, Draft]:
    """Whole numbers from the first array that bears a tag's name; some tools write them as 11.0."""
    lower = {name.lower(): name for name in reversed(draft.cell_data)}
    for name in (lower[known] for known in TAG_NAMES if known in lower):
        values = draft.cell_data[name].squeeze()
        if values.shape == (len(draft.cells),) and np.issubdtype(values.dtype, np.number):
            if (np.abs(values) <= LARGEST_WHOLE).all() and (values == np.rint(values)).all():
                return values.astype(np.int64), draft
            draft = draft.saying(f"cell data '{name}' not taken for tags: it holds fractions or gaps")
    return None, draft
