"""How a group ends: by timeout, abort and close; and what is known afterwards."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import (
    DeadlineExceeded,
    GroupAborted,
    InternalError,
    PeerLost,
    RingleaderError,
)
from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.testing.threaded_world import run_threads, world
from tests.kit.sleeping_calls import SleepingCalls

TRANSPORTS = ["memory", "tcp", "shm"]
SHORT_S = 0.3
MEET_S = 6.0
"""In which ranks surely tell each other for whom they wait."""
LATE_S = 30.0
"""How much later than at once something may happen on a busy machine; calls have twice
this time."""
LARGE = 2_000_000
"""float32 elements: more than all buffers between two ranks can hold."""


def failure(call: Callable[[], object]) -> RingleaderError:
    """What ``call`` raises."""
    with pytest.raises(RingleaderError) as caught:
        call()
    return caught.value


class Blocked:
    """A call that runs in a thread of its own until it ends or is ended."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.ended_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as exc:  # noqa: BLE001 - the test looks at it
            self.error = exc
        self.ended_s = time.monotonic()

    def join(self) -> BaseException | None:
        self._thread.join(90)
        assert not self._thread.is_alive(), "the call never ended"
        return self.error


BLOCKING: dict[str, Callable[[Group], object]] = {
    "small all_reduce": lambda g: g.all_reduce(torch.ones(3)),
    "large all_reduce": lambda g: g.all_reduce(torch.ones(LARGE)),
    "ring": lambda g: g.all_reduce(torch.ones(LARGE), algorithm="ring"),
    "barrier": lambda g: g.barrier(),
    "broadcast": lambda g: g.broadcast(torch.ones(LARGE), src=1),
    "all_gather": lambda g: g.all_gather(torch.ones(g.size * 50), torch.ones(50)),
    "recv": lambda g: g.recv(torch.ones(5), 1),
    "large send": lambda g: g.send(torch.ones(LARGE), 1),
}


# -- timeouts ----------------------------------------------------------------------


def test_a_timeout_says_for_whom_and_in_which_call() -> None:
    """Over all transports at the same time: nobody computes while they wait."""
    run_threads([partial(call_without_rank_2, each) for each in TRANSPORTS])


def call_without_rank_2(transport: str) -> None:
    config = CollectiveConfig(timeout_s=MEET_S)
    with world(3, transport, config=config) as groups:
        started_s = time.monotonic()
        calls = [lambda g=g: g.all_reduce(torch.ones(77)) for g in groups[:2]]
        errors = run_threads([partial(failure, c) for c in calls])
        took_s = time.monotonic() - started_s
        for error in errors:
            assert isinstance(error, DeadlineExceeded)
            assert isinstance(error, TimeoutError)
            assert error.peer == 2, error
            assert "all_reduce(77 x float32, sum" in str(error)
        assert MEET_S <= took_s < MEET_S + LATE_S


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_limit_of_a_call_goes_before_that_of_the_group(transport: str) -> None:
    with world(2, transport) as groups:
        error = failure(lambda: groups[0].barrier(timeout_s=SHORT_S))
        assert isinstance(error, DeadlineExceeded)
        assert f"waited {SHORT_S} s" in str(error)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_barrier_after_one_that_timed_out_raises_and_frees_nobody(
    transport: str,
) -> None:
    """The arrival of a rank that gave up must not be counted later."""
    with world(2, transport) as groups:
        first = failure(lambda: groups[0].barrier(timeout_s=SHORT_S))
        assert isinstance(first, DeadlineExceeded)
        with contextlib.suppress(DeadlineExceeded):
            groups[1].barrier(timeout_s=5)  # the same barrier: rank 0 had come to it
        late = failure(lambda: groups[1].barrier(timeout_s=5))
        assert isinstance(late, DeadlineExceeded)
        again = failure(lambda: groups[0].barrier(timeout_s=5))
        assert (type(again), str(again)) == (type(first), str(first))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_broken_group_raises_the_same_error_for_ever_after(transport: str) -> None:
    with world(2, transport) as groups:
        group = groups[0]
        queued = [group.all_reduce(torch.ones(9), timeout_s=SHORT_S, async_op=True)]
        queued += [group.barrier(async_op=True) for _ in range(3)]
        queued.append(group.recv(torch.ones(2), 1, async_op=True))
        first = failure(queued[0].wait)
        assert isinstance(first, DeadlineExceeded)
        calls: list[Callable[[], object]] = [
            *(w.wait for w in queued[1:]),
            *(lambda c=c: c(group) for c in BLOCKING.values()),
            lambda: group.subgroup([0, 1]),
        ]
        started_s = time.monotonic()
        for _ in range(3):
            for call in calls:
                error = failure(call)
                assert (type(error), str(error)) == (type(first), str(first))
        assert time.monotonic() - started_s < LATE_S
        assert all(w.done() and w.error() is not None for w in queued)


