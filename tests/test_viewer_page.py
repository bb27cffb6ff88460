"""The viewer's page in a real browser: what a person sees and does."""

import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from chromium import PROGRAM, Page, browsed
from PIL import Image
from toy_prediction import ToyPredictor
from viewing import running, until

from gfunk.atria.synthetic import left_atrium
from gfunk.files.reading import as_domain, read_mesh
from gfunk.files.vtk_write import write_vtp
from gfunk.viewer.predictor import Wave
from gfunk.viewer.server import Viewer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: install `chromium` to test the viewer's page")

SHIFT = 8
SHOWN = "document.getElementById('legend').textContent.includes('LSPV') && document.getElementById('progress').hidden"
PLAYABLE = "!document.getElementById('play').disabled"
HAS_PROBLEM = "!document.getElementById('problem').hidden"
MOMENT = "Number(document.getElementById('time').value)"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small atrium with fibres, in coarse triangles."""
    domain = left_atrium(300_002, edge_mm=1.5)
    path = tmp_path_factory.mktemp("mesh") / "small.vtp"
    write_vtp(path, domain.points, domain.cells, {"fibre": domain.fibres})
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, mesh: Path) -> Iterator[tuple[Viewer, str, ToyPredictor]]:
    predictor = ToyPredictor(speed=0.8, warnings=("the toy knows nothing of hearts",))
    with running(tmp_path_factory.mktemp("served"), predictor, given=mesh) as (viewer, port):
        yield viewer, f"http://127.0.0.1:{port}/#given={viewer.password}", predictor


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsed(tmp_path_factory.mktemp("browser"), width=920, height=560) as page:
        yield page


@pytest.fixture
def page(browser: Page, served: tuple[Viewer, str, ToyPredictor]) -> Iterator[Page]:
    """The page with the given mesh on it; nothing may have gone wrong in it when a test ends."""
    visit(browser, served[1])
    browser.complaints.clear()
    yield browser
    assert browser.complaints == []


def visit(browser: Page, address: str):
    """Anew: to go where one is already changes nothing."""
    browser.open("about:blank")
    browser.open(address)
    browser.wait_for(f"document.readyState === 'complete' && !!document.getElementById('legend') && {SHOWN}")


def stimulated(page: Page) -> Page:
    """With a wave from the middle of the view."""
    page.click(*middle(page))
    page.wait_for(PLAYABLE)
    return page


def middle(page: Page, right: float = 0.5, down: float = 0.45) -> tuple[float, float]:
    width, height = page.run("[document.getElementById('space').clientWidth, document.getElementById('space').clientHeight]")
    return right * width, down * height


def moved_to(page: Page, ms: float) -> bytes:
    """The picture at a moment, chosen by the slider."""
    page.run(
        f"(() => {{ const t = document.getElementById('time'); t.value = {ms}; t.dispatchEvent(new Event('input')) }})()"
    )
    return still(page)


def still(page: Page) -> bytes:
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 150))))")
    return page.picture(selector="#canvas")


def chosen(page: Page, value: str):
    page.run(f"document.querySelector('input[value={value}]').click()")


def test_the_given_mesh_is_shown_with_its_regions(page: Page):
    assert "small.vtp" in page.run("document.getElementById('about').textContent")
    legend = page.run("document.getElementById('legend').textContent")
    assert "LSPV" in legend and "mitral valve" in legend
    seen = still(page)
    chosen(page, "regions")
    page.run("document.getElementById('fibres').click()")
    assert still(page) != seen
    assert page.run("[...document.querySelectorAll('#names span')].some((name) => !name.hidden)")


def test_a_click_starts_a_wave_that_plays(page: Page, served: tuple[Viewer, str, ToyPredictor]):
    n_before = len(served[2].asked)
    stimulated(page)
    assert len(served[2].asked) == n_before + 1
    first, seen = page.run(MOMENT), page.picture(selector="#canvas")
    page.wait_for(f"{MOMENT} > {first + 5}")
    assert page.picture(selector="#canvas") != seen
    assert "Potential (mV)" in page.run("document.getElementById('legend').textContent")
    assert "the toy knows nothing" in page.run("document.getElementById('warnings').textContent").lower()


def test_a_wave_stands_still_while_another_is_awaited(
    page: Page, served: tuple[Viewer, str, ToyPredictor], monkeypatch: pytest.MonkeyPatch
):
    stimulated(page)
    # On a busy machine it may not have begun to play.
    page.wait_for(f"{MOMENT} > 0")
    predictor, may_go_on = served[2], Event()
    at_once = predictor.predicted

    def when_told(*asked: Any) -> Wave:
        assert may_go_on.wait(10)
        return at_once(*asked)

    monkeypatch.setattr(predictor, "predicted", when_told)
    page.click(*middle(page, 0.47))
    page.wait_for("document.getElementById('play').getAttribute('aria-label') === 'Play'")
    moment = page.run(MOMENT)
    time.sleep(0.3)
    assert moment > 0 and page.run(MOMENT) == moment
    may_go_on.set()
    page.wait_for(f"document.getElementById('play').getAttribute('aria-label') === 'Pause' && {MOMENT} !== {moment}")


def test_a_wave_that_has_begun_plays_and_goes_on_when_all_of_it_is_there(
    page: Page, served: tuple[Viewer, str, ToyPredictor], monkeypatch: pytest.MonkeyPatch
):
    predictor, may_go_on = served[2], Event()
    at_once = predictor.predicted

    def in_parts(*asked: Any) -> Wave:
        wave = at_once(*asked)
        assert may_go_on.wait(20)
        return wave

    monkeypatch.setattr(predictor, "predicted", in_parts)
    # A site of its own: the last wave is kept.
    page.click(*middle(page, 0.55))
    page.wait_for(f"{PLAYABLE} && {MOMENT} > 3")
    # What it tells of the stage, with the seconds, lies over the picture.
    page.run("document.getElementById('progress').style.visibility = 'hidden'")
    begun, late = moved_to(page, predictor.begun_ms), moved_to(page, 60.0)
    # Later than it is known it stands still, and the slider is as long as it will be.
    assert late == begun and page.run("Number(document.getElementById('time').max)") == predictor.until_ms
    may_go_on.set()
    page.wait_for("document.getElementById('progress').hidden")
    assert page.run(MOMENT) == 60.0 and still(page) != late


def test_time_runs_no_faster_however_often_it_was_stopped(page: Page):
    stimulated(page)
    moved_to(page, 5)
    page.run("for (let i = 0; i < 9; i++) document.getElementById('play').click()")
    ran_ms, seconds = page.run(
        f"new Promise((done) => {{ const [from, began] = [{MOMENT}, performance.now()];"
        f"setTimeout(() => done([{MOMENT} - from, (performance.now() - began) / 1000]), 800) }})"
    )
    assert 0 < ran_ms < 1.3 * 25 * seconds


def test_a_drag_turns_and_does_not_stimulate(page: Page, served: tuple[Viewer, str, ToyPredictor]):
    n_before, seen = len(served[2].asked), still(page)
    x, y = middle(page)
    page.drag(x, y, x + 120, y + 30)
    assert still(page) != seen
    assert len(served[2].asked) == n_before and not page.run(PLAYABLE)


def test_the_slider_holds_the_wave_at_a_moment(page: Page):
    stimulated(page)
    early, late = moved_to(page, 5), moved_to(page, 60)
    assert early != late and page.run("document.getElementById('moment').textContent") == "60.0 ms"
    assert page.run("document.getElementById('play').getAttribute('aria-label')") == "Play"
    # Paused, and the same moment is the same picture.
    assert moved_to(page, 5) == early and page.run(MOMENT) == 5


def test_the_keyboard_does_it_all(page: Page, served: tuple[Viewer, str, ToyPredictor]):
    n_before = len(served[2].asked)
    page.run("document.getElementById('canvas').focus()")
    seen = still(page)
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        page.press(key)
    assert "Cursor at" in page.run("document.getElementById('told').textContent") and still(page) != seen
    page.press("Enter")
    page.wait_for(PLAYABLE)
    assert len(served[2].asked) == n_before + 1
    page.press(" ")
    page.wait_for("document.getElementById('play').getAttribute('aria-label') === 'Play'")
    moment = page.run(MOMENT)
    page.press(".")
    assert page.run(MOMENT) == pytest.approx(moment + 1, abs=0.51)
    seen = still(page)
    page.press("ArrowLeft", SHIFT)
    assert still(page) != seen
    page.press("ArrowDown")
    page.press("Enter", SHIFT)
    until(lambda: len(served[2].asked) == n_before + 2)
    assert len(served[2].asked[-1]) == 2


def test_activation_is_drawn_in_bands(page: Page):
    stimulated(page)
    moved_to(page, 50)
    chosen(page, "activation")
    by_ten = still(page)
    page.run(
        "(() => { const s = document.getElementById('spacing'); s.value = '20'; s.dispatchEvent(new Event('change')) })()"
    )
    assert still(page) != by_ten
    assert "ms after the stimulus" in page.run("document.getElementById('legend').textContent")


def test_the_colours_of_activation_end_where_the_wave_does(
    page: Page, mesh: Path, served: tuple[Viewer, str, ToyPredictor], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(served[2], "speed", 3.0)
    stimulated(page)
    chosen(page, "activation")
    ticks = page.run("[...document.querySelectorAll('#legend .ticks span')].map((each) => Number(each.textContent))")
    wave = ToyPredictor(speed=3.0).predicted(
        as_domain(read_mesh(mesh)), served[2].asked[-1], lambda *_: None, lambda _: None
    )
    last = np.nanmax(wave.activation_ms)
    assert ticks[0] == 0 and last <= ticks[-1] < last + 20 < 100
    # Each is where a band begins or ends, however wide bands are.
    widths = page.run("[...document.getElementById('spacing').options].map((each) => Number(each.value))")
    assert not np.mod.outer(ticks, widths).any()


def test_all_digits_of_a_seed_are_seen(page: Page):
    assert page.run("document.getElementById('seed').value.length") == 6
    assert page.run("document.getElementById('seed').scrollWidth <= document.getElementById('seed').clientWidth")


def test_a_probe_is_seen_on_dark_colours(page: Page):
    stimulated(page)
    for lines in ("borders", "labels", "isochrones"):
        page.run(f"document.getElementById('{lines}').click()")
    x, y = middle(page, 0.4, 0.4)

    def lightest() -> int:
        with Image.open(BytesIO(moved_to(page, 0))) as picture:
            near = np.asarray(picture.convert("L").crop((int(x) - 20, int(y) - 20, int(x) + 20, int(y) + 20)))
        return near.max()

    at_rest = lightest()
    chosen(page, "probe")
    page.click(x, y)
    assert lightest() > 240 > 120 > at_rest


def test_a_probe_tells_the_potential_over_time(page: Page, served: tuple[Viewer, str, ToyPredictor]):
    stimulated(page)
    n_before = len(served[2].asked)
    chosen(page, "probe")
    page.click(*middle(page, 0.45, 0.5))
    assert page.wait_for("document.querySelector('#chart polyline')?.points.length") == 101
    assert "activated after" in page.run("document.getElementById('probe-place').textContent")
    assert len(served[2].asked) == n_before


def test_beside_the_solver_there_are_three_panes_and_the_error(page: Page):
    stimulated(page)
    alone = moved_to(page, 30)
    page.run("document.getElementById('compare').click()")
    page.wait_for("document.querySelectorAll('#panes span').length === 3")
    assert page.run("[...document.querySelectorAll('#panes span')].map((each) => each.textContent)") == [
        "Solver", "Prediction", "Error",
    ]  # fmt: skip
    assert "relative l2 error" in page.run("document.getElementById('errors').textContent")
    assert still(page) != alone
    page.run("document.getElementById('compare').click()")
    page.wait_for("document.querySelectorAll('#panes span').length === 0")


@pytest.mark.parametrize("late_ms, end_ms", [(0.04, 0.1), (0.3, 0.5), (30.0, 10.0)])
def test_the_colours_of_the_error_end_where_nearly_all_of_it_does(
    page: Page,
    mesh: Path,
    served: tuple[Viewer, str, ToyPredictor],
    monkeypatch: pytest.MonkeyPatch,
    late_ms: float,
    end_ms: float,
):
    monkeypatch.setattr(served[2], "late_ms", late_ms)
    stimulated(page)
    page.run("document.getElementById('compare').click()")
    page.wait_for("document.querySelectorAll('#panes span').length === 3")

    def end() -> float:
        low, zero, high = page.run(
            "[...document.querySelectorAll('#legend .both .ticks span')].map((each) => each.textContent)"
        )
        assert (low, zero) == (f"\N{MINUS SIGN}{high}", "0")
        return float(high)

    domain, toy = as_domain(read_mesh(mesh)), ToyPredictor(speed=served[2].speed, late_ms=late_ms)
    wave = toy.predicted(domain, served[2].asked[-1], lambda *_: None, lambda _: None)
    truth = toy.compared(domain, wave, lambda *_: None).truth
    most_mV = np.quantile(np.abs(wave.values_mV - truth.values_mV), 0.999)
    assert end() == min((each for each in (1, 2, 5, 10, 20) if each > most_mV), default=60)
    chosen(page, "activation")
    assert end() == end_ms
    # Too early by a third of the scale or more is violet, however little that is.
    with Image.open(BytesIO(still(page))) as picture:
        pane = np.asarray(picture.convert("RGB"), float)[:, -picture.width // 3 :]
    assert (pane[..., 2] - pane[..., 1] > 15).mean() > 0.05


def test_a_mesh_is_opened_and_a_damaged_one_is_told_of(page: Page, mesh: Path, tmp_path: Path):
    # What a file is called is text, whatever it looks like.
    other, broken = tmp_path / "<img src=x onerror=boom()>.vtp", tmp_path / "broken.vtp"
    other.write_bytes(mesh.read_bytes())
    broken.write_bytes(mesh.read_bytes()[:1000])
    page.choose_files("#files", [other])
    page.wait_for("document.getElementById('about').textContent.includes('<img')")
    page.wait_for(f"{SHOWN} && !document.getElementById('hint').hidden")
    assert not page.run("document.querySelector('main img')")
    page.choose_files("#files", [broken])
    page.wait_for(HAS_PROBLEM)
    assert page.run("document.getElementById('problem-text').textContent").startswith("Broken.vtp")
    # The mesh from before is still there, and works.
    page.run("document.getElementById('problem-close').click()")
    stimulated(page)


def test_pictures_and_waves_are_saved(page: Page, tmp_path: Path):
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    stimulated(page)
    for kind, begins in (("png", b"\x89PNG"), ("npz", b"PK"), ("vtp", b"<?xml")):
        page.run(f"document.getElementById('save-{kind}').click()")
        until(lambda kind=kind: bool(list(tmp_path.glob(f"*.{kind}"))))
        assert next(tmp_path.glob(f"*.{kind}")).read_bytes().startswith(begins)


def test_scripts_from_elsewhere_do_not_run(browser: Page, served: tuple[Viewer, str, ToyPredictor]):
    visit(browser, served[1])
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.boom = 1\">')")
    browser.run("document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.boom = 2' }))")
    time.sleep(0.2)
    assert browser.run("window.boom === undefined")
    browser.wait_for("true")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


def test_who_wishes_less_motion_gets_it(browser: Page, served: tuple[Viewer, str, ToyPredictor]):
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    try:
        visit(browser, served[1])
        stimulated(browser)
        assert browser.run("document.getElementById('play').getAttribute('aria-label')") == "Play"
        assert browser.run("document.querySelector('input[value=activation]').checked")
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


def test_on_a_narrow_screen_nothing_is_cut_off(page: Page):
    page.resize(600, 900)
    try:
        assert page.run("document.documentElement.scrollWidth") <= 600
        stimulated(page)
        assert page.run(
            "document.getElementById('player').getBoundingClientRect().right <= 600 && "
            "document.getElementById('canvas').clientWidth <= 600"
        )
    finally:
        page.resize(920, 560)


def test_all_controls_have_names(page: Page):
    stimulated(page)
    nameless = page.run(
        "[...document.querySelectorAll('button, input, select, a, canvas:not([aria-hidden]), svg[role]')].filter((each) => "
        "!(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length)).map((each) => each.id)"
    )
    assert nameless == []
