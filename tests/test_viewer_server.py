"""The viewer's server: who is let in, what is kept apart, in which order work is done, and what it leaves behind."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_prediction import ToyPredictor
from viewing import Visitor, running, until

from gfunk.cli import main
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.files.reading import read_domain
from gfunk.files.vtk import read_vtk
from gfunk.viewer.guard import LOOPBACK, is_ours
from gfunk.viewer.server import Viewer
from gfunk.viewer.sessions import Limits
from gfunk.viewer.uploads import COMPANIONS, MAIN, announced_parts
from gfunk.viewer.worker import Replaced, Worker

LIMITS = Limits(upload_bytes=200_000, nodes=500, sessions=4, scenes=2, kept=2)


def ball_off(n: int = 12) -> bytes:
    """A ball of 40 mm across as an OFF file: n rings of n nodes, and two poles."""
    turn, rise = np.meshgrid(np.arange(n) * 2 * np.pi / n, np.linspace(0, np.pi, n + 2)[1:-1])
    rings = np.stack([np.sin(rise) * np.cos(turn), np.sin(rise) * np.sin(turn), np.cos(rise)], axis=-1).reshape(-1, 3)
    points = 20 * np.concatenate([rings, [[0, 0, 1], [0, 0, -1]]])
    cells = []
    for i in range(n):
        j = (i + 1) % n
        cells += [(n * n, i, j), (n * n + 1, n * (n - 1) + j, n * (n - 1) + i)]
        for ring in range(n - 1):
            a, b = n * ring, n * (ring + 1)
            cells += [(a + i, b + i, b + j), (a + i, b + j, a + j)]
    lines = ["OFF", f"{len(points)} {len(cells)} 0", *(" ".join(f"{x:.6f}" for x in point) for point in points)]
    return "\n".join([*lines, *(f"3 {a} {b} {c}" for a, b, c in cells), ""]).encode()


BALL = {".off": ball_off()}


def read_ball(folder: Path) -> Domain:
    (folder / "ball.off").write_bytes(BALL[".off"])
    return read_domain(folder / "ball.off")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewer, int]]:
    with running(tmp_path_factory.mktemp("served"), limits=LIMITS) as found:
        yield found


@pytest.fixture
def visitor(served: tuple[Viewer, int]) -> Visitor:
    return Visitor(served[1]).comes()


@dataclass
class Held(ToyPredictor):
    """Waits for leave before its first prediction, so that requests queue up behind it."""

    began: threading.Event = field(default_factory=threading.Event)
    leave: threading.Event = field(default_factory=threading.Event)

    def predicted(self, ready, sites, say, show):
        self.began.set()
        assert self.leave.wait(20)
        return super().predicted(ready, sites, say, show)


# Who is let in


def test_another_visitor_has_another_session_and_never_sees_ones_mesh(visitor: Visitor, served: tuple[Viewer, int]):
    scene = visitor.shows(BALL)
    other = Visitor(served[1]).comes()
    assert other.cookie != visitor.cookie
    for answer in (
        other.post("wave", scene=scene, nodes=[0]),
        other.post("truth", scene=scene, nodes=[0]),
        other.post("ready", scene=scene),
        other.ask("GET", f"/api/download/wave.npz?scene={scene}&nodes=0"),
    ):
        assert (answer.status, answer.error) == (400, "this mesh is not loaded any more: load it again")
    assert visitor.post("wave", scene=scene, nodes=[0]).status == 200


def test_without_a_session_nothing_is_done(served: tuple[Viewer, int]):
    stranger = Visitor(served[1])
    for cookie in ("", f"{served[0].cookie}=guessed", "other=1"):
        stranger.cookie = cookie
        answer = stranger.post("atrium", seed=1)
        assert (answer.status, answer.error) == (401, "your session has ended: reload the page")


def test_the_cookie_is_kept_from_scripts_and_other_sites(served: tuple[Viewer, int]):
    said = Visitor(served[1]).ask("GET", "/").headers["set-cookie"].lower()
    assert "httponly" in said and "samesite=strict" in said


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_names_and_other_sites_are_refused(visitor: Visitor, headers: dict[str, str | None]):
    answer = visitor.ask("POST", "/api/atrium", json.dumps({"seed": "none"}).encode(), headers)
    assert answer.status in (400, 403) and b"seed" not in answer.content


def test_a_tunnel_may_change_the_port(visitor: Visitor):
    tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert visitor.ask("GET", "/", headers=tunnel).status == 200


@given(st.from_regex(r"[a-z0-9.-]{1,30}(:\d{1,5})?", fullmatch=True) | st.sampled_from(["localhost", "127.0.0.1:80"]))
def test_on_loopback_only_its_own_names_are_answered_to(host: str):
    assert is_ours(host, LOOPBACK, any_address=False) == (host.split(":")[0] in LOOPBACK)


def test_where_it_is_open_to_others_any_address_will_do_but_no_name():
    answers = {
        host: is_ours(host, LOOPBACK, any_address=True) for host in ("10.1.1.5:80", "[fe80::1]:80", "evil.example:80")
    }
    assert list(answers.values()) == [True, True, False]


def test_every_answer_says_what_a_page_may_do(visitor: Visitor):
    for method, address in [
        ("GET", "/"),
        ("GET", "/static/main.js"),
        ("GET", "/nothing"),
        ("POST", "/api/wave"),
        ("PUT", "/"),
    ]:
        headers = visitor.ask(method, address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_the_page_asks_no_other_machine_for_anything(visitor: Visitor):
    page = visitor.ask("GET", "/").content
    for name in ("main.js", "page.css", "view.js", "colours.js", "server.js"):
        page += visitor.ask("GET", f"/static/{name}").content
    outside = [word for word in page.split() if b"://" in word and b"www.w3.org" not in word]
    assert not outside


# Paths


@pytest.mark.parametrize(
    "address",
    [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static//etc/passwd",
        "/static/%2fetc%2fpasswd", "/static/three/../../server.py", "/api/download/..%2f..%2fetc%2fpasswd",
        "/api/download/wave.npz%00.vtp", "/..", "/static/\\..\\server.py",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(visitor: Visitor, address: str):
    answer = visitor.ask("GET", address)
    assert answer.status in (400, 404) and b"import" not in answer.content and b"root:" not in answer.content


@given(st.text(max_size=20), st.integers(0, 10))
def test_only_endings_of_the_readers_pass(suffix: str, size: int):
    try:
        parts = announced_parts(f"{suffix}:{size}", 100)
    except InputError:
        return
    assert all(part.suffix in (*MAIN, *COMPANIONS) for part in parts)


@pytest.mark.parametrize("parts", ["../../x.off", "/tmp/x.off", ".off/../../../x", "mesh.off", ".py", ".html", "", ".OFF\0"])
def test_a_name_of_the_visitors_is_never_a_path(visitor: Visitor, served: tuple[Viewer, int], parts: str):
    everything = set(served[0].sessions._folder.parent.rglob("*"))
    answer = visitor.ask("POST", f"/api/upload?parts={parts.replace(chr(0), '%00')}:3", b"OFF")
    assert answer.status == 400 and "no reader" in (answer.error or "")
    assert set(served[0].sessions._folder.parent.rglob("*")) == everything


def test_the_label_is_only_text(visitor: Visitor):
    label = "../../<img src=x onerror=alert(1)>.off"
    assert visitor.upload(BALL, label=label).about["label"] == label


# Limits and damaged uploads


def test_too_large_an_upload_is_refused_before_it_is_read(visitor: Visitor):
    answer = visitor.ask("POST", f"/api/upload?parts=.off:{2 * LIMITS.upload_bytes}", b"")
    assert (answer.status, answer.error) == (400, "0.4 MB is too much: the limit is 0.2 MB")


@pytest.mark.parametrize(("said", "why"), [(10, "longer than it said"), (10_000, "broke off")])
def test_an_upload_is_as_long_as_it_says(visitor: Visitor, served: tuple[Viewer, int], said: int, why: str):
    answer = visitor.ask("POST", f"/api/upload?parts=.off:{said}", 100 * b"x")
    assert answer.status == 400 and why in (answer.error or "")


def test_too_many_nodes_are_refused_and_the_file_goes(visitor: Visitor, served: tuple[Viewer, int]):
    answer = visitor.upload({".off": ball_off(23)}, label="fine.off")
    assert answer.error == (
        "fine.off: 531 nodes, and the viewer takes 500: make it coarser with `gfunk mesh FILE --edge 1 --out even.vtp`"
    )
    session = served[0].sessions.known(visitor.cookie.split("=")[1])
    assert session and not list(session.folder.iterdir())


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({".pts": b"0\n"}, "half a mesh"),
        ({".lon": b"1\n"}, "fibres without a mesh"),
        ({".off": b"OFF\n", ".vtk": b"x"}, "different formats"),
        ({".pts": b"0\n", ".belem": b"0\n"}, "half a mesh"),
    ],
)
def test_files_that_make_no_mesh_together_are_refused(visitor: Visitor, files: dict[str, bytes], why: str):
    answer = visitor.upload(files)
    assert answer.status == 400 and why in (answer.error or "")


@pytest.mark.parametrize("suffix", [suffix for suffix in MAIN if suffix not in (".pts", ".elem", ".bpts", ".belem")])
def test_damaged_files_get_one_line_about_the_visitors_own_file(visitor: Visitor, served: tuple[Viewer, int], suffix: str):
    for content in (b"", b"\0\xff" * 50, b"OFF 3 1 0\n0 0 0\n", b"# vtk DataFile Version 3.0\nx\nASCII\nDATASET POLYDATA\n"):
        answer = visitor.upload({suffix: content}, label=f"heart{suffix}")
        assert answer.error and "\n" not in answer.error and "went wrong" not in answer.error, answer.content
        assert answer.error.startswith(f"heart{suffix}") and str(served[0].sessions._folder) not in answer.error


def test_requests_that_make_no_sense_are_told_so(visitor: Visitor):
    scene = visitor.shows(BALL)
    wrong = [
        visitor.ask("POST", "/api/wave", b"{"), visitor.ask("POST", "/api/wave", b"[]"),
        visitor.ask("POST", "/api/wave", b"[" * 9000), visitor.ask("POST", "/api/wave", b" " * 20_000),
        visitor.post("wave", scene=scene), visitor.post("wave", scene=scene, nodes=[]),
        visitor.post("wave", scene=scene, nodes=[1.5]), visitor.post("wave", scene=scene, nodes=list(range(9))),
        visitor.post("atrium", seed=-1), visitor.post("atrium", seed=True), visitor.post("given", password="guess"),
        visitor.ask("GET", f"/api/download/wave.npz?scene={scene}&nodes=x"),
        visitor.ask("GET", f"/api/download/wave.exe?scene={scene}&nodes=0"),
    ]  # fmt: skip
    assert all(answer.status == 400 and answer.error for answer in wrong)
    for nodes in ([146], [-1]):
        assert "nodes run from 0 to 145" in (visitor.post("wave", scene=scene, nodes=nodes).error or "")


# What is sent


def test_a_mesh_and_its_wave_arrive_as_they_were_made(visitor: Visitor, tmp_path: Path):
    domain = read_ball(tmp_path)
    answer = visitor.upload(BALL)
    assert answer.stages == ["wait", "read", "send"]
    np.testing.assert_array_equal(answer.arrays["points"], domain.points.astype(np.float32))
    np.testing.assert_array_equal(answer.arrays["triangles"], domain.cells)

    scene = answer.about["scene"]
    answer = visitor.post("wave", scene=scene, nodes=[3, 140])
    wave = ToyPredictor().wave(domain, np.array([3, 140]), 0.0)
    assert answer.stages == ["wait", "regions", "resample", "modes", "operator", "send"]
    levels = answer.arrays["frames"] * answer.about["step_mV"] + answer.about["low_mV"]
    # Half a step, and what float32 adds.
    assert np.abs(levels - wave.values_mV).max() <= 0.501 * answer.about["step_mV"]
    np.testing.assert_array_equal(answer.arrays["activation_ms"], wave.activation_ms.astype(np.float32))
    np.testing.assert_array_equal(answer.arrays["times_ms"], wave.times_ms.astype(np.float32))
    # What came first is how it begins.
    begun, _ = answer.waves
    n_begun = len(begun["times_ms"])
    np.testing.assert_array_equal(begun["times_ms"], answer.arrays["times_ms"][:n_begun])
    assert begun["times_ms"][-1] == ToyPredictor().begun_ms and begun["frames"].shape == (n_begun, domain.n_nodes)
    np.testing.assert_array_equal(begun["activation_ms"], answer.arrays["activation_ms"])
    assert len(visitor.post("wave", scene=scene, nodes=[3, 140]).waves) == 1  # all of it is known now

    truth = visitor.post("truth", scene=scene, nodes=[3, 140])
    assert truth.arrays["frames"].shape == answer.arrays["frames"].shape
    assert 0 < truth.about["lat_error_ms"] <= ToyPredictor().late_ms and truth.about["rel_l2"] > 0

    stored = np.load(BytesIO(visitor.ask("GET", f"/api/download/wave.npz?scene={scene}&nodes=3,140").content))
    np.testing.assert_array_equal(stored["values_mV"], wave.values_mV)
    np.testing.assert_array_equal(stored["sites_mm"], domain.points[[3, 140]])
    (tmp_path / "wave.vtp").write_bytes(visitor.ask("GET", f"/api/download/wave.vtp?scene={scene}&nodes=3,140").content)
    np.testing.assert_allclose(read_vtk(tmp_path / "wave.vtp").point_data["activation_ms"], wave.activation_ms)


def test_the_parts_of_an_opencarp_mesh_come_together(visitor: Visitor):
    points = b"4\n0 0 0\n40000 0 0\n40000 40000 0\n0 40000 5000\n"
    files = {".pts": points, ".elem": b"2\nTr 0 1 2 7\nTr 0 2 3 7\n", ".lon": b"1\n1 0 0\n1 0 0\n"}
    with_fibres, bare = (visitor.upload({suffix: files[suffix] for suffix in some}) for some in (files, (".pts", ".elem")))
    np.testing.assert_allclose(np.ptp(with_fibres.arrays["points"], axis=0), [40, 40, 5], rtol=1e-6)
    assert len(with_fibres.arrays["fibres"]) > 0
    # Without fibres there is nothing to draw.
    assert len(bare.arrays["fibres"]) == 0


def test_a_synthetic_atrium_comes_with_regions_and_a_word_of_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gfunk.viewer import studio

    made: list[int] = []

    def small(seed: int) -> Domain:
        made.append(seed)
        return read_ball(tmp_path)

    monkeypatch.setattr(studio, "left_atrium", small)
    with running(tmp_path / "served") as (_, port):
        visitor = Visitor(port).comes()
        for seed, is_doubtful in ((7, True), (300_000, False)):
            scene = visitor.post("atrium", seed=seed).about["scene"]
            warnings = visitor.post("wave", scene=scene, nodes=[0]).about["warnings"]
            assert bool(warnings) == is_doubtful
        assert made == [7, 300_000]


def test_the_given_mesh_is_for_those_who_know_the_address(tmp_path: Path):
    (tmp_path / "ball.off").write_bytes(BALL[".off"])
    with running(tmp_path / "served", given=tmp_path / "ball.off") as (viewer, port):
        visitor = Visitor(port).comes()
        assert "choose one here" in (visitor.post("given", password="x").error or "")
        assert visitor.post("given", password=viewer.password).about["label"] == "ball.off"


# Order


def test_jobs_are_done_in_the_order_asked_and_a_newer_one_takes_the_place_of_its_elder():
    worker, leave, done = Worker(), threading.Event(), []
    began = threading.Event()
    first, _ = worker.ask("first", lambda: began.set() or leave.wait(10))
    assert began.wait(5)
    jobs = [worker.ask(key, lambda key=key, number=number: done.append((key, number))) for number, key in enumerate("abcab")]
    leave.set()
    for future, _ in jobs[2:]:
        future.result(5)
    assert done == [("a", 3), ("b", 4), ("c", 2)]
    assert all(isinstance(future.exception(5), Replaced) for future, _ in jobs[:2])
    assert [n_ahead for _, n_ahead in jobs] == [1, 2, 3, 1, 2]
    worker.close()
    assert first.result(5)


def test_a_job_that_fails_or_is_withdrawn_leaves_the_worker_working():
    worker, leave = Worker(), threading.Event()
    held, _ = worker.ask("held", lambda: leave.wait(10))
    withdrawn, _ = worker.ask("withdrawn", lambda: pytest.fail("nobody waits for this"))
    worker.withdraw("withdrawn", withdrawn)
    failing, _ = worker.ask("failing", lambda: 1 / 0)
    last, _ = worker.ask("last", lambda: 42)
    leave.set()
    assert last.result(5) == 42 and held.result(5) and withdrawn.cancelled()
    assert isinstance(failing.exception(5), ZeroDivisionError)
    worker.close()


def test_ten_clicks_at_once_are_served_in_order(tmp_path: Path):
    predictor = Held()
    with running(tmp_path / "served", predictor, Limits(kept=20)) as (viewer, port), ThreadPoolExecutor(11) as pool:
        visitors = [Visitor(port).comes() for _ in range(10)]
        scenes = [visitor.shows(BALL) for visitor in visitors]
        answers = []
        for number, (visitor, scene) in enumerate(zip(visitors, scenes, strict=True)):
            answers.append(pool.submit(visitor.post, "wave", scene=scene, nodes=[number]))
            assert predictor.began.wait(10)
            until(lambda number=number: len(viewer.worker._waiting) == number)
        # The last visitor changes his mind while he waits.
        newer = pool.submit(visitors[9].post, "wave", scene=scenes[9], nodes=[77])
        assert answers[9].result(20).lines[-1]["replaced"]
        predictor.leave.set()
        waves = [answer.result(20) for answer in (*answers[:9], newer)]
    assert [wave.lines[0]["ahead"] for wave in waves[1:]] == list(range(1, 10))
    assert [int(wave.arrays["activation_ms"].argmin()) for wave in waves] == [*range(9), 77]
    # The predictor saw them in the order of the clicks.
    points = read_ball(tmp_path).points
    assert predictor.asked == [(tuple(points[node].tolist()),) for node in (*range(9), 77)]


def test_an_upload_whose_place_a_newer_one_took_leaves_nothing(tmp_path: Path):
    predictor = Held()
    with running(tmp_path / "served", predictor) as (viewer, port), ThreadPoolExecutor(3) as pool:
        visitor = Visitor(port).comes()
        clicked = pool.submit(visitor.post, "wave", scene=visitor.shows(BALL), nodes=[0])
        assert predictor.began.wait(10)
        older = pool.submit(visitor.upload, BALL)
        until(lambda: len(viewer.worker._waiting) == 1)
        newer = pool.submit(visitor.upload, BALL)
        assert older.result(20).lines[-1]["replaced"]
        predictor.leave.set()
        assert newer.result(20).about["nodes"] == 146 and clicked.result(20).status == 200
        session = viewer.sessions.known(visitor.cookie.split("=")[1])
        assert session and len(list(session.folder.iterdir())) == len(session.scenes) == 2


# What stays


@dataclass
class Watched(ToyPredictor):
    """Knows which of the meshes it made ready are still held by anyone."""

    seen: list[weakref.ref[Domain]] = field(default_factory=list)

    def made_ready(self, domain: Domain, say) -> Domain:
        self.seen.append(weakref.ref(domain))
        return super().made_ready(domain, say)


def test_memory_and_disk_return_after_a_hundred_uploads(tmp_path: Path):
    predictor, folder = Watched(), tmp_path / "served"
    with running(folder, predictor, LIMITS) as (viewer, port):
        visitor = Visitor(port)
        for number in range(100):
            visitor = visitor if number % 5 else Visitor(port).comes()
            scene = visitor.shows(BALL)
            if number % 3 == 0:
                assert visitor.post("wave", scene=scene, nodes=[0]).status == 200
        gc.collect()
        assert len(viewer.sessions) == LIMITS.sessions == len(list(folder.iterdir()))
        assert viewer.studio.n_kept == LIMITS.kept and 0 < sum(ref() is not None for ref in predictor.seen) <= LIMITS.kept
        assert sum(1 for path in folder.rglob("*") if path.is_file()) == LIMITS.sessions * LIMITS.scenes
        # What made room can be made again.
        session = viewer.sessions.known(visitor.cookie.split("=")[1])
        assert session and all(
            visitor.post("wave", scene=scene, nodes=[5]).about["step_mV"] > 0 for scene in [*session.scenes]
        )


def test_a_visitor_of_long_ago_has_to_come_again(tmp_path: Path):
    with running(tmp_path / "served", limits=LIMITS) as (_, port):
        first = Visitor(port).comes()
        for _ in range(LIMITS.sessions):
            Visitor(port).comes()
        assert first.post("atrium", seed=1).status == 401
        assert first.comes().post("atrium", seed=-1).status == 400


# The command


def test_a_taken_port_is_said_in_one_line(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["view", "--no-browser", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"port {port}" in said and "free one" in said


def test_a_mesh_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["view", "nothing.vtk", "--no-browser"]) == 2
    assert capsys.readouterr().err == "gfunk: nothing.vtk: no such file\n"


def test_an_unknown_model_is_said_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["view", "--model", "nonesuch", "--no-browser"]) == 2
    assert "no shipped model 'nonesuch'" in capsys.readouterr().err


def test_edges_longer_than_the_model_learned_on_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["view", "--edge", "3", "--no-browser"]) == 2
    assert "edges of 3 mm: the model has learned on 1 mm" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_viewer_cleanly(tmp_path: Path, how: signal.Signals):
    command = [sys.executable, "-m", "gfunk.cli", "view", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().split()[-1]
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        assert Visitor(port).ask("GET", "/").status == 200 and list(tmp_path.glob("gfunk-view-*"))
        process.send_signal(how)
        assert process.wait(20) == 0
        assert process.stderr.read() == "Ctrl-C ends it.\n" and not list(tmp_path.glob("gfunk-view-*"))
