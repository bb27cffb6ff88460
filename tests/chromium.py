"""A real browser without a window, driven over its DevTools socket: no driver program, and nothing but `websockets`."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None
)
# WebGL on the CPU; no calls to anywhere.
FLAGS = [
    "--headless", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update", "--disable-quic",
    "--disable-extensions", "--mute-audio", "--disable-dev-shm-usage", "--remote-debugging-port=0",
]  # fmt: skip
PATIENCE_S = 20.0


@contextmanager
def browsed(folder: Path, width: int = 1280, height: int = 800) -> Iterator["Page"]:
    """One tab of a browser of its own, which ends with the block."""
    assert PROGRAM is not None
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [PROGRAM, *FLAGS, *sandbox, f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port, path = _address(folder / "DevToolsActivePort")
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
                yield Page(socket, width, height)
        finally:
            process.terminate()
            process.wait(10)


def _address(file: Path) -> list[str]:
    """Port and path, once the browser has written them."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(OSError):
            if len(words := file.read_text().split()) == 2:
                return words
        time.sleep(0.05)
    raise AssertionError(f"{PROGRAM} did not start within {PATIENCE_S:g} s")


class Page:
    def __init__(self, socket: ClientConnection, width: int, height: int):
        self.socket, self.session, self._last = socket, None, 0
        self.complaints: list[str] = []  # what the page wrote to its console as an error
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{part}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str):
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise it is."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, script: str, patience_s: float = PATIENCE_S) -> Any:
        """Until the expression is true."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if value := self.run(script):
                return value
            time.sleep(0.05)
        raise AssertionError(
            f"never true: {script}; problem: {self.run('document.getElementById(`problem-text`)?.textContent')}"
        )

    def click(self, x: float, y: float, modifiers: int = 0):
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, modifiers=modifiers
            )  # fmt: skip

    def drag(self, x: float, y: float, to_x: float, to_y: float):
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for share in (0.3, 0.6, 1.0):
            self.call(
                "Input.dispatchMouseEvent",
                type="mouseMoved", x=x + share * (to_x - x), y=y + share * (to_y - y), button="left", buttons=1,
            )  # fmt: skip
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, " ": 32, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), modifiers=modifiers
            )

    def choose_files(self, selector: str, paths: list[Path]):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def picture(self, path: Path | None = None, selector: str | None = None) -> bytes:
        """A PNG of the page, or of the part of it where an element is."""
        part = {}
        if selector:
            box = self.run(f"JSON.parse(JSON.stringify(document.querySelector('{selector}').getBoundingClientRect()))")
            part["clip"] = {name: box[name] for name in ("x", "y", "width", "height")} | {"scale": 1}
        content = base64.b64decode(self.call("Page.captureScreenshot", format="png", **part)["data"])
        if path:
            path.write_bytes(content)
        return content

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        own = self._last
        message = {"id": own, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            self._note(answer)
            if answer.get("id") == own:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def _note(self, message: dict[str, Any]):
        about = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"].get("exception", {}).get("description")))
        if message.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
