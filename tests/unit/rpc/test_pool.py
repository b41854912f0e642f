"""Threads that serve calls: as many as allowed, and more while some of them wait."""

from __future__ import annotations

import threading
import time

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.rpc import pool
from ringleader.rpc.future import Future
from ringleader.rpc.pool import Pool

WITHIN_S = 90.0


def test_no_more_jobs_run_at_once_than_allowed() -> None:
    made = Pool(2, "test")
    running, most, lock = 0, 0, threading.Lock()
    both, done = threading.Barrier(2), threading.Semaphore(0)

    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(WITHIN_S)
        with lock:
            running -= 1
        done.release()

    for _ in range(8):
        made.submit(job)
    for _ in range(8):
        assert done.acquire(timeout=WITHIN_S)
    assert most == 2
    made.stop(WITHIN_S)


def test_a_job_that_waits_for_another_rank_makes_room_for_others() -> None:
    """Each job waits for the next one, deeper than there are threads."""
    made = Pool(1, "test")
    finished = threading.Event()

    def job(left: int) -> None:
        if not left:
            finished.set()
            return
        made.submit(lambda: job(left - 1))
        with pool.waiting():
            assert finished.wait(WITHIN_S)

    made.submit(lambda: job(20))
    assert finished.wait(WITHIN_S)
    made.stop(WITHIN_S)
    assert made.num_jobs() == 0


def test_a_future_is_done_by_its_deadline_and_calls_back() -> None:
    made = Pool(1, "test")
    started, may_end = threading.Event(), threading.Event()
    late = DeadlineExceeded(3, "late")
    future = Future(Deadline.after(0.01), made.submit, lambda: late)
    with pytest.raises(DeadlineExceeded, match="rank 3: late"):
        future.wait()
    future.set_result(5)
    assert future.exception() is late, "the first outcome counts"

    future = Future(Deadline.after(WITHIN_S), made.submit, lambda: late)
    twice = future.then(lambda done: 2 * done.wait())
    broken = future.then(lambda done: 1 / 0)
    assert not future.done()
    future.set_result(21)
    assert twice.wait() == 42
    assert isinstance(broken.exception(), ZeroDivisionError)
    assert future.then(lambda done: done.wait() + 1).wait() == 22

    future = Future(Deadline.after(0.001), made.submit, lambda: late)
    future.set_result(21)
    time.sleep(0.002)

    def hold_up(done: Future) -> None:
        started.set()
        assert may_end.wait(WITHIN_S)

    callback = future.then(hold_up)
    assert started.wait(WITHIN_S), "also after the deadline of the call"
    with pytest.raises(DeadlineExceeded, match=r"the callback of then\(\) did not end"):
        callback.wait()
    may_end.set()
    made.stop(WITHIN_S)
