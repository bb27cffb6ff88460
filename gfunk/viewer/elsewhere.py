"""A second process where the solver's steps are compiled while the visitor looks at the atrium; until then it solves here.

Not a thread: compiling is half a minute of Python, for which every step of the first wave would have to wait.
"""

import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch

from gfunk.domain import Domain
from gfunk.first_waves import Solve
from gfunk.physics.diffusion import HalfStep
from gfunk.physics.monodomain import simulate_many
from gfunk.physics.schemes import SCHEMES
from gfunk.physics.stimulus import Stimulus
from gfunk.physics.waves import Paced

# A step is compiled for a cell, a scheme, and so many places for neighbours and iterations: for any number of nodes.
Kind = tuple[str, str, int, int]


class SolverElsewhere:
    """Called as `simulate_many` is, with a cell and a scheme by name, and couplings."""

    def __init__(self, solve: Solve = simulate_many, *, compiles: bool = True):
        """solve: what solves here, until steps are compiled there, and where the other process is busy or gone."""
        self._solve, self._compiles = solve, compiles
        self._turn = Lock()  # one asks the other process at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: set[Kind] = set()
        self._preparing: list[Thread] = []
        self._is_held = False
        self.close: Callable[[], object] = lambda: None  # also called when nobody holds this any more, or Python ends

    def is_ready(self, cell: str, scheme: str, step: HalfStep) -> bool:
        return _kind(cell, scheme, [step]) in self._ready

    def start(self):
        """The other process, if there is none yet: a few seconds go by before it can do anything."""
        if self._process is None:
            # A session of its own: Ctrl-C is ours, and we end it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self.close = weakref.finalize(self, _end, self._process, self._turn)

    def prepare(self, tissue: Domain, step: HalfStep, cell: str, scheme: str):
        """Have steps like this one compiled; comes back at once."""
        self.start()
        thread = Thread(target=self._prepare, args=(tissue, step, cell, scheme), name="compiles elsewhere", daemon=True)
        self._preparing.append(thread)
        thread.start()

    def settle(self):
        """Wait until nothing is left to be compiled."""
        for thread in self._preparing:
            thread.join()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile nothing is compiled, where that can be: a visitor who clicks is served first."""
        # Who compiles has its turn. When it just solves, who asked waits for it.
        process = self._process if self._turn.locked() else None
        if process is None or not hasattr(signal, "SIGSTOP"):
            yield
            return
        self._is_held = True
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            self._is_held = False

    def __call__(
        self, domains: Sequence[Domain], *args: Any, cell: str, scheme: str, couplings: Sequence[HalfStep], **options: Any
    ) -> list[Paced]:
        options |= {"cell": cell, "scheme": scheme, "couplings": couplings}
        found = None
        can_ask = not self._is_held and _kind(cell, scheme, couplings) in self._ready
        if can_ask and self._turn.acquire(blocking=False):
            try:
                found = self._asked(domains, *args, **options | {"compiles": self._compiles})
            finally:
                self._turn.release()
        return self._solve(domains, *args, **options) if found is None else found

    def _prepare(self, tissue: Domain, step: HalfStep, cell: str, scheme: str):
        kind, stimulus = _kind(cell, scheme, [step]), Stimulus(sites=(tuple(tissue.points[0].tolist()),))
        with self._turn:
            if kind in self._ready:
                return
            found = self._asked(
                [tissue], [[[stimulus]]], np.array([0.1]), cell=cell, scheme=scheme, couplings=[step],
                compiles=self._compiles,
            )  # fmt: skip
            if found is not None:
                self._ready.add(kind)

    def _asked(self, *args: Any, **options: Any) -> list[Paced] | None:
        """None where the other process can't solve it, or is no more."""
        if self._process is None or self._process.poll() is not None:
            return None
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None and answers is not None
        try:
            pickle.dump((args, options), asks)
            asks.flush()
            return pickle.load(answers)
        except (OSError, EOFError, pickle.UnpicklingError):
            return None


def _end(process: subprocess.Popen[bytes], turn: Lock):
    process.kill()
    # Who waits for an answer sees that there is none.
    with turn, suppress(OSError), process:
        pass


def _kind(cell: str, scheme: str, steps: Sequence[HalfStep]) -> Kind:
    reduction = SCHEMES[scheme].reduction
    return cell, scheme, max(len(step.neighbors) for step in steps), max(step.n_iterations(reduction) for step in steps)


def answer_all(asks: BufferedIOBase, answers: BufferedIOBase):
    """Solve what is asked, one after the other, until nobody can ask any more."""
    while True:
        try:
            args, options = pickle.load(asks)
        except EOFError:
            return
        try:
            found = simulate_many(*args, **options)
        except Exception as error:  # whatever it is, who asked solves it himself
            print(f"not solved with compiled steps: {error}", file=sys.stderr)
            found = None
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    # Compiled by this process, not by others it would leave behind when it is ended; and for one thread.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.set_num_threads(1)
    asks, answers = os.fdopen(os.dup(sys.stdin.fileno()), "rb"), os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever is printed on the way is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer_all(asks, answers)
