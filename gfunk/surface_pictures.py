"""Pictures of surfaces in space, their regions and fibres, seen from several sides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from gfunk.figures import pyplot
from gfunk.surface import edge_lengths, triangle_normals

# Where the viewer stands, and what is up; x to the left of the patient, y to the back.
VIEWS = {"from the front": (0.0, -1.0, 0.15), "from the back": (0.0, 1.0, 0.15)}
# Apart for every kind of colour blindness (Okabe and Ito).
COLOURS = ("#BBBBBB", "#0072B2", "#D55E00", "#E69F00", "#009E73", "#56B4E9", "#CC79A7")
_LIGHT = np.array([0.4, 0.3, 0.85])  # to the right, up, to the viewer
_N_FIBRES = 1500  # a view


@dataclass(frozen=True, kw_only=True)
class Pictured:
    """A surface, the number of each triangle's colour, and fibres to draw on it."""

    title: str
    points: Float[np.ndarray, "node 3"]
    cells: Int[np.ndarray, "cell 3"]
    labels: Int[np.ndarray, " cell"]
    fibres: Float[np.ndarray, "cell 3"]


def surfaces_picture(path: Path, surfaces: Sequence[Pictured], names: Sequence[str]):
    """Each surface in a column, once for each view; names are those of the colours."""
    plt = pyplot()
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    colours = np.array([to_rgb(colour) for colour in COLOURS])
    figure, axes = plt.subplots(
        len(VIEWS), len(surfaces), figsize=(3.2 * len(surfaces), 3.2 * len(VIEWS)), squeeze=False, layout="constrained"
    )
    for column, surface in enumerate(surfaces):
        points, cells = surface.points, surface.cells
        reach = 1.05 * np.abs(points - points.mean(axis=0)).max()
        for row, (view, viewer) in enumerate(VIEWS.items()):
            axis = axes[row, column]
            turn = _view(np.array(viewer))
            seen = (points - points.mean(axis=0)) @ turn.T
            normal = triangle_normals(points, cells) @ turn.T
            shade = 0.45 + 0.55 * np.abs(normal @ _LIGHT)
            # Inner sides, seen through a hole, are darker.
            shade *= np.where(normal[:, 2] > 0, 1.0, 0.55)
            order = np.argsort(seen[cells, 2].mean(axis=1), kind="stable")
            faces = (colours[surface.labels] * shade[:, None]).clip(0, 1)[order]
            axis.add_collection(
                PolyCollection(seen[cells][order][:, :, :2], facecolors=faces, edgecolors=faces, linewidths=0.3)
            )
            strokes = _strokes(seen, cells, normal, surface.fibres @ turn.T)
            axis.add_collection(LineCollection(list(strokes), colors="black", linewidths=0.6))
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            axis.set_axis_off()
            if row == 0:
                axis.set_title(surface.title)
            if column == 0:
                axis.text(0.02, 0.02, view, transform=axis.transAxes)
    handles = [Patch(color=colour, label=name) for colour, name in zip(COLOURS, names, strict=False)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _view(viewer: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "3 3"]:
    """Rows: to the right, up and to the viewer."""
    towards = viewer / np.linalg.norm(viewer)
    right = np.cross([0.0, 0.0, 1.0], towards)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(towards, right), towards])


def _strokes(
    seen: Float[np.ndarray, "node 3"],
    cells: Int[np.ndarray, "cell 3"],
    normal: np.ndarray,
    fibres: Float[np.ndarray, "cell 3"],
) -> Float[np.ndarray, "_ 2 2"]:
    """Short lines along the fibres of an even choice of the cells in sight."""
    centre = seen[cells].mean(axis=1)
    in_sight = np.flatnonzero(_is_nearest(centre, 1.5 * float(edge_lengths(seen, cells).mean())) & (normal[:, 2] > 0.15))
    half = 0.5 * np.sqrt(4 * np.abs(seen[:, :2]).max() ** 2 / _N_FIBRES)
    # One in each square of a grid.
    square = np.floor(centre[in_sight, :2] / (2 * half)).astype(np.int64)
    chosen = in_sight[np.unique(square, axis=0, return_index=True)[1]]
    ends = 0.8 * half * fibres[chosen, :2]
    return np.stack([centre[chosen, :2] - ends, centre[chosen, :2] + ends], axis=1)


def _is_nearest(centre: Float[np.ndarray, "cell 3"], pixel: float) -> Bool[np.ndarray, " cell"]:
    """Which cells nothing hides, as far as a coarse grid of pixels can tell."""
    place = np.floor(centre[:, :2] / pixel).astype(np.int64)
    _, number = np.unique(place, axis=0, return_inverse=True)
    nearest = np.full(number.max() + 1, -np.inf)
    np.maximum.at(nearest, number.ravel(), centre[:, 2])
    return centre[:, 2] > nearest[number.ravel()] - 3 * pixel
