"""Our operations as torch's Work and Future: waiting, errors, callbacks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from ringleader.backend.completion_pool import CompletionPool
from ringleader.backend.work import BackendWork
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerLost
from ringleader.groups.group import Group
from ringleader.groups.work import DONE, Work
from ringleader.testing.threaded_world import run_world, world
from tests.kit.fake_accelerator import Accelerator

SOON_S = 90.0
"""Limit for things that happen immediately, on a busy machine."""
LOST = PeerLost(1, "closed the connection")


@pytest.fixture
def completions() -> Iterator[CompletionPool]:
    """Close the pool after the test."""
    made = CompletionPool()
    yield made
    made.close()


def as_it_is(error: BaseException) -> BaseException:
    return error


def handle(
    completions: CompletionPool,
    *parts: Work,
    result: list[Tensor] | None = None,
    deliver: Callable[[], None] | None = None,
) -> BackendWork:
    return BackendWork(
        parts,
        result or [torch.ones(2)],
        completions,
        add_context=as_it_is,
        deliver=deliver,
    )


def end(future: Future[Any]) -> Future[Any]:
    """Wait for the future with a limit, which its own wait does not have."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(SOON_S), "the future is never completed"
    return future


# -- wait --------------------------------------------------------------------------


def test_wait_returns_true_when_all_parts_have_succeeded(
    completions: CompletionPool,
) -> None:
    parts = [Work(), Work()]
    work = handle(completions, *parts)
    for part in parts:
        assert not work.is_completed()
        part.finish()
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None


def test_wait_gives_up_in_time_and_leaves_the_operation_alone(
    completions: CompletionPool,
) -> None:
    part = Work()
    work = handle(completions, part)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"still running after 0\.05 s"):
        work.wait(timedelta(seconds=0.05))
    assert 0.04 < time.monotonic() - start_s < SOON_S
    assert not work.is_completed()
    assert work.exception() is None
    part.finish()
    assert work.wait(timedelta(seconds=0.05))


def test_a_timeout_of_the_operation_itself_is_not_taken_for_one_of_the_wait(
    completions: CompletionPool,
) -> None:
    part = Work()
    part.finish(DeadlineExceeded(2, "sent nothing for 5 s"))
    with pytest.raises(DeadlineExceeded) as caught:
        handle(completions, part).wait(timedelta(seconds=1))
    assert caught.value.args == (2, "sent nothing for 5 s")


def test_the_error_of_any_part_is_raised_again_and_again(
    completions: CompletionPool,
) -> None:
    good, bad = Work(), Work()
    work = handle(completions, good, bad)
    good.finish()
    bad.finish(LOST)
    for _ in range(2):
        with pytest.raises(PeerLost) as caught:
            work.wait()
        assert caught.value.args == LOST.args
    assert work.is_completed()
    assert not work.is_success()
    assert work.exception() is LOST


def test_the_error_is_explained_with_the_first_as_its_cause(
    completions: CompletionPool,
) -> None:
    part = Work()
    part.finish(LOST)
    work = BackendWork(
        [part],
        [torch.ones(1)],
        completions,
        add_context=lambda error: PeerLost(1, f"{error}, by the router"),
    )
    with pytest.raises(PeerLost, match="by the router") as caught:
        work.wait()
    assert isinstance(caught.value.__cause__, PeerLost)
    assert caught.value.__cause__.args == LOST.args
    with pytest.raises(RuntimeError, match=r"PeerLost: rank 1: .*by the router"):
        end(work.get_future()).value()


def test_a_future_is_completed_in_a_stream_of_the_device(
    completions: CompletionPool,
) -> None:
    device, part = Accelerator(), Work()
    seen: list[bool] = []
    one = BackendWork(
        [part],
        [torch.ones(2)],
        completions,
        add_context=as_it_is,
        deliver=lambda: seen.append(device.record_event().queue is device.main),
        device=device,
    )
    part.finish()
    for work in (one, BackendWork.of_all([one], completions, add_context=as_it_is)):
        assert torch.equal(end(work.get_future()).value()[0], torch.ones(2))
        work.wait()
    is_program, is_waiting = True, False
    assert seen == 2 * [is_waiting, is_program]


def test_the_caller_is_ordered_after_a_success_and_only_then(
    completions: CompletionPool,
) -> None:
    arrivals: list[str] = []
    good, bad = Work(), Work()
    good.finish()
    bad.finish(LOST)
    handle(completions, good, deliver=lambda: arrivals.append("good")).wait()
    with pytest.raises(PeerLost):
        handle(completions, bad, deliver=lambda: arrivals.append("bad")).wait()
    assert arrivals == ["good"]


