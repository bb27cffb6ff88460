"""The solver beside other solvers: the same sheet of tissue, one thread each, in turns; how fast, and how wrong."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from jaxtyping import Float

from gfunk.errors import InputError
from gfunk.physics.schemes import SCHEMES
from gfunk.rivals.sheet import Sheet, as_argument

SCRIPTS = Path(__file__).parent / "rivals"


@dataclass(frozen=True, kw_only=True)
class Racer:
    """A solver and its way of solving the sheet."""

    name: str
    dt_ms: float
    script: str
    choices: tuple[str, ...] = ()  # what its script takes after the sheet


_ACCURATE = SCHEMES["accurate"]
# Order 1 at TorchCor's step is what compares like with like; `accurate` is what a user gets.
OURS = Racer(name="gfunk", dt_ms=0.02, script="with_gfunk.py", choices=("1", _ACCURATE.mass))
OURS_ACCURATE = Racer(
    name="gfunk accurate", dt_ms=_ACCURATE.dt_ms, script="with_gfunk.py", choices=(str(_ACCURATE.order), _ACCURATE.mass)
)
RIVALS = {
    # float32 is what its README takes and the faster of the two; activation times are those of float64 to 0.0001 ms.
    "torchcor": Racer(name="torchcor", dt_ms=0.02, script="with_torchcor.py", choices=("float32",)),
    "torchcor float64": Racer(name="torchcor float64", dt_ms=0.02, script="with_torchcor.py", choices=("float64",)),
    # Explicit: half the step of the others is its own, stable choice.
    "finitewave": Racer(name="finitewave", dt_ms=0.01, script="with_finitewave.py"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians over the runs; set-up is that of the first, with nothing compiled before.

    Errors are those of activation times at nodes that the wave reaches in four fifths of the time, `late_ms` with sign;
    None where they were not asked for. A node never activated counts in `n_missed` alone. Consistent mass (TorchCor) makes
    waves too fast and long steps make them too slow: where both are large the error may be small by chance.
    """

    solver: str
    version: str
    dt_ms: float
    nodes: int
    steps: int
    setup_seconds: float
    wall_seconds: float
    cpu_seconds: float
    node_steps_per_cpu_second: float
    simulated_ms_per_cpu_second: float
    error_ms: float | None = None
    worst_error_ms: float | None = None
    late_ms: float | None = None
    n_compared: int | None = None
    n_missed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Race:
    """Ratios are ours by theirs, so more than 1 is faster, and None for a rival that was left out (which says why).

    ratio: node-steps per cpu-second, ours of order 1. accurate_ratio: simulated time per cpu-second, ours `accurate`.
    """

    rows: tuple[Row, ...]
    ratio_torchcor: float | None
    ratio_torchcor_float64: float | None
    ratio_finitewave: float | None
    accurate_ratio_torchcor: float | None
    accurate_ratio_finitewave: float | None
    left_out: dict[str, str]

    @property
    def table(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def interpreters(folder: Path) -> dict[str, Path]:
    """Each rival's, where `make rivals` puts them."""
    return {name: folder / name.split()[0] / "bin" / "python" for name in RIVALS}


def raced(
    rivals: Mapping[str, Path],
    *,
    sheet: Sheet = Sheet(dt_ms=OURS.dt_ms),  # noqa: B008 # frozen
    n_runs: int = 3,
    with_errors: bool = True,
    on_run: Callable[[str], None] = lambda _: None,
) -> Race:
    """Ours and every rival whose interpreter is there, one after the other, n_runs times; with_errors takes minutes more.

    Each racer takes its own dt_ms on the sheet.
    """
    unknown = set(rivals) - set(RIVALS)
    if unknown or n_runs < 1:
        raise InputError(f"a race has one run or more, not {n_runs}, against {', '.join(RIVALS)}, not {sorted(unknown)}")
    racers = {racer.name: (racer, Path(sys.executable)) for racer in (OURS, OURS_ACCURATE)}
    left_out: dict[str, str] = {}
    for name, interpreter in rivals.items():
        if interpreter.exists():
            racers[name] = RIVALS[name], interpreter
        else:
            left_out[name] = f"there is no {interpreter}: `make rivals` installs it"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in racers}
    with tempfile.TemporaryDirectory() as cache:
        for number in range(n_runs):
            for name, (racer, interpreter) in racers.items():
                if name in left_out:
                    continue
                on_run(f"{name}, run {number + 1} of {n_runs}")
                try:
                    found[name].append(_run(racer, interpreter, replace(sheet, dt_ms=racer.dt_ms), cache))
                except _Failed as failure:
                    left_out[name] = f"it failed: {failure}"
        limit = None
        if with_errors and OURS_ACCURATE.name not in left_out:
            on_run("a converged solution")
            limit = converged(sheet, cache)
    rows = {name: _row(racers[name][0], sheet, runs, limit) for name, runs in found.items() if name not in left_out}

    def ratio(ours: Racer, theirs: str, speed: str) -> float | None:
        if ours.name not in rows or theirs not in rows:
            return None
        return getattr(rows[ours.name], speed) / getattr(rows[theirs], speed)

    return Race(
        rows=tuple(rows.values()),
        ratio_torchcor=ratio(OURS, "torchcor", "node_steps_per_cpu_second"),
        ratio_torchcor_float64=ratio(OURS, "torchcor float64", "node_steps_per_cpu_second"),
        ratio_finitewave=ratio(OURS, "finitewave", "node_steps_per_cpu_second"),
        accurate_ratio_torchcor=ratio(OURS_ACCURATE, "torchcor", "simulated_ms_per_cpu_second"),
        accurate_ratio_finitewave=ratio(OURS_ACCURATE, "finitewave", "simulated_ms_per_cpu_second"),
        left_out=left_out,
    )


