"""Pictures that no command draws. `python docs/pictures.py` makes all, or those named: arrival, viewer, worst-atria, ...

docs/arrival.png is the wave of a test seed, taken apart; docs/worst-*.png are the worst predictions of the recorded tests;
docs/viewer-*.png are the viewer's page in a browser (Chromium, which has to be installed).
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gfunk import load_pretrained, lowest_modes, pack
from gfunk.activation import ACTIVE_MV
from gfunk.batch import pack_trajectories
from gfunk.experiments import evaluate_reported
from gfunk.figures import comparison_picture, on_plane, pyplot
from gfunk.operators.arrival import Arrival
from gfunk.recipes.book import recipe_named
from gfunk.recipes.tissue_data import TissueProblem
from gfunk.rollout import rollout
from gfunk.simulation import prepared, viewed_domain
from gfunk.store import Sample
from gfunk.viewer.server import Viewer
from gfunk.viewer.serving import running
from gfunk.viewer.sessions import Limits
from gfunk.viewer.shipped import ModelPredictor

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from chromium import Page, browsed

SEED = 200_000  # of the test split: never trained on
PLACES = 3
# Of each shipped model's test: seed, and number among the waves of that seed.
WORST = {
    "heat": (200_001, 0), "rectangles": (200_024, 0), "random-fibres": (200_070, 0), "single-atrium": (200_000, 52),
    "atria": (200_003, 91),
}  # fmt: skip
N_MOMENTS = 4

LAPTOP, TABLET = (1280, 800), (820, 1180)
# Of the page's first atrium, seen from the back, in the laptop's pixels: the left inferior vein, where the wave starts, and
# where it is probed.
VEIN, BACK_WALL = (200, 425), (560, 300)
FRONT_MS = 25.0  # the front is halfway
AT_REST = "document.querySelector('#progress').hidden"
PATIENCE_S = 600.0  # the solver's, without a compiler


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


def worst_picture(path: Path, name: str) -> float:
    """A shipped model's worst wave beside the truth, at the reported times where it errs most; returns its relative l2."""
    operator, card = load_pretrained(name)
    problem, (seed, number) = recipe_named(name).problem, WORST[name]
    sample = one_trajectory(problem, seed, number)
    data = pack_trajectories([prepared(sample, card.variant.view, None)], offset=problem.offset, scale=problem.scale)
    found = evaluate_reported(operator, card.variant, problem, data)
    [row] = found.rows
    with torch.no_grad():
        steps = torch.diff(data.times).tolist()
        values = rollout(operator.eval(), data.values[:, 0], data.batch, steps, card.variant.integrator)[0, :, :, 0]
    prediction = values.double().numpy() * problem.scale + problem.offset
    worst_times = np.sort(np.array(found.times)[np.argsort(row.rel_l2_by_time)[-N_MOMENTS:]])
    columns = np.searchsorted(sample.times, worst_times - 1e-6).tolist()
    units = {"unit": "mV", "time_unit": "ms"} if isinstance(problem, TissueProblem) else {}
    title = f"{name}, the worst test case: seed {seed}, number {number}, relative l2 {row.rel_l2:.4f}"
    comparison_picture(path, sample.domain, sample.times, sample.values[0], prediction, title, columns, **units)
    make_small(path)
    return row.rel_l2


def one_trajectory(problem: Any, seed: int, number: int) -> Sample:
    """One of a seed's trajectories; the others of an atrium, ninety-nine, are not solved."""
    if not isinstance(problem, TissueProblem):
        return problem.sample(seed)
    experiment = problem.experiment(seed)
    return next(problem.solved([replace(experiment, stimuli=(experiment.stimuli[number],))], "cpu"))


def viewer_pictures(path: Path):
    """A wave as isochrones, with a probe, beside the solver's, and on a tablet: `viewer-activation.png` and so on."""
    with (
        TemporaryDirectory() as folder,
        TemporaryDirectory() as profile,
        running(Viewer(ModelPredictor(), Path(folder), Limits())) as port,
        browsed(Path(profile), *LAPTOP) as page,
    ):
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for(f"document.querySelector('#legend li') && {AT_REST}", PATIENCE_S)
        click_on(page, "[data-view=PA]")
        click(page, *VEIN)
        page.wait_for(f"!document.querySelector('#play').disabled && {AT_REST}", PATIENCE_S)
        seek(page, FRONT_MS)
        click_on(page, "input[value=activation]")
        screenshot(page, path.with_name("viewer-activation.png"))
        click_on(page, "input[value=potential]")
        click_on(page, "input[value=probe]")
        click(page, *BACK_WALL)
        screenshot(page, path.with_name("viewer-wave.png"))
        click_on(page, "#compare")
        page.wait_for("document.querySelectorAll('#panes span').length === 3", PATIENCE_S)
        screenshot(page, path.with_name("viewer-comparison.png"))
        click_on(page, "#compare")
        click_on(page, "#fibres")
        page.resize(*TABLET)
        screenshot(page, path.with_name("viewer-tablet.png"))


def rest(page: Page):
    """Until the view moves no more, and names have found their places."""
    page.run("new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 1500))")


def click(page: Page, x: float, y: float):
    page.click(x, y)
    rest(page)


def click_on(page: Page, selector: str):
    place = page.run(
        f"(() => {{ const it = document.querySelector('{selector}'); it.scrollIntoView({{ block: 'nearest' }});"
        "const { x, y, width, height } = it.getBoundingClientRect(); return [x + width / 2, y + height / 2] })()"
    )
    click(page, *place)


def seek(page: Page, ms: float):
    slider = "document.querySelector('#time')"
    page.run(f"{slider}.value = {ms}; {slider}.dispatchEvent(new Event('input'))")


def screenshot(page: Page, path: Path):
    rest(page)
    page.picture(path)
    make_small(path, is_lit=True)


def make_small(path: Path, *, is_lit: bool = False):
    """With 256 colours, a fifth of the size; where light falls on a surface they are mixed, or else there would be bands."""
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as picture:
        # By how far colours reach, not by how often they are used: the few places that are wrong would turn grey. Then each
        # is the mean of what it stands for: else the many that are right would not be white.
        whole = picture.convert("RGB")
        few = whole.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        few = whole.quantize(palette=few, dither=Image.Dither.FLOYDSTEINBERG) if is_lit else few
    few.save(path, optimize=True)


PICTURES = (
    {"arrival": arrival_picture}
    | {f"worst-{name}": partial(worst_picture, name=name) for name in WORST}
    | {"viewer": viewer_pictures}
)

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        made = PICTURES[name](Path(__file__).parent / f"{name}.png")
        print(name if made is None else f"{name}: relative l2 {made:.6f}")
