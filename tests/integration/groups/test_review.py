"""Defects that a review found, each with the program that showed it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from ringleader.deadline import Deadline
from ringleader.errors import (
    CallMismatch,
    ConfigError,
    GroupAborted,
    PeerLost,
    RingleaderError,
)
from ringleader.groups.group import Group, handle_of
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads, run_world, world
from ringleader.transport import tcp_socket
from ringleader.transport.socket_link import SocketLink
from tests.kit.sleeping_calls import SleepingCalls


def failure(call: Callable[[], object]) -> RingleaderError:
    with pytest.raises(RingleaderError) as caught:
        call()
    return caught.value


def test_tensors_without_elements_travel() -> None:
    """FT-15: nothing is sent for nothing, and the next message is not taken for it."""

    def body(group: Group) -> None:
        for count in (0, 1):
            if group.rank == 0:
                group.send(torch.full((count, 3), 7.0), 1)
            else:
                received = torch.zeros(count, 3)
                group.recv(received, 0)
                assert received.tolist() == [[7.0] * 3] * count
            group.all_reduce(torch.ones(0))
        group.barrier()

    run_world(2, body)


def test_dtypes_of_one_width_are_not_taken_for_each_other() -> None:
    """FT-15: dtype and size are compared before anything is added."""

    def body(group: Group) -> None:
        half = torch.ones(4, dtype=torch.float16)
        brain = torch.ones(4 * group.size, dtype=torch.bfloat16)
        calls: list[Callable[[], object]] = [
            lambda: group.all_gather(brain, half),
            lambda: group.reduce_scatter(half, brain),
            lambda: group.gather(brain, half, group.rank),
            lambda: group.scatter(half, brain, group.rank),
            lambda: group.all_to_all(brain, torch.ones(8, dtype=torch.int16)),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="convert one of them"):
                call()
        group.barrier()

    run_world(2, body)


@pytest.mark.parametrize("transport", ["memory", "shm", "tcp"])
def test_parts_whose_lengths_differ_between_ranks_are_a_mismatch(
    transport: str,
) -> None:
    with world(2, transport) as groups:

        def call(group: Group) -> BaseException:
            sizes = [1, 3] if group.rank == 0 else [3, 1]
            outs = [torch.zeros(n) for n in sizes]
            return failure(lambda: group.all_gather(outs, torch.ones(1)))

        for error in run_threads([lambda g=g: call(g) for g in groups]):  # type: ignore[misc]
            assert isinstance(error, CallMismatch)


def test_a_tensor_without_memory_is_refused() -> None:
    with world(2) as groups:
        run_threads([lambda g=g: g.all_reduce(torch.ones(4)) for g in groups])  # type: ignore[misc]
        hollow = torch._efficientzerotensor(4)
        with pytest.raises(ConfigError, match="no memory of its own"):
            groups[0].all_reduce(hollow)


@pytest.mark.parametrize("transport", ["memory", "tcp", "shm"])
def test_messages_to_and_from_who_left_end_at_once(transport: str) -> None:
    with world(2, transport) as (ours, theirs):
        run_threads([ours.barrier, theirs.barrier])
        wanted = ours.recv(torch.ones(3), 1, async_op=True)
        anybody = ours.recv(torch.ones(3), None, tag=5, async_op=True)
        large = ours.send(torch.ones(1_000_000), 1, async_op=True)
        time.sleep(0.05)
        theirs.close()
        started_s = time.monotonic()
        for work in (wanted, anybody, large):
            error = failure(work.wait)
            assert isinstance(error, PeerLost)
            assert error.peer == 1
        assert isinstance(failure(lambda: ours.recv(torch.ones(3), 1)), PeerLost)
        assert isinstance(failure(lambda: ours.send(torch.ones(3), 1)), PeerLost)
        assert time.monotonic() - started_s < 30


def test_a_signal_handler_may_close_the_group_in_the_middle_of_an_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, me = SleepingCalls(monkeypatch), threading.get_ident()

    def send_signal() -> None:
        calls.wait_for()
        signal.pthread_kill(me, signal.SIGUSR1)

    with world(2, "tcp") as (ours, theirs):
        seen: list[BaseException] = []

        def close(*_: object) -> None:
            with pytest.raises(ConfigError, match="signal handler"):
                ours.all_reduce(torch.ones(2))
            ours.close()

        before = signal.signal(signal.SIGUSR1, close)
        sender = threading.Thread(target=send_signal)
        sender.start()
        try:
            seen.append(failure(ours.barrier))
        finally:
            signal.signal(signal.SIGUSR1, before)
            sender.join()
        assert isinstance(seen[0], GroupAborted)
        theirs.barrier()  # our part of it had been sent
        assert isinstance(failure(theirs.barrier), GroupAborted)


def test_closing_does_not_wait_for_an_operation_that_will_not_end() -> None:
    with world(2, "tcp") as (ours, theirs):
        work = ours.all_reduce(torch.ones(5), async_op=True)
        link = handle_of(theirs).mesh.bulk[0]
        assert isinstance(link, SocketLink)
        tcp_socket.wait_readable(link.sock, 0, Deadline.after(60))  # our part of it
        started_s = time.monotonic()
        ours.close()
        assert time.monotonic() - started_s < 30
        assert isinstance(failure(work.wait), GroupAborted)
        theirs.all_reduce(torch.ones(5))  # our part of it had been sent
        assert isinstance(failure(theirs.barrier), GroupAborted)


# -- in processes of their own, through torch ------------------------------------------

WITHIN_S = 120.0
CHILD_S = 120.0
"""How long a forked child lives, unless the test ends it earlier."""
LIMIT_S = 90.0
LOST_WITHIN_S = 30.0


@contextlib.contextmanager
def joined(group: Group, store: str) -> Iterator[None]:
    """torch.distributed among the ranks of ``group``, which is only to meet in."""
    dist.init_process_group(
        "ringleader",
        init_method=f"file://{store}",
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=LIMIT_S),
    )
    dist.barrier()
    yield
    dist.barrier()
    dist.destroy_process_group()


def fork_and_die(group: Group, ready: Ready, store: str) -> None:
    """Rank 0 is killed; what it forked before lives on."""
    with joined(group, store):
        if group.rank == 0:
            if os.fork() == 0:
                os.closerange(0, 3)
                time.sleep(CHILD_S)
                os._exit(0)
            group.close()
            ready()
            time.sleep(WITHIN_S)
        dist.all_reduce(torch.ones(1))


def test_a_forked_child_does_not_hold_the_connections_open(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    with spawn_ranks(2, fork_and_die, store, fork_server=fork_server) as ranks:
        ranks[0].wait_ready(WITHIN_S)
        [child] = psutil.Process(ranks[0].pid).children()
        killed_s = ranks[0].kill()
        try:
            error = ranks[1].error(WITHIN_S)
            assert child.is_running(), "it did not outlive its parent"
        finally:
            child.kill()
    assert ranks[1].ended_at_s - killed_s < LOST_WITHIN_S
    assert "rank 0" in str(error)


def come_too_late(group: Group, _: Ready, store: str) -> list[str]:
    """What two barriers of rank 0 say when rank 1 comes between them."""
    short = timedelta(seconds=0.3)
    said = []
    with joined(group, store):
        for turn in (0, 1, 0):  # who is at its barrier while the other waits
            if group.rank == turn:
                with pytest.raises(RuntimeError) as caught:
                    dist.monitored_barrier(timeout=short)
                said.append(str(caught.value))
            group.barrier()
    return said


def test_a_late_rank_does_not_pass_for_the_next_monitored_barrier(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    with spawn_ranks(2, come_too_late, store, fork_server=fork_server) as ranks:
        said = [rank.result(WITHIN_S) for rank in ranks]
    assert len(said[0]) == 2
    for text in said[0]:
        assert "Rank 1 failed to pass monitoredBarrier" in text
