"""Stills of trajectories."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gfunk.domain import Domain
from gfunk.errors import InputError


def comparison_picture(
    path: Path,
    domain: Domain,
    times: Float[np.ndarray, " time"],
    truth: Float[np.ndarray, "time node"],
    prediction: Float[np.ndarray, "time node"],
    title: str,
    columns: Sequence[int],
):
    """Truth, prediction and their difference at some times, beside the fibres, on a planar mesh."""
    plt = pyplot()
    figure, axes = plt.subplots(3, len(columns) + 1, figsize=(2.6 * (len(columns) + 1), 7.6), layout="constrained")
    x, y = domain.points.T
    error = prediction - truth
    ranges = ((truth.min(), truth.max(), "inferno"), (truth.min(), truth.max(), "inferno"))
    largest = max(float(np.abs(error).max()), 1e-12)
    rows = zip(
        ("truth", "prediction", "difference"), (truth, prediction, error), (*ranges, (-largest, largest, "RdBu_r")),
        strict=True,
    )  # fmt: skip
    for row, (name, values, (low, high, colours)) in enumerate(rows):
        image = None
        for column, moment in enumerate(columns):
            axis = axes[row, column + 1]
            image = axis.tripcolor(x, y, domain.cells, values[moment], shading="gouraud", vmin=low, vmax=high, cmap=colours)
            if row == 0:
                axis.set_title(f"t = {times[moment]:g}")
        figure.colorbar(image, ax=axes[row, -1], label=name, fraction=0.08)
    some = np.linspace(0, domain.n_nodes - 1, 250).astype(int)
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


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'gfunk[pictures]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
