"""A predicted wave for people: a picture of it, and a page that tells how it was found."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.spatial import KDTree

from gfunk.domain import Domain
from gfunk.figures import on_surface, pyplot
from gfunk.prediction import Comparison, Prediction
from gfunk.readiness import Ready
from gfunk.store import write_bytes

N_MOMENTS = 4
N_BANDS = 10
# Beyond so many nodes a picture of the even mesh tells as much, and is drawn many times faster.
MOST_DRAWN = 30_000


def wave_picture(ready: Ready, prediction: Prediction, comparison: Comparison | None = None) -> bytes:
    """A PNG: the wave at four times, when it arrives everywhere, voltages at four places; beside the solver's, if at hand.

    Seen from the front and, beside it, from the back.
    """
    plt = pyplot()
    domain, node = _drawn(ready)
    moments = shown_moments(prediction)
    draw = on_surface(domain)
    waves = {"predicted": prediction.values_mV}
    if comparison is not None:
        waves = {"solver": comparison.truth_mV, **waves, "difference": prediction.values_mV - comparison.truth_mV}
    figure = plt.figure(figsize=(4.2 * N_MOMENTS, 2.6 * (len(waves) + 1)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[len(waves), 1])
    axes = above.subplots(len(waves), N_MOMENTS, squeeze=False)
    for row, (name, values) in zip(axes, waves.items(), strict=True):
        scale = _voltages(plt) if name != "difference" else plt.cm.ScalarMappable(plt.Normalize(-50, 50), "RdBu_r")
        for axis, moment in zip(row, moments, strict=True):
            draw(axis, values[moment, node], scale)
            axis.set_title(f"{name}, {prediction.times_ms[moment]:g} ms", fontsize=10)
        above.colorbar(scale, ax=row.tolist(), label="mV", fraction=0.03, pad=0.01)
    maps = [("predicted", prediction.activation_ms)]
    if comparison is not None:
        maps.insert(0, ("solver", comparison.truth_activation_ms))
    scale = _isochrones(plt, prediction)
    *shown, traces = below.subplots(1, len(maps) + 1, width_ratios=[1] * len(maps) + [N_MOMENTS - len(maps)])
    for axis, (name, activation) in zip(shown, maps, strict=True):
        draw(axis, np.ma.masked_invalid(activation[node]), scale)
        axis.set_title(f"activation, {name}", fontsize=10)
    below.colorbar(scale, ax=shown, label="ms", fraction=0.06 / len(maps))
    for axis in (*axes.flat, *shown):
        axis.set_aspect("equal")
        axis.set_axis_off()
    _draw_traces(traces, prediction, comparison)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=95, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def shown_moments(prediction: Prediction) -> list[int]:
    """Four times while the wave is under way: at its end there is no front left to see."""
    times, arrived = prediction.times_ms, prediction.activation_ms
    last = float(np.nanmax(arrived)) if np.isfinite(arrived).any() else float(times[-1])
    under_way = np.flatnonzero((times >= prediction.first_ms) & (times < last))
    if len(under_way) < N_MOMENTS:
        under_way = np.arange(len(times))
    return under_way[np.arange(N_MOMENTS) * len(under_way) // N_MOMENTS].tolist()


def report_page(
    picture: bytes, about: Mapping[str, Any], seconds: Mapping[str, float], remarks: Sequence[str], warnings: Sequence[str]
) -> str:
    """One HTML page with everything inside: it can be sent by mail."""
    facts = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(_text(value))}</td></tr>" for name, value in about.items())
    stages = "\n".join(f"<tr><th>{escape(name)}</th><td>{took:.2f} s</td></tr>" for name, took in seconds.items())
    total = f"<tr><th>together</th><td>{sum(seconds.values()):.2f} s</td></tr>"
    doubts = _listed("What speaks against it", warnings, "doubt") if warnings else ""
    changes = _listed("What was changed or assumed when the mesh was read", remarks, "remark") if remarks else ""
    inlined = base64.b64encode(picture).decode()
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>A predicted wave</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }}
img {{ width: 100%; height: auto; }}
th {{ text-align: left; font-weight: 500; padding-right: 2rem; vertical-align: top; }}
.tables {{ display: flex; flex-wrap: wrap; gap: 3rem; }}
.doubt {{ background: #fff3cd; padding: 0.5rem 1rem; border-left: 4px solid #b58900; }}
</style>
</head>
<body>
<h1>A predicted wave</h1>
{doubts}
<img alt="The wave at four times, its activation map and voltages at four places" src="data:image/png;base64,{inlined}">
<div class="tables">
<section><h2>What it is</h2><table>
{facts}
</table></section>
<section><h2>How long it took</h2><table>
{stages}
{total}
</table></section>
</div>
{changes}
</body>
</html>
"""


def write_report(path: Path, page: str):
    write_bytes(path, page.encode())


def _drawn(ready: Ready) -> tuple[Domain, Int[np.ndarray, " node"]]:
    """What is drawn, and which of the user's nodes each of its nodes shows."""
    domain = ready.domain
    if domain.n_nodes <= max(MOST_DRAWN, ready.even.n_nodes):
        return domain, np.arange(domain.n_nodes)
    return ready.even, np.asarray(KDTree(domain.points).query(ready.even.points)[1])


def _voltages(plt: Any) -> Any:
    return plt.cm.ScalarMappable(plt.Normalize(-85, 20), "viridis")


def _isochrones(plt: Any, prediction: Prediction) -> Any:
    """Bands of equal steps, of 1, 2 or 5 times a power of ten; what the wave does not reach is grey."""
    from matplotlib.colors import BoundaryNorm

    arrived = prediction.activation_ms[np.isfinite(prediction.activation_ms)]
    last = float(arrived.max(initial=1.0))
    raw = last / N_BANDS
    power = 10 ** np.floor(np.log10(raw))
    step = power * min((size for size in (1, 2, 5, 10) if size * power >= raw * (1 - 1e-9)), default=10)
    edges = np.arange(0, np.ceil(last / step) + 1) * step
    colours = plt.get_cmap("cividis_r").with_extremes(bad=(0.85, 0.85, 0.85, 1.0))
    return plt.cm.ScalarMappable(BoundaryNorm(edges, colours.N), colours)


def _draw_traces(axis: Any, prediction: Prediction, comparison: Comparison | None):
    """Voltages at nodes that the wave reaches first, last and between."""
    reached = np.flatnonzero(np.isfinite(prediction.activation_ms))
    if not reached.size:
        axis.set_axis_off()
        return
    order = reached[np.argsort(prediction.activation_ms[reached], kind="stable")]
    for number, node in enumerate(order[np.linspace(0, len(order) - 1, 4).round().astype(int)]):
        label = f"node {node}"
        axis.plot(prediction.times_ms, prediction.values_mV[:, node], color=f"C{number}", label=label, linewidth=1.2)
        if comparison is not None:
            axis.plot(prediction.times_ms, comparison.truth_mV[:, node], color=f"C{number}", linestyle=":", linewidth=1.2)
    axis.set(xlabel="ms", ylabel="mV")
    dotted = "" if comparison is None else " (dotted: solver)"
    axis.set_title(f"voltages{dotted}", fontsize=10)
    axis.legend(fontsize=7, frameon=False)


def _listed(title: str, sentences: Sequence[str], kind: str) -> str:
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<section class="{kind}"><h2>{escape(title)}</h2><ul>\n{items}\n</ul></section>'


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
