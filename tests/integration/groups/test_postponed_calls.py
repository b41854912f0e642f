"""Operations of a backward pass run at its end, and nothing waits for ever for that."""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringleader.backend.completion_pool import CompletionPool
from ringleader.backend.work import BackendWork
from ringleader.deadline import Deadline
from ringleader.engine.openmp import find_set_threads
from ringleader.engine.shared_memory.helpers import HELPED_BYTES, Helpers
from ringleader.groups import postponed_calls, postponement
from ringleader.groups.group import Group, handle_of
from ringleader.groups.job import Job
from ringleader.groups.postponed_calls import PostponedCalls
from ringleader.groups.postponement import Postponement
from ringleader.groups.work import Work
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import world

WITHIN_S = 240.0
"""On two cores that others use, too, teams of threads wait long for each other."""


def use_own_threads(group: Group) -> list[int]:
    """Do what share_cores does where torch's threads take all cores.

    Returns a list to which the thread of every relay is appended.
    """
    handle, set_threads = handle_of(group), find_set_threads()
    shared = handle.executor.shared
    assert shared is not None
    assert set_threads is not None
    counters = [segment.num_issued for segment in shared.arena.segments]
    own = counters.pop(group.rank)
    runner = handle.runner
    runner.postponed = PostponedCalls(own, counters, runner.postponement)
    shared.use_helpers(Helpers(1, set_threads, handle.runner.is_in_background))
    threads: list[int] = []
    run = shared.relay._run

    def seen(*args: object, **named: object) -> None:
        threads.append(threading.get_ident())
        run(*args, **named)  # type: ignore[arg-type]

    shared.relay._run = seen  # type: ignore[method-assign]
    group.barrier()
    return threads


def values(group: Group) -> Tensor:
    count = 3 * group.size * HELPED_BYTES // 4 + 7
    return torch.full((count,), float(group.rank + 1))


def expected(group: Group) -> float:
    return group.size * (group.size + 1) / 2


def backward(*hooks: Callable[[], object]) -> None:
    """Run a backward pass that calls ``hooks`` in this order."""
    value = torch.ones(1, requires_grad=True)
    result = value
    for hook in reversed(hooks):
        result = result * 2
        result.register_hook(lambda _, hook=hook: hook() and None)  # type: ignore[no-untyped-call]
    result.backward()  # type: ignore[no-untyped-call]


def compute_in_backward(group: Group, _: Ready) -> None:
    """Every operation runs in the thread of the backward pass, at its end."""
    postponement.POSTPONED_S = postponed_calls.PATIENCE_S = WITHIN_S
    threads = use_own_threads(group)
    tensors = [values(group), values(group)]
    works: list[Work] = []

    def start(tensor: Tensor) -> None:
        works.append(group.all_reduce(tensor, async_op=True))

    for _repeat in range(3):  # the later ones are prepared calls
        for tensor in tensors:
            tensor.fill_(group.rank + 1)
        works.clear()
        backward(*(lambda t=t: start(t) for t in tensors), lambda: check_queued(works))
        assert len(works) == 2
        assert all(work.done() for work in works)
        for tensor in tensors:
            assert bool((tensor == expected(group)).all())
    assert threads == [threading.get_ident()] * 6


def compute_on_a_device(group: Group, _: Ready) -> bool:
    """What overlaps with a device is not postponed: it ends while the pass goes on."""
    postponement.POSTPONED_S = postponed_calls.PATIENCE_S = WITHIN_S
    use_own_threads(group)
    tensor, ended = values(group), threading.Event()

    def start() -> None:
        work = handle_of(group).together(
            lambda: group.all_reduce(tensor), async_op=True, is_postponed=False
        )
        work.when_done(ended.set)

    ends: list[bool] = []
    backward(start, lambda: ends.append(ended.wait(WITHIN_S / 2)))
    return ends == [True] and bool((tensor == expected(group)).all())


def outlast_the_deadline(group: Group, _: Ready) -> bool:
    """A pass that takes longer than the caller allows does not break its calls."""
    postponement.POSTPONED_S = postponed_calls.PATIENCE_S = WITHIN_S
    use_own_threads(group)
    tensor, ended = values(group), threading.Event()

    def start() -> None:
        work = group.all_reduce(tensor, async_op=True, timeout_s=20)
        work.when_done(ended.set)

    ends: list[bool] = []
    backward(start, lambda: ends.append(ended.wait(WITHIN_S / 2)))
    return ends == [True] and bool((tensor == expected(group)).all())


def close_in_backward(group: Group, _: Ready) -> bool:
    """A group that is closed leaves no shared memory, also not in mid-pass."""
    use_own_threads(group)
    tensor, works = values(group), list[Work]()
    backward(lambda: works.append(group.all_reduce(tensor, async_op=True)), group.close)
    gc.collect()
    return "memfd:ringleader" not in Path("/proc/self/maps").read_text()


def check_queued(works: list[Work]) -> None:
    assert not any(work.done() for work in works)


def test_the_end_of_a_backward_pass_runs_what_it_queued(
    fork_server: ForkServer,
) -> None:
    with spawn_ranks(
        2,
        compute_in_backward,
        transport="shm",
        timeout_s=WITHIN_S,
        fork_server=fork_server,
    ) as ranks:
        for rank in ranks:
            rank.result(within_s=WITHIN_S)


