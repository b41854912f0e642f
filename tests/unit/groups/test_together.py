"""Several collectives as one operation of a group."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from ringleader.errors import (
    CallMismatch,
    ConfigError,
    DeadlineExceeded,
    GroupAborted,
    InternalError,
    RingleaderError,
)
from ringleader.groups.group import Group, handle_of
from ringleader.groups.work import DONE
from ringleader.testing.threaded_world import run_threads, run_world, world

SHORT_S = 0.3
LIMIT_S = 6.0
"""Long enough for several calls, though the machine is busy for a while."""
SOON_S = 90.0


class Mishap(Exception):
    """Something goes wrong in a body."""


def test_calls_within_are_done_when_they_return() -> None:
    """Synchronous or not: the next line already uses what they gave."""

    def live(group: Group) -> list[float]:
        tensor = torch.tensor([group.rank + 1.0])
        parts = torch.empty(3)

        def body() -> None:
            assert group.all_reduce(tensor, async_op=True) is DONE
            tensor.mul_(10)
            group.all_gather(parts, tensor + group.rank)
            assert handle_of(group).together(lambda: group.broadcast(tensor, 2)) is DONE
            group.barrier()

        handle_of(group).together(body)
        return [*tensor.tolist(), *parts.tolist()]

    assert run_world(3, live) == [[60.0, 60.0, 61.0, 62.0]] * 3


def test_a_prepared_small_call_is_part_of_it_too() -> None:
    def live(group: Group) -> list[float]:
        tensor = torch.ones(2)
        group.all_reduce(tensor)  # from now on prepared
        handle_of(group).together(lambda: [group.all_reduce(tensor) for _ in range(3)])
        return tensor.tolist()

    assert run_world(2, live) == [[16.0, 16.0]] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_nothing_comes_between_two_calls_of_one(size: int) -> None:
    """Two of them at once. If their calls were mixed, they would sum each other's.

    Both make the same calls with different values, so that a mixture would not be
    noticed as a mismatch, only by its values.
    """

    def live(group: Group) -> list[list[float]]:
        held = [torch.tensor([1.0]), torch.tensor([100.0])]
        order: list[int] = []

        def body(which: int) -> None:
            for _ in range(20):
                group.all_reduce(held[which])
                held[which].div_(group.size)
                order.append(which)

        works = [
            handle_of(group).together(lambda which=which: body(which), async_op=True)  # type: ignore[misc]
            for which in range(2)
        ]
        for work in works:
            work.wait()
        return [[float(t) for t in held], list(map(float, order))]

    for values, order in run_world(size, live):
        assert values == [1.0, 100.0]
        assert order == [0.0] * 20 + [1.0] * 20


def test_a_call_of_another_thread_waits_for_the_end() -> None:
    def live(group: Group) -> list[float]:
        mine, theirs = torch.tensor([1.0]), torch.tensor([100.0])
        inside = threading.Event()

        def other() -> None:
            assert inside.wait(SOON_S)
            group.all_reduce(theirs)

        thread = threading.Thread(target=other)
        thread.start()

        def body() -> None:
            group.all_reduce(mine)
            inside.set()
            # The other thread's call is under way, or about to be: both must come last.
            thread.join(0.05)
            assert thread.is_alive()
            group.all_reduce(mine)

        handle_of(group).together(body)
        thread.join(SOON_S)
        return [float(mine), float(theirs)]

    assert run_world(2, live) == [[4.0, 200.0]] * 2


def test_it_runs_after_what_was_submitted_before_and_before_what_comes_after() -> None:
    def live(group: Group) -> float:
        tensor = torch.tensor([1.0])
        works = [group.all_reduce(tensor, async_op=True)]  # 2
        works.append(
            handle_of(group).together(lambda: tensor.add_(1), async_op=True)
        )  # 3
        works.append(group.all_reduce(tensor, async_op=True))  # 6
        for work in reversed(works):
            work.wait()
        return float(tensor)

    assert run_world(2, live) == [6.0] * 2


def test_async_it_runs_while_the_caller_goes_on() -> None:
    def live(group: Group) -> tuple[bool, str, float]:
        may_begin, tensor = threading.Event(), torch.tensor([1.0])
        where: list[str] = []

        def body() -> None:
            assert may_begin.wait(SOON_S)
            where.append(threading.current_thread().name)
            group.all_reduce(tensor)

        work = handle_of(group).together(body, async_op=True)
        was_done = work.done()
        may_begin.set()
        while not work.done():
            time.sleep(0.001)  # waiting would let us take over
        work.wait()
        return was_done, where[0], float(tensor)

    for rank, (was_done, where, value) in enumerate(run_world(2, live)):
        assert not was_done
        assert where == f"ringleader-engine-rank{rank}"
        assert value == 2.0


# -- the limit ---------------------------------------------------------------------


def test_all_calls_share_one_deadline() -> None:
    """With and without ``async_op``, at the same time: most of it is waiting."""
    run_threads([partial(share_one_deadline, async_op=each) for each in (False, True)])


def share_one_deadline(*, async_op: bool) -> None:
    """Each call alone would be in time; and their own limits do not count."""

    def live(group: Group) -> tuple[BaseException, float]:
        start_s = time.monotonic()
        num_calls = 0

        def body() -> None:
            nonlocal num_calls
            for _ in range(20):  # twice the limit
                if group.rank == 1:
                    time.sleep(LIMIT_S / 10)  # a slow rank, not one that waits
                group.all_reduce(torch.ones(2), timeout_s=1000)
                num_calls += 1

        with pytest.raises(RingleaderError) as caught:
            handle_of(group).together(body, timeout_s=LIMIT_S, async_op=async_op).wait()
        assert num_calls > 1
        return caught.value, time.monotonic() - start_s

    results = run_world(2, live)
    for error, took_s in results:
        assert isinstance(error, DeadlineExceeded), error
        assert took_s < SOON_S
    # Who was slow to begin is told of the end by the other.
    assert max(took_s for _, took_s in results) > LIMIT_S * 0.9


@pytest.mark.parametrize("num_before", [0, 2])
def test_a_call_after_the_deadline_fails_even_if_it_need_not_wait(
    num_before: int,
) -> None:
    """Also a call that is prepared, since there were others of its kind."""

    def live(group: Group) -> None:
        for _ in range(num_before):
            group.all_reduce(torch.ones(2))

        def body() -> None:
            time.sleep(SHORT_S * 1.1)
            group.all_reduce(torch.ones(2))

        with pytest.raises(DeadlineExceeded, match=r"rank \d: was busy with"):
            handle_of(group).together(body, timeout_s=SHORT_S)

    run_world(2, live)
    run_world(1, live)


def test_without_a_limit_it_has_the_groups() -> None:
    with world(2) as (group, _):
        group.timeout_s = SHORT_S
        start_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="rank 1"):
            handle_of(group).together(group.barrier)
        assert time.monotonic() - start_s < SOON_S


# -- failure -----------------------------------------------------------------------


@pytest.mark.parametrize("async_op", [False, True])
def test_an_exception_in_a_body_breaks_the_group_for_all(async_op: bool) -> None:
    def live(group: Group) -> tuple[BaseException, BaseException]:
        def body() -> None:
            group.all_reduce(torch.ones(2))
            if group.rank == 1:
                raise Mishap("between two calls")
            group.all_reduce(torch.ones(2))

        with pytest.raises((Mishap, RingleaderError)) as first:
            handle_of(group).together(body, async_op=async_op).wait()
        with pytest.raises(RingleaderError) as later:
            group.barrier()
        return first.value, later.value

    (here, here_later), (there, there_later) = run_world(2, live)
    assert isinstance(there, Mishap), "who raised it gets it as it was"
    for error in (here, here_later, there_later):
        assert isinstance(error, InternalError)
        assert "Mishap: between two calls" in str(error)
    for error in (here, here_later):
        assert "rank 1" in str(error)


def test_a_wrong_argument_within_is_an_exception_like_any_other() -> None:
    def live(group: Group) -> BaseException:
        def body() -> None:
            group.broadcast(torch.ones(2), src=7 if group.rank else 0)
            group.barrier()

        with pytest.raises(RingleaderError) as caught:
            handle_of(group).together(body)
        return caught.value

    here, there = run_world(2, live)
    assert isinstance(there, ConfigError)
    assert "src 7" in str(here)


def test_an_error_of_a_call_within_cannot_be_swallowed() -> None:
    """The streams are out of step from there on: the next call reads what was left."""

    def live(group: Group) -> tuple[BaseException, BaseException]:
        seen: list[RingleaderError] = []

        def body() -> None:
            try:
                group.all_reduce(torch.ones(2 + group.rank))
            except RingleaderError as exc:
                seen.append(exc)

        with contextlib.suppress(RingleaderError):
            handle_of(group).together(body)
        with pytest.raises(RingleaderError) as later:
            group.all_reduce(torch.ones(2))
        return seen[0], later.value

    for first, later in run_world(2, live):
        assert isinstance(first, CallMismatch)
        assert str(later) == str(first), "the first error is everybody's, for good"


def test_an_abort_ends_it_between_two_calls() -> None:
    with world(2) as groups:

        def drive(group: Group) -> BaseException:
            def body() -> None:
                for number in range(1_000_000):
                    if group.rank == 0 and number == 3:
                        threading.Thread(target=group.abort, args=("stop",)).start()
                    group.all_reduce(torch.ones(2))

            with pytest.raises(RingleaderError) as caught:
                handle_of(group).together(body, timeout_s=SOON_S)
            return caught.value

        calls: list[Callable[[], BaseException]] = [
            lambda g=g: drive(g)  # type: ignore[misc]
            for g in groups
        ]
        for error in run_threads(calls):
            assert isinstance(error, GroupAborted)
            assert "stop" in str(error)


def test_a_message_within_is_refused() -> None:
    def body(group: Group) -> None:
        def within() -> None:
            with pytest.raises(ConfigError, match="cannot be part"):
                group.send(torch.ones(2), 1 - group.rank)

        handle_of(group).together(within)
        group.barrier()

    run_world(2, body)
