"""Waves without a solver or an operator: they run along the edges at a fixed speed. Stands in where the viewer is tested."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import KDTree

from gfunk.domain import Domain
from gfunk.surface import edge_lengths, unique_edges
from gfunk.viewer.predictor import Beside, Wave


@dataclass
class ToyPredictor:
    """Counts what it is asked for; `late_ms` is how much later its truth comes than its prediction."""

    speed: float = 1.0  # mm/ms
    until_ms: float = 100.0
    begun_ms: float = 30.0  # shown first
    late_ms: float = 2.0
    warnings: tuple[str, ...] = ()
    made: list[int] = field(default_factory=list)  # nodes of each mesh made ready
    asked: list[tuple[tuple[float, ...], ...]] = field(default_factory=list)  # sites of each prediction

    def made_ready(self, domain: Domain, say) -> Domain:
        say("resample")
        say("modes")
        self.made.append(domain.n_nodes)
        return domain

    def predicted(self, ready: Domain, sites: Sequence[tuple[float, ...]], say, show) -> Wave:
        say("operator")
        self.asked.append(tuple(sites))
        starts = KDTree(ready.points).query(np.array(sites))[1]
        wave = self.wave(ready, starts, 0.0)
        begun = wave.times_ms <= self.begun_ms
        show(replace(wave, times_ms=wave.times_ms[begun], values_mV=wave.values_mV[begun], until_ms=self.until_ms))
        return wave

    def compared(self, ready: Domain, wave: Wave, say) -> Beside:
        say("solve", 0.5)
        truth = self.wave(ready, wave.origin, self.late_ms)
        errors = np.abs(wave.activation_ms - truth.activation_ms)
        rel_l2 = np.linalg.norm(wave.values_mV - truth.values_mV) / np.linalg.norm(truth.values_mV + 85)
        return Beside(truth=truth, rel_l2=float(rel_l2), lat_error_ms=float(np.nanmean(errors)))

    def wave(self, domain: Domain, starts: np.ndarray, late_ms: float) -> Wave:
        one, other = unique_edges(domain.cells).T
        graph = csr_array((edge_lengths(domain.points, domain.cells), (one, other)), shape=(domain.n_nodes,) * 2)
        arrival = dijkstra(graph, directed=False, indices=starts, min_only=True) / self.speed
        arrival[arrival > 5] += late_ms
        times = np.linspace(0.0, self.until_ms, 101)
        since = times[:, None] - arrival[None]
        values = -85 + 105 / (1 + np.exp(-since.clip(-20, None) / 0.7)) * np.exp(-np.maximum(since, 0) / 60)
        return Wave(
            times_ms=times,
            values_mV=values.astype(np.float32),
            activation_ms=np.where(arrival < self.until_ms, arrival, np.nan),
            seconds={"operator": 0.01},
            warnings=self.warnings,
            origin=starts,
        )
