"""Runs the viewer: a free port, a folder that goes with it, a browser that opens, and an end by Ctrl-C."""

import signal
import socket
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import uvicorn

from gfunk.errors import InputError
from gfunk.viewer.predictor import Predictor
from gfunk.viewer.server import Viewer
from gfunk.viewer.sessions import Limits


def serve(
    predictor: Predictor,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    given: Path | None = None,
    limits: Limits | None = None,
    opens_browser: bool = True,
    on_start: Callable[[str], None] = print,
):
    """Serve the page until it is interrupted; port 0 is any free one."""
    # openCARP's files may be named by what their names have in common.
    if given is not None and not (given.exists() or given.with_name(f"{given.name}.pts").exists()):
        raise InputError(f"{given}: no such file")
    with listening(host, port) as listener, TemporaryDirectory(prefix="gfunk-view-") as folder:
        viewer = Viewer(predictor, Path(folder), limits or Limits(), given)
        address = f"http://{_shown_host(host)}:{listener.getsockname()[1]}/"
        address += f"#given={viewer.password}" if given else ""
        on_start(address)
        if opens_browser:
            webbrowser.open(address)
        # Else the folder would outlive a process that is asked to end.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            _server(viewer, host).run(sockets=[listener])


@contextmanager
def running(viewer: Viewer) -> Iterator[int]:
    """Serve it meanwhile, on this computer alone; gives the port."""
    with listening("127.0.0.1", 0) as listener:
        server = _server(viewer, "127.0.0.1")
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="viewer server")
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)


def _server(viewer: Viewer, host: str) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(viewer.app(host), log_level="warning", ws="none", timeout_graceful_shutdown=1, server_header=False)
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the browser may come before the server does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"can't serve at {host}, port {port} ({why}): leave out --port for a free one") from None


def _shown_host(host: str) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{name}]" if ":" in name else name