def test_synchronize_waits(completions: CompletionPool) -> None:
    part = Work()
    part.finish(LOST)
    with pytest.raises(PeerLost):
        handle(completions, part).synchronize()
    handle(completions, DONE).synchronize()


def test_the_sender_of_a_message_is_known(completions: CompletionPool) -> None:
    part = Work()
    assert handle(completions, part).source_rank() == -1
    part.source = 2
    assert handle(completions, part).source_rank() == 2
    assert handle(completions, part)._source_rank() == 2


# -- the future: torch makes a RuntimeError of ours, with its name and text ---------


@pytest.mark.parametrize("is_early", [True, False])
def test_the_value_of_the_future_are_the_tensors(
    is_early: bool, completions: CompletionPool
) -> None:
    part, tensors = Work(), [torch.ones(2), torch.zeros(3)]
    work = handle(completions, part, result=tensors)
    if is_early:
        future = work.get_future()
        assert not future.done()
        part.finish()
    else:
        part.finish()
        future = work.get_future()
    assert end(future).value() is tensors
    assert work.get_future() is future, "asked twice, it is the same"
    assert work.result() is tensors


@pytest.mark.parametrize("is_early", [True, False])
def test_the_error_is_in_the_future_and_in_what_follows_it(
    is_early: bool, completions: CompletionPool
) -> None:
    part = Work()
    work = handle(completions, part)
    if not is_early:
        part.finish(LOST)
    future = work.get_future()
    grandchild = future.then(lambda done: done.value()).then(lambda done: done.value())
    if is_early:
        part.finish(LOST)
    for each in (future, grandchild):
        with pytest.raises(RuntimeError, match="PeerLost: rank 1: closed"):
            end(each).value()
        with pytest.raises(RuntimeError, match="PeerLost: rank 1: closed"):
            each.wait()


def test_cpp_sees_the_error(completions: CompletionPool) -> None:
    """DDP's reducer asks in C++, which knows nothing of Python's unwrapping.

    ``collect_all`` is C++: with the future we complete, instead of its child, it would
    collect a success.
    """
    part = Work()
    future = handle(completions, part).get_future()
    collected = torch.futures.collect_all([future])
    part.finish(LOST)
    with pytest.raises(RuntimeError, match="PeerLost: rank 1: closed"):
        end(collected).value()


def test_a_failure_to_arrive_is_the_futures(completions: CompletionPool) -> None:
    def deliver() -> None:
        raise RuntimeError("the stream is gone")

    future = handle(completions, DONE, deliver=deliver).get_future()
    with pytest.raises(RuntimeError, match="the stream is gone"):
        end(future).value()


def test_the_future_arrives_before_it_is_complete(completions: CompletionPool) -> None:
    part, tensor = Work(), torch.zeros(2)

    def deliver() -> None:
        tensor.fill_(7)

    work = handle(completions, part, result=[tensor], deliver=deliver)
    seen = work.get_future().then(lambda done: done.value()[0].clone())
    part.finish()
    assert end(seen).value().tolist() == [7, 7]


def test_cpp_is_never_given_a_future_of_nothing(completions: CompletionPool) -> None:
    work = BackendWork([Work()], [], completions, add_context=as_it_is)
    (stand_in,) = work.result()
    assert stand_in.numel() == 0


def test_followers_that_wait_do_not_stop_the_engine(
    completions: CompletionPool,
) -> None:
    """Each callback waits for something the engine does when all are waiting."""
    count = 100
    parts, last = [Work() for _ in range(count)], Work()
    begun = threading.Semaphore(0)
    final = handle(completions, last)

    def follow(done: Future[Any]) -> bool:
        begun.release()
        return final.wait(timedelta(seconds=SOON_S))

    def engine() -> None:
        for part in parts:
            part.finish()

    futures = [handle(completions, p).get_future().then(follow) for p in parts]
    thread = threading.Thread(target=engine)
    thread.start()
    try:
        for number in range(count):
            assert begun.acquire(timeout=SOON_S), f"only {number} of {count} began"
    finally:
        last.finish()
        thread.join(SOON_S)
    assert [end(future).value() for future in futures] == [True] * count


def test_a_follower_may_issue_operations_of_its_own(
    completions: CompletionPool,
) -> None:
    """As DDP's hooks do: it does not run in the thread that the operation needs."""

    def live(group: Group) -> list[float]:
        tensor, second = torch.ones(1000), torch.full((3,), 5.0)

        def follow(done: Future[Any]) -> Tensor:
            (sums,) = done.value()
            second.add_(sums[0])
            group.all_reduce(second)  # waits, in this thread
            return second

        part = group.all_reduce(tensor, async_op=True)
        work = handle(completions, part, result=[tensor])
        followed: list[float] = end(work.get_future().then(follow)).value().tolist()
        return followed

    assert run_world(2, live) == [[14.0] * 3] * 2


