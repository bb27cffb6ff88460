"""Stills of trajectories, flat or on surfaces in space."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.surface import triangle_normals

# Where the viewer stands: in front of the patient, who looks along -y, and behind.
VIEWERS = ((0.0, -1.0, 0.15), (0.0, 1.0, 0.15))
_LIGHT = np.array([0.4, 0.3, 0.85])  # to the right, up, to the viewer


def comparison_picture(
    path: Path,
    domain: Domain,
    times: Float[np.ndarray, " time"],
    truth: Float[np.ndarray, "time node"],
    prediction: Float[np.ndarray, "time node"],
    title: str,
    columns: Sequence[int],
    unit: str = "",
    time_unit: str = "",
):
    """Truth, prediction and their difference at some times: beside the fibres if flat, from front and back if on a surface.

    Values go from dark to light and differences from blue to red, which the colour-blind tell apart too.
    """
    if not domain.has_cells or domain.cells.shape[1] != 3:
        raise InputError(f"{path}: can't be drawn, as the domain has no triangles")
    plt = pyplot()
    is_flat = domain.points.shape[1] == 2
    panel, n_columns = (2.6, len(columns) + 1) if is_flat else (4.2, len(columns))
    figure, axes = plt.subplots(3, n_columns, figsize=(panel * n_columns, 7.6), layout="constrained", squeeze=False)
    error = prediction - truth
    largest = np.abs(error[np.isfinite(error)]).max(initial=1e-12)
    # On a surface black would hide the shape.
    colours = "inferno" if is_flat else "viridis"
    rows = {
        "truth": (truth, truth.min(), truth.max(), colours),
        "prediction": (prediction, truth.min(), truth.max(), colours),
        "difference": (error, -largest, largest, "RdBu_r"),
    }
    draw = on_plane(domain) if is_flat else on_surface(domain)
    for row, (name, (values, low, high, colours)) in zip(axes, rows.items(), strict=True):
        scale = plt.cm.ScalarMappable(plt.Normalize(low, high), colours)
        for axis, moment in zip(row[-len(columns) :], columns, strict=True):
            draw(axis, values[moment], scale)
        figure.colorbar(scale, ax=row[-1], label=f"{name} ({unit})" if unit else name, fraction=0.08)
    for axis, moment in zip(axes[0, -len(columns) :], columns, strict=True):
        axis.set_title(f"t = {times[moment]:g} {time_unit}".strip())
    if is_flat:
        # At random: every so many of a grid's nodes lie in lines.
        some = np.random.default_rng(0).permutation(domain.n_nodes)[:250]
        axes[0, 0].quiver(
            *domain.points[some].T, *domain.fibres[some].T, headwidth=0, headlength=0, headaxislength=0, pivot="mid"
        )
        axes[0, 0].set_title("fibres")
    for axis in axes.flat:
        axis.set_aspect("equal")
        axis.set_axis_off()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def on_plane(domain: Domain) -> Callable[[Any, np.ndarray, Any], None]:
    """What draws values on an axis, in the colours of a scale."""
    x, y = domain.points.T

    def draw(axis: Any, values: np.ndarray, scale: Any):
        axis.tripcolor(x, y, domain.cells, values, shading="gouraud", norm=scale.norm, cmap=scale.cmap)

    return draw


def on_surface(domain: Domain) -> Callable[[Any, np.ndarray, Any], None]:
    """The same on a surface, seen from the front and, beside it, from the back."""
    from matplotlib.collections import PolyCollection

    cells, centred = domain.cells, domain.points - domain.points.mean(axis=0)
    reach = 1.05 * np.abs(centred).max()
    triangles, order, shade = [], [], []
    for number, viewer in enumerate(VIEWERS):
        turn = view_axes(np.array(viewer))
        seen = centred @ turn.T
        normal = triangle_normals(centred, cells) @ turn.T
        farthest_first = np.argsort(seen[cells, 2].mean(axis=1), kind="stable")
        triangles.append((seen[:, :2] + [2 * reach * number, 0.0])[cells[farthest_first]])
        order.append(farthest_first)
        # Weak, as colours are to be read. Inner sides, seen through a hole, are darker.
        light = (0.75 + 0.25 * np.abs(normal @ _LIGHT)) * np.where(normal[:, 2] > 0, 1.0, 0.7)
        shade.append(light[farthest_first].clip(0, 1))
    corners: Any = np.concatenate(triangles)
    order, shade = np.concatenate(order), np.concatenate(shade)

    def draw(axis: Any, values: np.ndarray, scale: Any):
        faces = scale.to_rgba(values[cells].mean(axis=1)[order])
        faces[:, :3] *= shade[:, None]
        axis.add_collection(PolyCollection(corners, facecolors=faces, antialiased=False))
        axis.set(xlim=(-reach, (2 * len(VIEWERS) - 1) * reach), ylim=(-reach, reach))

    return draw


def view_axes(viewer: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "3 3"]:
    """Rows: to the right, up and to a viewer who stands there."""
    towards = viewer / np.linalg.norm(viewer)
    right = np.cross([0.0, 0.0, 1.0], towards)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(towards, right), towards])


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'gfunk[pictures]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
