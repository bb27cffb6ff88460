"""The same work on many items, over the cores of this machine or of a cluster."""

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from gfunk.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Items handed out before the first of them is taken: memory holds no more results than these, and no core waits soon.
AHEAD_A_WORKER = 32
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], n_workers: int) -> Iterator[Result]:
    """work(item) for each item, in order; a process a core, one thread each (more would fight over the cores).

    The workers go on while a result is used, but not further ahead than AHEAD_A_WORKER items each.
    """
    if n_workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    with _one_thread_each(), ProcessPoolExecutor(min(n_workers, len(items)), mp_context=get_context("spawn")) as pool:
        yield from map(pickle.loads, _cancelled_on_error(pool, _in_order(pool, work, items, AHEAD_A_WORKER * n_workers)))


def on_cluster(work: Callable[[Item], Result], items: Sequence[Item], address: str) -> Iterator[Result]:
    """work(item) for each item, as they are done, on the workers of a Dask scheduler; others take over when one dies."""
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError as error:
        raise InputError("a cluster needs Dask: pip install 'gfunk[cluster]'") from error
    try:
        client = Client(address, timeout="5s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {str(error).splitlines()[0]}") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"the Dask scheduler at {address} has no workers yet: start some (`dask worker {address}`)")
        try:
            for future in as_completed(client.map(work, items, pure=False)):
                yield future.result()
                future.release()
        except KilledWorker as error:
            raise InputError(
                f"workers of {address} died again and again on the same task, perhaps for want of memory"
            ) from error


def _in_order(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], items: Sequence[Item], n_ahead: int
) -> Iterator[bytes]:
    waiting: deque[Future[bytes]] = deque()
    for item in items:
        if len(waiting) == n_ahead:
            yield waiting.popleft().result()
        waiting.append(pool.submit(_pickled, work, item))
    while waiting:
        yield waiting.popleft().result()


def _pickled(work: Callable[[Item], Result], item: Item) -> bytes:
    # Here, as torch would hand over each tensor as an open file, and a process may have but a thousand of those.
    return pickle.dumps(work(item))


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
