"""Visitors and their meshes: each visitor has a folder of his own, and the longest unseen one makes room for a new one."""

import secrets
import shutil
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from gfunk.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What visitors may take of this machine."""

    upload_bytes: int = 100_000_000
    nodes: int = 300_000
    sessions: int = 16
    scenes: int = 4  # meshes of one visitor
    kept: int = 3  # meshes held in memory, of all visitors: the others are made again when they are wanted
    sites: int = 8


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A mesh a visitor chose: the seed of an atrium, or a file."""

    name: str
    label: str  # what the visitor calls it; never a path
    source: int | Path
    folder: Path | None = None  # of an upload: goes with the scene


@dataclass(frozen=True)
class Session:
    """One visitor: a name only his browser knows, a folder, and his last few meshes."""

    name: str
    folder: Path
    scenes: OrderedDict[str, Scene] = field(default_factory=OrderedDict)

    def scene(self, name: str) -> Scene:
        if name not in self.scenes:
            raise InputError("this mesh is not loaded any more: load it again")
        self.scenes.move_to_end(name)
        return self.scenes[name]

    def new_folder(self) -> Path:
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir()
        return folder

    def add(self, scene: Scene, at_most: int):
        self.scenes[scene.name] = scene
        while len(self.scenes) > at_most:
            _, oldest = self.scenes.popitem(last=False)
            if oldest.folder:
                shutil.rmtree(oldest.folder, ignore_errors=True)


class Sessions:
    """The visitors of late, by the secret in their cookie."""

    def __init__(self, folder: Path, at_most: int):
        self._folder, self._at_most = folder, at_most
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def known(self, name: str | None) -> Session | None:
        if name is None or name not in self._sessions:
            return None
        self._sessions.move_to_end(name)
        return self._sessions[name]

    def new(self) -> Session:
        # The folder's name is another secret: who sees a path does not learn the cookie.
        folder = self._folder / secrets.token_hex(16)
        folder.mkdir(mode=0o700)
        session = Session(secrets.token_urlsafe(32), folder)
        self._sessions[session.name] = session
        while len(self._sessions) > self._at_most:
            _, oldest = self._sessions.popitem(last=False)
            shutil.rmtree(oldest.folder, ignore_errors=True)
        return session

    def __len__(self) -> int:
        return len(self._sessions)
