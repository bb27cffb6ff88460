"""A running viewer, and visitors who talk to it over real connections, minding their manners only where told to."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from toy_prediction import ToyPredictor

from gfunk.viewer import serving
from gfunk.viewer.predictor import Predictor
from gfunk.viewer.server import Viewer
from gfunk.viewer.sessions import Limits


@contextmanager
def running(
    folder: Path, predictor: Predictor | None = None, limits: Limits | None = None, given: Path | None = None
) -> Iterator[tuple[Viewer, int]]:
    """The viewer at a free port of this machine; it ends with the block."""
    folder.mkdir(exist_ok=True)
    viewer = Viewer(predictor or ToyPredictor(), folder, limits or Limits(), given)
    with serving.running(viewer) as port:
        yield viewer, port


@dataclass(frozen=True)
class Answer:
    status: int
    headers: HTTPMessage
    content: bytes

    @property
    def parts(self) -> list[tuple[dict[str, Any], bytes]]:
        """Each line, and the bytes that follow it."""
        found, rest = [], self.content
        while rest:
            said, _, rest = rest.partition(b"\n")
            line = json.loads(said)
            size = line.get("bytes", 0)
            assert len(rest) >= size and not (line.get("last") and len(rest) > size)
            found.append((line, rest[:size]))
            rest = rest[size:]
        return found

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [line for line, _ in self.parts]

    @property
    def stages(self) -> list[str]:
        return [line["stage"] for line in self.lines if "stage" in line]

    @property
    def error(self) -> str | None:
        return self.lines[-1].get("error")

    @property
    def about(self) -> dict[str, Any]:
        return self.lines[-1]["about"]

    @property
    def waves(self) -> list[dict[str, np.ndarray]]:
        """All arrays that came, those which take the place of others after them."""
        return [_arrays(line["arrays"], content) for line, content in self.parts if "bytes" in line]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.waves[-1]


def _arrays(table: list[dict[str, Any]], content: bytes) -> dict[str, np.ndarray]:
    """As the page reads them."""
    return {
        each["name"]: np.frombuffer(
            content, np.dtype(each["type"]).newbyteorder("<"), int(np.prod(each["shape"])), each["offset"]
        ).reshape(each["shape"])
        for each in table
    }


@dataclass
class Visitor:
    """A browser's manners: its cookie, and where its requests come from."""

    port: int
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.headers = {"Host": f"127.0.0.1:{self.port}", "Origin": f"http://127.0.0.1:{self.port}"} | self.headers

    def comes(self) -> "Visitor":
        """Opens the page, and is known from then on."""
        cookie = self.ask("GET", "/").headers.get("set-cookie")
        self.cookie = (cookie or self.cookie).split(";")[0]
        return self

    def ask(
        self, method: str, address: str, body: bytes | None = None, headers: Mapping[str, str | None] | None = None
    ) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, address, skip_host=True)
            sent = {**self.headers, "Cookie": self.cookie, "Content-Length": str(len(body or b"")), **(headers or {})}
            for name, value in sent.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, name: str, **asked: Any) -> Answer:
        return self.ask("POST", f"/api/{name}", json.dumps(asked).encode())

    def upload(self, files: Mapping[str, bytes], label: str = "mine.vtk") -> Answer:
        """Files by their endings, one after another."""
        parts = ",".join(f"{suffix}:{len(content)}" for suffix, content in files.items())
        return self.ask("POST", f"/api/upload?{urlencode({'parts': parts, 'label': label})}", b"".join(files.values()))

    def shows(self, files: Mapping[str, bytes]) -> str:
        """Uploads a mesh that is good, and gives the scene's name."""
        answer = self.upload(files)
        assert answer.status == 200 and not answer.error, answer.content[:500]
        return answer.about["scene"]


def until(is_so: Callable[[], bool], patience_s: float = 10.0):
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)
