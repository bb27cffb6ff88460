"""Pictures that no command draws. `python docs/pictures.py` makes docs/arrival.png: the wave of a test seed, taken apart."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gfunk import load_pretrained, lowest_modes, pack
from gfunk.activation import ACTIVE_MV
from gfunk.figures import on_plane, pyplot
from gfunk.operators.arrival import Arrival
from gfunk.simulation import viewed_domain

SEED = 200_000  # of the test split: never trained on
PLACES = 3


@torch.no_grad()
def arrival_picture(path: Path, seed: int = SEED):
    """What `Arrival` is given, what it carries, what it has learned to add to that, and the profile it reads values off."""
    operator, card = load_pretrained("rectangles")
    assert isinstance(operator, Arrival)
    sample, view = card.problem.sample(seed), card.variant.view
    domain, matrices = viewed_domain(sample.domain, view)
    batch = pack([(domain, matrices, lowest_modes(matrices, view.n_modes))])
    truth, offset, scale = sample.values[0], card.problem.offset, card.problem.scale

    u = (torch.from_numpy(truth[0]).float()[None, :, None] - offset) / scale
    first = operator.first(u, batch)
    arrival = operator.arrival(first, batch)[0][0, :, 0].numpy()
    front = (first[0, :, 1] - first[0, :, 2]).numpy()
    times = torch.arange(0.0, sample.times[-1], 0.25)
    values = operator(first, batch, times)[0, :, :, 0].numpy() * scale + offset

    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 6.4), layout="constrained")
    given, carried, added, read = axes.flat
    isochrones = np.arange(0, front.max(), 10)
    late = arrival - front
    for axis, field, limits, colours, title, lines in (
        (given, truth[0], (-85, 20), "inferno", "given: 10 ms after the stimulus (mV)", None),
        (carried, front, (front.min(), front.max()), "viridis", "front time, nothing learned (ms)", front),
        (added, late, (-np.abs(late).max(), np.abs(late).max()), "RdBu_r", "correction, learned (ms)", arrival),
    ):
        colour_scale: Any = plt.cm.ScalarMappable(plt.Normalize(*limits), colours)
        on_plane(sample.domain)(axis, field, colour_scale)
        if lines is not None:
            axis.tricontour(*sample.domain.points.T, sample.domain.cells, lines, isochrones, colors="black", linewidths=0.6)
        figure.colorbar(colour_scale, ax=axis, orientation="horizontal", fraction=0.06, pad=0.03)
        axis.margins(0)
        axis.set(aspect="equal", title=title)
        axis.set_axis_off()

    shares = np.linspace(0.2, 0.8, PLACES)
    for share, colour in zip(shares, ("#440154", "#21918c", "#e07b00"), strict=True):
        node = int(np.abs(arrival - share * arrival.max()).argmin())
        read.plot(times.numpy() - arrival[node], values[:, node], color=colour, label=f"arrival at {arrival[node]:.0f} ms")
        read.plot(sample.times - arrival[node], truth[:, node], ".", color=colour, markersize=3)
    read.axhline(ACTIVE_MV, color="grey", linewidth=0.6)
    read.set(title="profile, learned; dots: the solver (mV)", xlabel="ms since arrival", xlim=(-8, 30), box_aspect=0.6)
    read.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    arrival_picture(Path(__file__).parent / "arrival.png")
