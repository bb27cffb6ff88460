import os

import pytest

from gfunk.errors import InputError
from gfunk.parallel import default_workers, in_parallel


def squared(number: int) -> int:
    return number**2


def refuses_three(number: int) -> int:
    if number == 3:
        raise InputError("three can't be used")
    return number


def thread_limit(_: int) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def test_two_workers_give_what_one_gives_in_the_same_order():
    numbers = list(range(20))
    assert list(in_parallel(squared, numbers, 2)) == list(in_parallel(squared, numbers, 1)) == [n**2 for n in numbers]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_error_in_a_worker_reaches_the_caller_with_its_message(n_workers: int):
    results = in_parallel(refuses_three, [1, 2, 3, 4], n_workers)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(InputError, match="three can't be used"):
        next(results)


def test_workers_run_on_one_thread_and_the_callers_own_limit_comes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert set(in_parallel(thread_limit, [0, 1], 2)) == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_nothing_to_do_gives_nothing():
    assert list(in_parallel(squared, [], 2)) == []


def test_there_is_at_least_one_worker():
    assert default_workers() >= 1
