"""From a visitor's choice to a mesh, and from a click to a wave; the last few are kept. Only the worker comes here."""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gfunk.atria.synthetic import left_atrium
from gfunk.domain import Domain
from gfunk.errors import InputError
from gfunk.files.mending import Mended
from gfunk.files.reading import as_domain, read_mesh, with_rule_fibres
from gfunk.files.tissue import with_regions
from gfunk.files.waves import write_wave
from gfunk.simulation import FIRST_SEED
from gfunk.viewer.predictor import Beside, Predictor, Say, Show, Wave
from gfunk.viewer.sessions import Limits, Scene


@dataclass
class _Kept:
    """A mesh in memory, what was made ready of it, and its last wave, from which nodes, and beside the solver's."""

    mesh: Mended | None  # as it was read from a file
    domain: Domain | None = None  # with all that can be told of it
    ready: Any = None
    nodes: tuple[int, ...] = ()
    wave: Wave | None = None
    beside: Beside | None = None


class Studio:
    def __init__(self, predictor: Predictor, limits: Limits):
        self.predictor, self.limits = predictor, limits
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    @property
    def n_kept(self) -> int:
        return len(self._kept)

    def mesh(self, scene: Scene, say: Say) -> Domain:
        """What can be shown at once: to tell the parts of a large mesh takes many times longer than to read it."""
        kept = self._at_hand(scene, say)
        return self.domain(scene, say) if kept.mesh is None else as_domain(kept.mesh)

    def domain(self, scene: Scene, say: Say) -> Domain:
        """The same nodes and triangles with all that can be told of them."""
        kept = self._at_hand(scene, say)
        if kept.mesh is not None:
            say("regions")
            kept.mesh, kept.domain = None, with_parts(kept.mesh)
        assert kept.domain is not None
        return kept.domain

    def make_ready(self, scene: Scene, say: Say):
        """All that can be done before the first click."""
        self._ready(scene, say)

    def wave(self, scene: Scene, nodes: Sequence[int], say: Say, show: Show = lambda _: None) -> Wave:
        """The predicted wave from these nodes; where it has to be found, it is shown as soon as it has begun."""
        kept = self._ready(scene, say)
        chosen, points = tuple(nodes), self.domain(scene, say).points
        if not all(0 <= node < len(points) for node in chosen):
            raise InputError(f"nodes run from 0 to {len(points) - 1:,}, so {max(chosen):,} is none")
        if kept.wave is None or kept.nodes != chosen:
            # The last one goes before the next one comes.
            kept.wave = kept.beside = None
            sites = [tuple(points[node].tolist()) for node in chosen]
            kept.wave, kept.nodes = self.predictor.predicted(kept.ready, sites, say, show), chosen
        return kept.wave

    def beside(self, scene: Scene, nodes: Sequence[int], say: Say) -> Beside:
        """The solver's wave from these nodes, and how far the predicted one is from it."""
        wave, kept = self.wave(scene, nodes, say), self._ready(scene, say)
        if kept.beside is None:
            kept.beside = self.predictor.compared(kept.ready, wave, say)
        return kept.beside

    def write(self, path: Path, scene: Scene, nodes: Sequence[int], say: Say):
        """The predicted wave as a file, of the kind its name says."""
        wave, domain = self.wave(scene, nodes, say), self.domain(scene, say)
        sites = domain.points[list(nodes)]
        write_wave(path, domain, wave.times_ms, wave.values_mV, wave.activation_ms, sites)

    def _ready(self, scene: Scene, say: Say) -> _Kept:
        domain, kept = self.domain(scene, say), self._at_hand(scene, say)
        if kept.ready is None:
            kept.ready = self.predictor.made_ready(domain, say)
        return kept

    def _at_hand(self, scene: Scene, say: Say) -> _Kept:
        if scene.name not in self._kept:
            self._kept[scene.name] = self._made(scene, say)
        self._kept.move_to_end(scene.name)
        while len(self._kept) > self.limits.kept:
            self._kept.popitem(last=False)
        return self._kept[scene.name]

    def _made(self, scene: Scene, say: Say) -> _Kept:
        if isinstance(scene.source, int):
            say("atrium")
            return _Kept(None, left_atrium(scene.source))
        say("read")
        try:
            return _Kept(read_surface(scene.source, self.limits.nodes))
        except InputError as error:
            # The visitor knows his file by another name, and has no use for our folders'.
            raise InputError(_as_called(str(error), scene.source, scene.label)) from None


def read_surface(path: Path, most_nodes: int) -> Mended:
    mesh = read_mesh(path)
    if mesh.cells.shape[1] != 3:
        raise InputError(f"{path}: a mesh of tetrahedra; the viewer shows surfaces: save the surface of it")
    if len(mesh.points_mm) > most_nodes:
        raise InputError(
            f"{path}: {len(mesh.points_mm):,} nodes, and the viewer takes {most_nodes:,}: "
            "make it coarser with `gfunk mesh FILE --edge 1 --out even.vtp`"
        )
    return mesh


def with_parts(mesh: Mended) -> Domain:
    """With named regions if it is an atrium, and then with fibres by rule if it has none of its own."""
    # What is no atrium has neither, and can be looked at all the same.
    with suppress(InputError):
        if mesh.fibres is not None:
            return with_regions(as_domain(mesh))
        by_rule, regions = with_rule_fibres(mesh)
        return replace(as_domain(by_rule), regions=regions)
    return as_domain(mesh)


def doubts(scene: Scene) -> tuple[str, ...]:
    """What the predictor can't know: that a model may have learned from this very atrium."""
    if isinstance(scene.source, int) and scene.source < FIRST_SEED["val"]:
        return (f"models learn from atria with seeds below {FIRST_SEED['val']:,}: this one may know this very atrium",)
    return ()


def _as_called(message: str, path: Path, label: str) -> str:
    called = label.rsplit(".", 1)[0]
    return message.replace(str(path.with_suffix("")), called).replace(str(path.parent) + "/", "")
