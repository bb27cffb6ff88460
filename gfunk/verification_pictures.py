"""Pictures of the verification: action potentials, convergence, arrival times, waves over a surface."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain
from gfunk.figures import pyplot

# Apart for every kind of colour blindness (Okabe and Ito), and in grey.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def potentials_picture(path: Path, *, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]):
    """Action potentials by name, whole and, at the right, their first milliseconds."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(2, 1), sharey=True, layout="constrained")
    for axis, end_ms in zip(axes, (400.0, 8.0), strict=True):
        for (name, (times_ms, v_mV)), colour, dash in zip(curves.items(), (BLUE, ORANGE), ("-", "--"), strict=False):
            shown = times_ms <= end_ms
            axis.plot(times_ms[shown], v_mV[shown], colour, linestyle=dash, label=name, linewidth=1.8)
        axis.set_xlabel("time after the stimulus (ms)")
        axis.set_xlim(0, end_ms)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("voltage (mV)")
    axes[0].set_title("Courtemanche's cell, first beat")
    axes[1].set_title("its upstroke")
    axes[0].legend(frameon=False)
    _save(figure, path)


def convergence_picture(
    path: Path,
    *,
    steps_ms: Sequence[float],
    errors_mV: Mapping[int, Sequence[float]],
    edges_mm: Sequence[float],
    speed_errors: Mapping[str, Sequence[float]],
    limit: float,
):
    """Error by time step for each order of the cells' steps, and of a wave's speed by edge for both masses."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for (order, errors), colour, mark in zip(errors_mV.items(), (ORANGE, BLUE), "so", strict=False):
        left.loglog(steps_ms, errors, colour, marker=mark, label=f"cells of order {order}")
        _slope_triangle(left, steps_ms, errors, order)
    left.set_xlabel("time step (ms)")
    left.set_ylabel("largest error of the voltage (mV)")
    left.set_title("in time")
    words = {"consistent": "consistent mass: too fast", "lumped": "lumped mass: too slow"}
    for (mass, errors), colour, mark in zip(speed_errors.items(), (BLUE, ORANGE), "os", strict=False):
        right.loglog(edges_mm, 100 * np.asarray(errors), colour, marker=mark, label=words.get(mass, mass))
    _slope_triangle(right, edges_mm, 100 * np.asarray(speed_errors["consistent"]), 2)
    right.set_xlabel("edge of the mesh (mm)")
    right.set_ylabel("error of the wave's speed (%)")
    right.set_title(f"in space: both masses lead to {limit:.4f} mm/ms")
    for axis, sizes in ((left, steps_ms), (right, edges_mm)):
        axis.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, loc="upper left")
    _save(figure, path)


def _slope_triangle(axis: Any, sizes: Sequence[float], errors: Sequence[float] | np.ndarray, order: int):
    """A triangle of this slope below the line, between its two finest points."""
    (high, low), top = sorted(sizes)[1::-1], 0.6 * errors[len(errors) - 2]
    bottom = top * (low / high) ** order
    axis.fill([low, high, high], [bottom, bottom, top], facecolor=GREY, alpha=0.25, edgecolor=GREY)
    axis.annotate(
        f"{order}", (high, np.sqrt(bottom * top)), xytext=(4, 0), textcoords="offset points", va="center", color=GREY
    )


def activation_picture(
    path: Path,
    *,
    domain: Domain,
    activation_ms: Float[np.ndarray, " node"],
    places: Mapping[tuple[float, float], float],
    known_ms: Mapping[tuple[float, float], float],
):
    """When the wave came, with isochrones, on a planar mesh; at some places the time found and the one known."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    x, y = domain.points.T
    levels = np.arange(2.0, activation_ms.max(), 2.0)
    # In bands of 1 ms: even colours make small files.
    bands = np.arange(0.0, activation_ms.max() + 1.0)
    image = axis.tricontourf(x, y, domain.cells, activation_ms, levels=bands, cmap="cividis")
    shades = np.where(levels < levels.mean(), "white", "black").tolist()
    lines = axis.tricontour(x, y, domain.cells, activation_ms, levels=levels, colors=shades, linewidths=0.7)
    # Their labels stand in a row where no place has its own.
    row = np.flatnonzero(np.abs(y - y.max() / 4) <= np.abs(y - y.max() / 4).min() + 1e-9)
    row = row[np.argsort(x[row])]
    labelled = [level for level in levels[1::2] if level < activation_ms[row].max() - 1]
    beside = [(float(np.interp(level, activation_ms[row], x[row])), float(y[row[0]])) for level in labelled]
    axis.clabel(lines, labelled, fmt="%g", fontsize=8, manual=beside)
    for (at_x, at_y), found in places.items():
        axis.plot(at_x, at_y, "o", markersize=8, markerfacecolor="white", markeredgecolor="black", clip_on=False, zorder=3)
        side = 1 if at_x <= x.mean() else -1
        axis.annotate(
            f"{found:.2f} ms\n(known {known_ms[at_x, at_y]:.2f})", (at_x, at_y),
            xytext=(9 * side, 0 if 0 < at_y < y.max() else (12 if at_y == 0 else -12)), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", fontsize=9,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip
    axis.set_aspect("equal")
    axis.set_xlabel("x, along the fibres (mm)")
    axis.set_ylabel("y (mm)")
    axis.set_title(
        "2-D benchmark: when the wave comes (isochrones every 2 ms; at the dots: extrapolated to h = 0)", fontsize=10
    )
    figure.colorbar(image, ax=axis, label="arrival (ms)", shrink=0.85, ticks=np.arange(0.0, activation_ms.max(), 5.0))
    _save(figure, path)


def rolled_waves_picture(path: Path, *, domain: Domain, times_ms: Sequence[float], v_mV: Float[np.ndarray, "time node"]):
    """A wave over a surface, seen from above, at some times, with some of its fibres."""
    plt = pyplot()
    figure = plt.figure(figsize=(11, 3.1))
    colours, scale = plt.get_cmap("viridis"), plt.Normalize(float(v_mV.min()), float(v_mV.max()))
    fibres = _strokes(domain, 120, 0.5)
    low, high = domain.points.min(axis=0), domain.points.max(axis=0)
    width = 0.92 / len(times_ms)
    for number, (time_ms, v) in enumerate(zip(times_ms, v_mV, strict=True)):
        axis = figure.add_axes((0.01 + number * width, -0.06, width, 1.0), projection="3d", computed_zorder=False)
        surface = axis.plot_trisurf(*domain.points.T, triangles=domain.cells, linewidth=0, antialiased=False, shade=False)
        surface.set_facecolors(colours(scale(v[domain.cells].mean(axis=1))))
        axis.plot(*fibres, color="white", linewidth=0.7, alpha=0.8)
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
        axis.set_box_aspect(high - low, zoom=1.0)
        axis.view_init(elev=55, azim=-70)
        axis.set_axis_off()
        axis.set_title(f"{time_ms:g} ms", y=1.0)
        if number == 0:
            middle = (low[1] + high[1]) / 2
            axis.text(low[0] - 2.2, middle, low[2], f"{high[1] - low[1]:g} mm", zdir="y", ha="center", va="top")
    bar = figure.add_axes((0.93, 0.18, 0.012, 0.64))
    figure.colorbar(plt.cm.ScalarMappable(norm=scale, cmap=colours), cax=bar, label="voltage (mV)")
    _save(figure, path)


def _strokes(domain: Domain, n: int, length: float) -> Float[np.ndarray, "dim place"]:
    """Short lines along the fibres of some nodes, as one line with gaps (NaN)."""
    some = np.random.default_rng(0).choice(domain.n_nodes, n, replace=False)
    half = length / 2 * domain.fibres[some]
    ends = [domain.points[some] - half, domain.points[some] + half, np.full_like(half, np.nan)]
    return np.stack(ends, axis=1).reshape(-1, domain.points.shape[1]).T


def _save(figure: Any, path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot().close(figure)
