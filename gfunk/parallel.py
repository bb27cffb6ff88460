"""The same work on many items, over the cores of this machine."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from gfunk.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], n_workers: int) -> Iterator[Result]:
    """work(item) for each item, in order; a process a core, one thread each (more would fight over the cores)."""
    if n_workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    with _one_thread_each(), ProcessPoolExecutor(min(n_workers, len(items)), mp_context=get_context("spawn")) as pool:
        yield from _cancelled_on_error(pool, pool.map(work, items))


def _cancelled_on_error(pool: ProcessPoolExecutor, results: Iterable[Result]) -> Iterator[Result]:
    try:
        yield from results
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process was killed, perhaps for want of memory: try fewer workers; in a script of your own, workers "
            "need its start under `if __name__ == '__main__':`"
        ) from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREAD_LIMITS}
    os.environ.update(dict.fromkeys(_THREAD_LIMITS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