def converged(sheet: Sheet, cache: str) -> Float[np.ndarray, " node"]:
    """Activation at the sheet's nodes with no error of mesh or step left; NaN where it is late.

    By our solver: edges halved once and twice, where errors fall as edge^2, and steps once, where they do as dt^2.
    """

    def on_sheet_nodes(n_cuts: int, dt_ms: float) -> np.ndarray:
        finer = replace(sheet, edge_mm=sheet.edge_mm / n_cuts, dt_ms=dt_ms)
        seen = _activation_ms(_run(OURS_ACCURATE, Path(sys.executable), finer, cache))
        return seen.reshape(finer.n_side, finer.n_side)[::n_cuts, ::n_cuts].ravel()

    coarse, fine, shorter = on_sheet_nodes(2, 0.02), on_sheet_nodes(4, 0.02), on_sheet_nodes(2, 0.01)
    limit = fine + (fine - coarse) / 3 + (shorter - coarse) * 4 / 3
    # Later than this, a slow solver's wave may come after the end.
    return np.where(limit <= 0.8 * sheet.until_ms, limit, np.nan)


class _Failed(Exception):
    """A solver's script ended without a result; the message is the last it said."""


def _run(racer: Racer, interpreter: Path, sheet: Sheet, cache: str) -> dict[str, Any]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    command = [str(interpreter), str(SCRIPTS / racer.script), as_argument(sheet), *racer.choices]
    # What torch compiles is kept for the runs of this race alone: set-up is then the same whatever ran before.
    environment = {**os.environ, **one_thread, "TORCHINDUCTOR_CACHE_DIR": cache}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise _Failed(_last_line(ended.stderr) or f"exit status {ended.returncode}")
    try:
        return json.loads(_last_line(ended.stdout))
    except json.JSONDecodeError:
        raise _Failed(f"its last line is no result: {_last_line(ended.stdout)[:80]!r}") from None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _row(racer: Racer, sheet: Sheet, runs: list[dict[str, Any]], limit: np.ndarray | None) -> Row:
    first = runs[0]
    cpu = median(run["cpu_seconds"] for run in runs)
    return Row(
        solver=racer.name,
        version=first["version"],
        dt_ms=racer.dt_ms,
        nodes=first["nodes"],
        steps=first["steps"],
        setup_seconds=first["setup_seconds"],
        wall_seconds=median(run["wall_seconds"] for run in runs),
        cpu_seconds=cpu,
        node_steps_per_cpu_second=first["nodes"] * first["steps"] / cpu,
        simulated_ms_per_cpu_second=sheet.until_ms / cpu,
        **({} if limit is None else _errors(_activation_ms(first), limit, sheet)),
    )


def _errors(activation_ms: np.ndarray, limit: np.ndarray, sheet: Sheet) -> dict[str, Any]:
    # Stimulated nodes follow the stimulus, whoever solves.
    is_chosen = ~np.isnan(limit) & (sheet.stimulated_shares() == 0)
    is_compared = is_chosen & ~np.isnan(activation_ms)
    counts = {"n_compared": int(is_compared.sum()), "n_missed": int((is_chosen & np.isnan(activation_ms)).sum())}
    if not is_compared.any():
        return counts
    late = (activation_ms - limit)[is_compared]
    return {
        **counts,
        "error_ms": float(np.abs(late).mean()),
        "worst_error_ms": float(np.abs(late).max()),
        "late_ms": float(late.mean()),
    }


def _activation_ms(run: dict[str, Any]) -> Float[np.ndarray, " node"]:
    return np.array([np.nan if time_ms is None else time_ms for time_ms in run["activation_ms"]])