# -- abort -------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", BLOCKING)
def test_abort_from_another_thread_ends_a_blocked_call_at_once(
    name: str, transport: str
) -> None:
    with world(2, transport) as groups:
        blocked = Blocked(lambda: BLOCKING[name](groups[0]))
        time.sleep(0.1)  # deep inside, asleep
        called_s = time.monotonic()
        groups[0].abort("the user pressed a key")
        returned_s = time.monotonic()
        error = blocked.join()
        assert isinstance(error, GroupAborted)
        assert "the user pressed a key" in str(error)
        assert returned_s - called_s < LATE_S
        assert blocked.ended_s - called_s < LATE_S


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_peers_learn_of_an_abort_while_they_wait_and_later(transport: str) -> None:
    with world(3, transport) as groups:
        blocked = Blocked(lambda: groups[0].all_reduce(torch.ones(LARGE)))
        time.sleep(0.1)
        aborted_s = time.monotonic()
        groups[1].abort("no more")
        error = blocked.join()
        assert isinstance(error, GroupAborted)
        assert "rank 1" in str(error)
        assert "no more" in str(error)
        assert blocked.ended_s - aborted_s < LATE_S
        late = failure(lambda: groups[2].all_reduce(torch.ones(LARGE)))
        assert isinstance(late, GroupAborted)


@pytest.mark.parametrize("count", [4, 300_000])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_abort_of_a_group_that_never_rests_reaches_everybody(
    transport: str, count: int
) -> None:
    """Nobody is asleep, so nobody is woken: the flag must be seen anyway."""
    with world(3, transport) as groups:

        def reduce_for_ever(group: Group) -> None:
            tensor = torch.ones(count)
            while True:
                group.all_reduce(tensor, "max")

        threads = [Blocked(partial(reduce_for_ever, group)) for group in groups]
        time.sleep(0.05)
        aborted_s = time.monotonic()
        groups[1].abort("busy or not")
        for thread in threads:
            error = thread.join()
            assert isinstance(error, GroupAborted)
            assert "busy or not" in str(error)
            assert thread.ended_s - aborted_s < LATE_S


def test_an_abort_after_which_nobody_calls_anything_is_told_to_the_others() -> None:
    with world(2, "tcp") as groups:

        def reduce(group: Group) -> None:
            group.all_reduce(torch.ones(30 * LARGE))

        threads = [Blocked(partial(reduce, group)) for group in groups]
        time.sleep(0.03)
        groups[0].abort("late")
        for thread in threads:
            assert isinstance(thread.join(), GroupAborted | None)
        started_s = time.monotonic()
        error = failure(groups[1].barrier)  # rank 0 makes no call any more
        assert isinstance(error, GroupAborted)
        assert time.monotonic() - started_s < LATE_S


