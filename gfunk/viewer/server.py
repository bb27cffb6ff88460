"""The viewer's server: who asks for what. Answers are streams of stages that end in the bytes of a mesh or wave."""

import asyncio
import json
import secrets
import shutil
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gfunk.errors import InputError
from gfunk.viewer.guard import LOOPBACK, Guard, refusal
from gfunk.viewer.packing import line, packed, packed_mesh, packed_parts, packed_wave
from gfunk.viewer.predictor import Predictor, Say, Wave
from gfunk.viewer.sessions import Limits, Scene, Session, Sessions
from gfunk.viewer.studio import Studio, doubts
from gfunk.viewer.uploads import announced_parts, stored
from gfunk.viewer.worker import Replaced, Worker

STATIC = Path(__file__).parent / "static"
MOST_REQUEST_BYTES = 10_000  # of anything but an upload
LARGEST_SEED = 10**9
DOWNLOADS = {"wave.npz": "application/octet-stream", "wave.vtp": "application/xml"}

Send = Callable[[bytes], None]
Work = Callable[[Say, Send], bytes]


class Viewer:
    """What a server holds: its visitors, the one who works for them, and the mesh named on the command line, if any."""

    def __init__(self, predictor: Predictor, folder: Path, limits: Limits, given: Path | None = None):
        self.limits, self.given = limits, given
        self.sessions = Sessions(folder, limits.sessions)
        self.studio = Studio(predictor, limits)
        self.worker = Worker()
        # Cookies know no ports: another viewer on this machine must not share ours.
        self.cookie = f"gfunk-{secrets.token_hex(4)}"
        # Whoever knows this word, as part of the printed address, sees the given mesh.
        self.password = secrets.token_urlsafe(16)

    def app(self, host: str = "127.0.0.1") -> Starlette:
        posts = {
            "atrium": self.atrium, "upload": self.upload, "given": self.show_given,
            "parts": self.parts, "ready": self.ready, "wave": self.wave, "truth": self.truth,
        }  # fmt: skip
        return Starlette(
            routes=[
                Route("/", self.page),
                *(Route(f"/api/{name}", self._for_visitors(answer), methods=["POST"]) for name, answer in posts.items()),
                Route("/api/download/{name}", self._for_visitors(self.download)),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(Guard, hosts=(*LOOPBACK, host.lower()), any_address=host not in LOOPBACK)],
            lifespan=self._lifespan,
            exception_handlers={404: _not_found, 405: _not_found},
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette):
        yield
        self.worker.close()

    async def page(self, request: Request) -> Response:
        """The page itself; a visitor who has no session yet, or whose has ended, gets a new one."""
        response = FileResponse(STATIC / "index.html")
        if self.sessions.known(request.cookies.get(self.cookie)) is None:
            response.set_cookie(self.cookie, self.sessions.new().name, httponly=True, samesite="strict")
        return response

    async def atrium(self, request: Request, session: Session) -> Response:
        seed = (await _asked(request)).get("seed")
        if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
            raise InputError(f"a seed is a whole number from 0 to {LARGEST_SEED:,}")
        return self._shown(session, Scene(name=_new_name(), label=f"Synthetic atrium {seed}", source=seed))

    async def upload(self, request: Request, session: Session) -> Response:
        parts = announced_parts(request.query_params.get("parts", ""), self.limits.upload_bytes)
        folder = session.new_folder()
        try:
            path = await stored(request.stream(), parts, folder)
        except (InputError, ClientDisconnect, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        label = " ".join(request.query_params.get("label", "").split())[:80] or path.name
        return self._shown(session, Scene(name=_new_name(), label=label, source=path, folder=folder))

    async def show_given(self, request: Request, session: Session) -> Response:
        word = (await _asked(request)).get("password")
        is_right = isinstance(word, str) and secrets.compare_digest(word.encode(), self.password.encode())
        if self.given is None or not is_right:
            raise InputError("no mesh was given on the command line: choose one here")
        return self._shown(session, Scene(name=_new_name(), label=self.given.name, source=self.given))

    async def parts(self, request: Request, session: Session) -> Response:
        """What the mesh alone does not say: its regions, and fibres if the file had none."""
        scene = session.scene(str((await _asked(request)).get("scene")))
        return self._stream((session.name, "parts"), lambda say, _: packed_parts(self.studio.domain(scene, say)))

    async def ready(self, request: Request, session: Session) -> Response:
        scene = session.scene(str((await _asked(request)).get("scene")))

        def work(say: Say, _: Send) -> bytes:
            self.studio.make_ready(scene, say)
            return packed({}, {})

        return self._stream((session.name, "ready"), work)

    async def wave(self, request: Request, session: Session) -> Response:
        asked = await _asked(request)
        scene, nodes = session.scene(str(asked.get("scene"))), self._nodes(asked.get("nodes"))

        def content(wave: Wave, *, is_last: bool) -> bytes:
            about = {"warnings": [*wave.warnings, *doubts(scene)], "trust": wave.trust}
            return packed_wave(wave, about, is_last=is_last)

        def work(say: Say, send: Send) -> bytes:
            wave = self.studio.wave(scene, nodes, say, show=lambda begun: send(content(begun, is_last=False)))
            say("send")
            return content(wave, is_last=True)

        return self._stream((session.name, "wave"), work)

    async def truth(self, request: Request, session: Session) -> Response:
        asked = await _asked(request)
        scene, nodes = session.scene(str(asked.get("scene"))), self._nodes(asked.get("nodes"))

        def work(say: Say, _: Send) -> bytes:
            beside = self.studio.beside(scene, nodes, say)
            say("send")
            rel_l2 = beside.rel_l2 if isfinite(beside.rel_l2) else None
            return packed_wave(beside.truth, {"rel_l2": rel_l2, "lat_error_ms": beside.lat_error_ms})

        return self._stream((session.name, "truth"), work)

    async def download(self, request: Request, session: Session) -> Response:
        name = request.path_params["name"]
        if name not in DOWNLOADS:
            raise InputError(f"there is {' and '.join(DOWNLOADS)} to download")
        scene = session.scene(request.query_params.get("scene", ""))
        nodes = self._nodes([_whole(word) for word in request.query_params.get("nodes", "").split(",")])
        path = session.new_folder() / name
        remove = partial(shutil.rmtree, path.parent, ignore_errors=True)
        work = partial(self.studio.write, path, scene, nodes, _say_nothing)
        try:
            await asyncio.wrap_future(self.worker.ask((session.name, "download"), work)[0])
        except BaseException:
            remove()
            raise
        return FileResponse(path, media_type=DOWNLOADS[name], filename=f"gfunk-{name}", background=BackgroundTask(remove))

    def _nodes(self, asked: Any) -> list[int]:
        if not isinstance(asked, list) or not all(type(node) is int for node in asked):
            raise InputError("nodes are named by their numbers")
        if not 1 <= len(asked) <= self.limits.sites:
            raise InputError(f"stimulate 1 to {self.limits.sites} sites at once, not {len(asked)}")
        return asked

    def _shown(self, session: Session, scene: Scene) -> Response:
        """Make the mesh and send it; it is one of the visitor's from then on."""

        def work(say: Say, _: Send) -> bytes:
            domain = self.studio.mesh(scene, say)
            session.add(scene, self.limits.scenes)
            say("send")
            return packed_mesh(scene.name, scene.label, domain)

        def ended(_: Future[bytes]):
            # Also where it never began.
            if scene.folder and scene.name not in session.scenes:
                shutil.rmtree(scene.folder, ignore_errors=True)

        return self._stream((session.name, "mesh"), work, ended)

    def _for_visitors(self, answer: Callable[[Request, Session], Awaitable[Response]]) -> Callable[..., Any]:
        """Answers known visitors only; what is wrong with a request is said in one line."""

        async def answered(request: Request) -> Response:
            session = self.sessions.known(request.cookies.get(self.cookie))
            if session is None:
                return refusal("your session has ended: reload the page", 401)
            try:
                return await answer(request, session)
            except (InputError, Replaced) as error:
                return refusal(in_words(error), 400)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                return refusal(in_words(error), 500)

        return answered

    def _stream(
        self, key: tuple[str, str], work: Work, ended: Callable[[Future[bytes]], None] = lambda _: None
    ) -> StreamingResponse:
        """A line of JSON for each stage, then the bytes, or a line that says what went wrong. Work may send some before."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Any] = asyncio.Queue()

        def tell(event: Any):
            with suppress(RuntimeError):  # the server has closed meanwhile
                loop.call_soon_threadsafe(events.put_nowait, event)

        def say(stage: str, done: float | None = None):
            tell(line({"stage": stage, "done": done}))

        future, n_ahead = self.worker.ask(key, lambda: work(say, tell))
        future.add_done_callback(ended)
        future.add_done_callback(tell)

        async def lines() -> AsyncIterator[bytes]:
            try:
                yield line({"stage": "wait", "ahead": n_ahead})
                while (event := await events.get()) is not future:
                    yield event
                try:
                    content = future.result()
                except BaseException as error:
                    yield line({"error": in_words(error), "replaced": isinstance(error, Replaced)})
                else:
                    yield content
            finally:
                self.worker.withdraw(key, future)

        return StreamingResponse(lines(), media_type="application/octet-stream")


def in_words(error: BaseException) -> str:
    """What the visitor is told; what is our fault is told to the terminal too."""
    if isinstance(error, InputError):
        return " ".join(str(error).split())
    if isinstance(error, Replaced):
        return "a newer request took this one's place"
    if isinstance(error, (CancelledError, asyncio.CancelledError)):
        return "the viewer was closed"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this mesh: take a coarser one"
    traceback.print_exception(error, file=sys.stderr)
    return f"something went wrong in the viewer ({type(error).__name__}); its terminal tells more"


async def _asked(request: Request) -> dict[str, Any]:
    """The JSON object a page sent, if it is short enough to be one of ours."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_REQUEST_BYTES:
            raise InputError("the request is too long")
    try:
        asked = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    if not isinstance(asked, dict):
        raise InputError("the request is not a JSON object")
    return asked


def _say_nothing(*_: object):
    pass


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InputError(f"{text[:20]!r} is no whole number")
    return int(text)


def _new_name() -> str:
    return secrets.token_hex(8)


async def _not_found(_: Request, error: Exception) -> Response:
    return refusal("there is nothing here", getattr(error, "status_code", 404))
