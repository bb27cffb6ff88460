"""One thread for all heavy work: requests are served in the order they came."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any


class Replaced(Exception):
    """A newer request of the same kind took this one's place before it began."""


class Worker:
    """Jobs wait under a key. A newer one with the same key takes the place of the one waiting, not a place at the end."""

    def __init__(self):
        self._waiting: OrderedDict[Hashable, tuple[Future[Any], Callable[[], Any]]] = OrderedDict()
        self._changed = Condition()
        self._is_open = True
        self._is_busy = False
        self._thread = Thread(target=self._work, name="viewer worker", daemon=True)
        self._thread.start()

    def ask(self, key: Hashable, work: Callable[[], Any]) -> tuple[Future[Any], int]:
        """The answer to come, and how many jobs are before it."""
        future: Future[Any] = Future()
        with self._changed:
            older = self._waiting.get(key)
            self._waiting[key] = future, work
            n_ahead = list(self._waiting).index(key) + self._is_busy
            self._changed.notify()
        if older:
            older[0].set_exception(Replaced())
        return future, n_ahead

    def withdraw(self, key: Hashable, future: Future[Any]):
        """Nobody waits for this answer any more: if it has not begun, it never will."""
        with self._changed:
            if key in self._waiting and self._waiting[key][0] is future:
                del self._waiting[key]
                future.cancel()

    def close(self, patience_s: float = 2.0):
        with self._changed:
            self._is_open = False
            left = [future for future, _ in self._waiting.values()]
            self._waiting.clear()
            self._changed.notify()
        for future in left:
            future.cancel()
        self._thread.join(patience_s)

    def _work(self):
        while job := self._next():
            future, work = job
            try:
                answer = work()
            except BaseException as error:  # whatever it is, the one who asked is told
                future.set_exception(error)
            else:
                future.set_result(answer)
            # Or this frame would hold the last answer until the next one is there.
            del job, future, work
            answer = None

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._is_busy = False
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            if not self._is_open:
                return None
            self._is_busy = True
            return self._waiting.popitem(last=False)[1]
