"""Separate parts, and which way their triangles wind."""

from dataclasses import replace

import numpy as np

from gfunk.files.mending.draft import Draft, with_cells
from gfunk.files.mending.words import counted, percent
from gfunk.surface import connected_parts, oriented, outward


def largest_part(draft: Draft) -> Draft:
    part = connected_parts(draft.cells, len(draft.points))
    if not part.any():
        return draft
    size = np.bincount(part, draft.sizes())
    is_kept = part == size.argmax()
    what = "area" if draft.is_surface else "volume"
    return with_cells(draft, is_kept).saying(
        f"the largest of {len(size):,} separate parts kept; the others ({counted((~is_kept).sum(), draft.kind)}, "
        f"{percent(1 - size.max() / size.sum())} of the {what}) removed"
    )


def with_all_parts(draft: Draft) -> Draft:
    n_parts = connected_parts(draft.cells, len(draft.points)).max() + 1
    return draft.saying(f"{n_parts:,} separate parts, all kept") if n_parts > 1 else draft


def wound_outwards(draft: Draft) -> Draft:
    cells, _ = outward(draft.points, oriented(draft.cells, draft.node_place)[0])
    n_turned = int((cells != draft.cells).any(axis=1).sum())
    if not n_turned:
        return draft
    if n_turned == len(cells):
        said = "all triangles were wound with the normals inwards: turned"
    else:
        said = f"{n_turned:,} of {len(cells):,} triangles wound the other way round from the rest, or inwards: turned"
    return replace(draft, cells=cells).saying(said)