@pytest.mark.parametrize("async_op", [True, False])
@pytest.mark.usefixtures("hearing")
def test_an_interrupt_by_the_user_ends_the_group_and_leaves_nobody_waiting(
    async_op: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, works, me = SleepingCalls(monkeypatch), list[Work](), threading.get_ident()

    def press_ctrl_c() -> None:
        deadline = Deadline.after(LATE_S)
        while async_op and not works and not deadline.is_over():
            time.sleep(0.01)
        calls.wait_for()
        signal.pthread_kill(me, signal.SIGINT)

    with world(2, "tcp") as groups:
        user = threading.Thread(target=press_ctrl_c)
        user.start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the handle is needed
            works.append(groups[0].all_reduce(torch.ones(5), async_op=async_op))
            works[0].wait()
        user.join()
        for work in works:
            wait_s = time.monotonic()
            groups[0].abort()
            failure(work.wait)
            assert time.monotonic() - wait_s < LATE_S
        assert isinstance(failure(groups[0].barrier), InternalError | GroupAborted)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_is_idempotent_and_the_first_reason_stays(transport: str) -> None:
    with world(2, transport) as groups:
        group = groups[0]
        threads = [Blocked(lambda: group.abort("reason")) for _ in range(4)]
        for thread in threads:
            assert thread.join() is None
        group.abort("another")
        error = failure(group.barrier)
        assert isinstance(error, GroupAborted)
        assert "reason" in str(error)
        assert "another" not in str(error)
        group.close()
        group.abort()
        group.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_abort_fails_every_operation_in_flight(transport: str) -> None:
    with world(2, transport) as groups:
        group = groups[0]
        works: list[Work] = [
            group.all_reduce(torch.ones(n), async_op=True) for n in (1, LARGE, 100)
        ]
        works.append(group.recv(torch.ones(3), 1, async_op=True))
        works.append(group.send(torch.ones(LARGE), 1, async_op=True))
        time.sleep(0.05)
        group.abort()
        for work in works:
            assert isinstance(failure(lambda w=work: w.wait(60)), GroupAborted)  # type: ignore[misc]


# -- close -------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_waits_for_a_rank_that_left_is_told_so(transport: str) -> None:
    with world(2, transport) as (ours, theirs):
        run_threads([ours.barrier, theirs.barrier])
        theirs.close()
        error = failure(ours.barrier)
    assert isinstance(error, PeerLost)
    assert str(error) == "rank 1: left the group while this rank waited for it"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_is_idempotent_and_the_end(transport: str) -> None:
    with world(2, transport) as groups:
        run_threads([lambda g=g: g.barrier() for g in groups])  # type: ignore[misc]
        for group in groups:
            group.close()
            group.close()
            assert isinstance(failure(group.barrier), GroupAborted)
            assert "closed" in str(failure(group.barrier))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_with_a_rank_that_closed_raises_soon(transport: str) -> None:
    with world(2, transport) as groups:
        groups[1].close()
        started_s = time.monotonic()
        error = failure(lambda: groups[0].all_reduce(torch.ones(5)))
        assert isinstance(error, PeerLost)
        assert error.peer == 1
        assert time.monotonic() - started_s < LATE_S


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_close_does_not_wait_for_messages_that_nobody_takes(transport: str) -> None:
    with world(2, transport) as groups:
        works = [groups[0].send(torch.ones(LARGE), 1, async_op=True) for _ in range(3)]
        time.sleep(0.1)  # the background thread is at it
        started_s = time.monotonic()
        assert Blocked(groups[0].close).join() is None
        assert time.monotonic() - started_s < LATE_S
        for work in works:
            assert isinstance(failure(work.wait), GroupAborted)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_may_close_right_after_its_last_call(transport: str) -> None:
    """The others still get everything it sent before."""

    def last_words(group: Group) -> float:
        tensor = torch.full((100_000,), float(group.rank + 1))
        group.all_reduce(tensor)
        group.broadcast(tensor, src=0)
        group.close()
        return tensor.sum().item()

    for _ in range(20):
        with world(3, transport) as groups:
            sums = run_threads([lambda g=g: last_words(g) for g in groups])  # type: ignore[misc]
        assert sums == [600_000.0] * 3


def test_leaving_the_block_with_an_error_tells_the_others_why() -> None:
    with world(2, "tcp") as groups:
        blocked = Blocked(lambda: groups[1].barrier())
        with pytest.raises(ZeroDivisionError), groups[0]:
            _ = 1 / 0
        error = blocked.join()
        assert isinstance(error, GroupAborted)
        assert "ZeroDivisionError" in str(error)


# -- what is known after a failure -------------------------------------------------


def test_progress_is_about_the_call_that_failed_and_not_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world(2, "shm") as groups:
        run_threads(
            [lambda g=g: g.all_reduce(torch.ones(LARGE)) for g in groups]  # type: ignore[misc]
        )
        for _ in range(2):
            run_threads([lambda g=g: g.all_reduce(torch.ones(4)) for g in groups])  # type: ignore[misc]
        calls = SleepingCalls(monkeypatch)
        blocked = Blocked(lambda: groups[0].all_reduce(torch.ones(4)))
        calls.wait_for()
        groups[0].abort()
        assert isinstance(blocked.join(), GroupAborted)
        progress = groups[0].progress()
        assert "all_reduce(4 x" in progress.call
        assert progress.complete == ()


def test_a_group_shows_its_rank_its_links_and_its_end() -> None:
    with world(2, "shm") as (first, second):
        assert repr(second).startswith("<Group rank 1 of 2, shm, 'peers:127.0.0.1:")
        first.abort()
        assert "rank 0 of 2, ended by GroupAborted, " in repr(first)
        first.close()
        assert "rank 0 of 2, closed, " in repr(first)
    with world(1, "tcp") as (alone,):
        assert "rank 0 of 1, no links, " in repr(alone)