def send_after_backward(group: Group, _: Ready) -> bool:
    """Rank 1 comes to the operation only after it has heard of rank 0's end."""
    use_own_threads(group)
    tensor, word = values(group), torch.zeros(1)
    if group.rank == 0:
        works: list[Work] = []
        backward(lambda: works.append(group.all_reduce(tensor, async_op=True)))
        group.send(word, 1)
        works[0].wait()
    else:
        group.recv(word, 0)
        group.all_reduce(tensor)
    return bool((tensor == expected(group)).all())


def wait_in_backward(group: Group, _: Ready) -> bool:
    """Rank 0's pass ends only after the operation that it has queued."""
    use_own_threads(group)
    tensor, word = values(group), torch.zeros(1)
    if group.rank == 0:
        works: list[Work] = []
        backward(
            lambda: works.append(group.all_reduce(tensor, async_op=True)),
            lambda: group.recv(word, 1),
        )
        works[0].wait()
    else:
        group.all_reduce(tensor)
        group.send(word, 0)
    return bool((tensor == expected(group)).all())


def wait_without_helping(group: Group, _: Ready) -> bool:
    """By a future of torch, and with a limit: neither runs the queue."""
    postponement.POSTPONED_S = postponed_calls.PATIENCE_S = WITHIN_S
    use_own_threads(group)
    tensor, completions = values(group), CompletionPool()

    def wait(by_future: bool) -> None:
        work = group.all_reduce(tensor, async_op=True)
        handle = BackendWork([work], [tensor], completions, add_context=lambda e: e)
        if by_future:
            handle.get_future().wait()
        else:
            handle.wait(timedelta(seconds=WITHIN_S / 2))
        tensor.div_(group.size)

    start_s = time.monotonic()
    backward(lambda: wait(True), lambda: wait(False))
    has_waited = time.monotonic() - start_s > WITHIN_S / 3
    return not has_waited and bool((tensor == expected(group) / group.size).all())


@pytest.mark.slow
def test_no_rank_waits_for_ever_for_the_end_of_a_backward_pass(
    fork_server: ForkServer,
) -> None:
    for body in (
        send_after_backward,
        wait_in_backward,
        wait_without_helping,
        compute_on_a_device,
        outlast_the_deadline,
        close_in_backward,
    ):
        with spawn_ranks(
            2, body, transport="shm", timeout_s=WITHIN_S, fork_server=fork_server
        ) as ranks:
            assert all(rank.result(within_s=WITHIN_S) for rank in ranks)


class PostponedSoon(Postponement):
    """Says that the first job is due, and when asked again that it is postponed."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_s = [0.0, 0.1]

    def left_s(self, queue: deque[Job]) -> float:
        return self.answers_s.pop(0)


def test_the_background_thread_looks_again_before_it_runs_a_job() -> None:
    """While it waited for the lock, another thread may have run what was due."""
    ran: list[Deadline] = []
    with world(1, "tcp") as (alone,):
        runner, soon = handle_of(alone).runner, PostponedSoon()
        work = runner.message_work()
        runner.postponement = soon
        runner._queue.append(Job(ran.append, Deadline.after(60), work, nests=False))
        assert not runner._serve_once()
        assert not ran
        assert not soon.answers_s
        runner.postponement = Postponement()
        assert runner._serve_once()
        assert len(ran) == 1


def test_a_postponed_operation_is_extended_while_it_is_the_last_one() -> None:
    """Then its time limit begins anew, and it counts as one more operation."""
    counter = memoryview(bytearray(8)).cast("Q")
    with world(1, "tcp") as (alone,):
        runner = handle_of(alone).runner
        runner.postponed = PostponedCalls(counter, [], runner.postponement)
        runner.postponement.begin()
        ran: list[str] = []
        run = partial(ran.append, "run")
        works = [handle_of(alone).together(run, async_op=True, is_postponed=True)]
        (job,) = runner._queue
        before_s, number = job.deadline.at_s, job.number
        assert runner.extend(works[0])
        assert job.deadline.at_s > before_s
        assert job.number == counter[0] == number + 1
        works.append(alone.barrier(async_op=True))
        assert not runner.extend(works[0])
        for work in works:
            work.wait()
        assert ran == ["run"]
        assert not runner.extend(works[0])


def test_closing_waits_for_a_thread_that_is_about_to_start() -> None:
    with world(1, "tcp") as (alone,):
        runner = handle_of(alone).runner
        begun, ended = threading.Event(), threading.Event()

        def close() -> None:
            begun.set()
            alone.close()
            ended.set()

        with runner._thread_lock:
            runner._thread = threading.Thread(target=lambda: None)
            threading.Thread(target=close, daemon=True).start()
            assert begun.wait(WITHIN_S)
            assert not ended.wait(0.2)
            runner._thread.start()
        assert ended.wait(WITHIN_S)


def test_a_short_limit_ends_the_wait_of_those_before_it() -> None:
    postponed = Postponement()
    patient, hasty = (
        Job(lambda _: None, Deadline.after(limit_s), Work(), nests=False)
        for limit_s in (3600.0, 0.2)
    )
    patient.is_postponed = True
    queues = [deque([patient]), deque([patient, hasty]), deque([hasty, patient])]
    assert [postponed.left_s(queue) for queue in queues] == [0.0] * 3
    postponed.begin()
    patient_s, hasty_s, not_postponed_s = (postponed.left_s(each) for each in queues)
    assert 0 < patient_s <= postponement.POSTPONED_S
    assert hasty_s <= 0.1
    assert not_postponed_s == postponed.left_s(deque()) == 0.0
    postponed.end()
    assert [postponed.left_s(queue) for queue in queues] == [0.0] * 3