def test_an_abort_reaches_whoever_has_the_future(completions: CompletionPool) -> None:
    with world(2) as (group, _):
        part = group.all_reduce(torch.ones(4), async_op=True)
        future = handle(completions, part).get_future()
        group.abort("that is enough")
        with pytest.raises(RuntimeError, match="GroupAborted: that is enough"):
            end(future).value()


# -- several as one ----------------------------------------------------------------


def test_one_handle_for_several_ends_with_the_last(completions: CompletionPool) -> None:
    parts = [Work() for _ in range(3)]
    arrivals: list[int] = []
    handles = [
        handle(
            completions,
            part,
            result=[torch.full((1,), float(i))],
            deliver=(lambda i=i: arrivals.append(i)) if i != 1 else None,  # type: ignore[misc]
        )
        for i, part in enumerate(parts)
    ]
    work = BackendWork.of_all(handles, completions, add_context=as_it_is)
    future = work.get_future()
    for part in reversed(parts):
        assert not work.is_completed()
        assert not future.done()
        part.finish()
    assert [float(t) for t in end(future).value()] == [0, 1, 2]
    assert arrivals == [0, 2], "one of them had nothing to order"
    assert work.wait()
    assert arrivals == [0, 2] * 2


def test_one_handle_for_several_has_the_error_of_any(
    completions: CompletionPool,
) -> None:
    good, bad = Work(), Work()
    handles = [handle(completions, good), handle(completions, bad)]
    work = BackendWork.of_all(handles, completions, add_context=as_it_is)
    good.finish()
    bad.finish(LOST)
    assert work.exception() is LOST
    with pytest.raises(PeerLost):
        work.wait()
    with pytest.raises(RuntimeError, match="PeerLost: rank 1: closed"):
        end(work.get_future()).value()


def test_one_handle_for_none_is_complete(completions: CompletionPool) -> None:
    work = BackendWork.of_all([], completions, add_context=as_it_is)
    assert work.is_success()
    assert work.wait()
    (stand_in,) = end(work.get_future()).value()
    assert stand_in.numel() == 0


# -- the threads -------------------------------------------------------------------


def test_a_thread_that_is_busy_when_all_are_closed_ends_with_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringleader.backend.completion_pool.LINGER_S", 60.0)
    completions, begun, go_on = CompletionPool(), threading.Event(), threading.Event()
    before = set(threading.enumerate())

    def task() -> None:
        begun.set()
        go_on.wait(60)

    completions.run(task)
    assert begun.wait(60)
    (thread,) = set(threading.enumerate()) - before
    completions.close()
    go_on.set()
    thread.join(SOON_S)
    assert not thread.is_alive()


def futures_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("ringleader-futures")]


def test_threads_start_with_the_first_future_and_end_with_the_group() -> None:
    completions = CompletionPool()
    before = futures_threads()
    handle(completions, DONE).wait()
    assert futures_threads() == before, "who only waits needs none"
    part, done = Work(), threading.Event()
    future = handle(completions, part).get_future()
    future.add_done_callback(lambda _: done.set())
    part.finish()
    assert done.wait(SOON_S)
    (mine,) = set(futures_threads()) - set(before)
    completions.close()
    mine.join(SOON_S)
    assert not mine.is_alive()
    completions.close()


ENDING = """
import functools, threading, time, torch
from ringleader.backend import completion_pool
from ringleader.backend.completion_pool import CompletionPool

completion_pool.SETTLE_S = 30.0  # a second of it is ours, and the machine may be busy
begun = threading.Event()

def follow(_):
    begun.set()
    time.sleep(0.5)
    print("followed", flush=True)

class Held:
    def __del__(self):
        time.sleep(0.5)
        print("freed", flush=True)

future = torch.futures.Future()
future.then(follow)
CompletionPool().run(functools.partial(lambda _: future.set_result(None), Held()))
begun.wait(60)
"""


@pytest.mark.slow
def test_a_program_does_not_end_in_the_middle_of_a_callback() -> None:
    """In torch's C++ at that moment, a thread would abort the process.

    That is also where it goes to free a future, and the tensors that it holds.
    """
    ended = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "followed\nfreed\n"), ended.stderr


def test_a_future_is_completed_even_if_there_are_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    completions, done = CompletionPool(), []
    completions.run(lambda: done.append(1))
    assert done == [1]
    deadline = Deadline.after(SOON_S)
    completions.settle(deadline)
    assert not deadline.is_over(), "nothing is left to be done"
