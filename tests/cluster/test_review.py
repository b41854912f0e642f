"""Defects that a review found, each with the program that showed it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ringleader.errors import (
    CallMismatch,
    ConfigError,
    GroupAborted,
    PeerLost,
    RingleaderError,
)
from ringleader.groups.group import Group
from ringleader.testing.inprocess import run_threads, run_world, world


def failure(call: Callable[[], object]) -> RingleaderError:
    with pytest.raises(RingleaderError) as caught:
        call()
    return caught.value


@pytest.mark.timeout(60)
def test_dtypes_of_one_width_are_not_taken_for_each_other() -> None:
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


@pytest.mark.timeout(60)
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


@pytest.mark.timeout(60)
def test_a_tensor_without_memory_is_refused() -> None:
    with world(2) as groups:
        run_threads([lambda g=g: g.all_reduce(torch.ones(4)) for g in groups])  # type: ignore[misc]
        hollow = torch._efficientzerotensor(4)
        with pytest.raises(ConfigError, match="no memory of its own"):
            groups[0].all_reduce(hollow)


@pytest.mark.timeout(60)
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
        assert time.monotonic() - started_s < 2


@pytest.mark.timeout(60)
def test_a_signal_handler_may_close_the_group_in_the_middle_of_an_operation() -> None:
    with world(2, "tcp") as (ours, theirs):
        seen: list[BaseException] = []

        def close(*_: object) -> None:
            with pytest.raises(ConfigError, match="signal handler"):
                ours.all_reduce(torch.ones(2))
            ours.close()

        before = signal.signal(signal.SIGUSR1, close)
        me = threading.get_ident()
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGUSR1))
        timer.start()
        try:
            seen.append(failure(ours.barrier))
        finally:
            signal.signal(signal.SIGUSR1, before)
            timer.join()
        assert isinstance(seen[0], GroupAborted)
        theirs.barrier()  # our part of it had been sent
        assert isinstance(failure(theirs.barrier), GroupAborted)


@pytest.mark.timeout(60)
def test_closing_does_not_wait_for_an_operation_that_will_not_end() -> None:
    with world(2, "tcp") as (ours, theirs):
        work = ours.all_reduce(torch.ones(5), async_op=True)
        time.sleep(0.1)
        started_s = time.monotonic()
        ours.close()
        assert time.monotonic() - started_s < 5
        assert isinstance(failure(work.wait), GroupAborted)
        theirs.all_reduce(torch.ones(5))  # our part of it had been sent
        assert isinstance(failure(theirs.barrier), GroupAborted)


PROLOGUE = """
import os, sys, time, torch, torch.distributed as dist
from datetime import timedelta
rank = int(sys.argv[1])
dist.init_process_group(
    "ringleader", init_method="file://" + sys.argv[2], rank=rank, world_size=2,
    timeout=timedelta(seconds=40),
)
dist.barrier()
"""


def play(tmp_path: Path, program: str) -> list[tuple[float, int, str]]:
    """(seconds, exit code, what it said) of two ranks that run ``program``."""
    script = tmp_path / "program.py"
    script.write_text(PROLOGUE + textwrap.dedent(program))

    def run(rank: int) -> tuple[float, int, str]:
        done = subprocess.run(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return time.monotonic(), done.returncode, done.stdout + done.stderr

    began_s = time.monotonic()
    ended = run_threads([lambda r=r: run(r) for r in range(2)])  # type: ignore[misc]
    return [(at_s - began_s, code, text) for at_s, code, text in ended]


@pytest.mark.timeout(100)
def test_an_exception_on_one_rank_reaches_who_waits_for_its_message(
    tmp_path: Path,
) -> None:
    program = """
    if rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(
            lambda f: dist.all_reduce(torch.ones(1))  # waits for ever
        )
        time.sleep(1)
        raise ValueError("no luck")
    time.sleep(0.3)
    dist.all_reduce(torch.ones(1))
    dist.recv(torch.ones(1), 0)
    """
    (first_s, _, _), (second_s, code, text) = play(tmp_path, program)
    assert max(first_s, second_s) < 25
    assert code == 1
    assert "ended with ValueError: no luck" in text


@pytest.mark.timeout(100)
def test_a_forked_child_does_not_hold_the_connections_open(tmp_path: Path) -> None:
    program = """
    if rank == 0:
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(20)
            os._exit(0)
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(1))
    """
    _, (seconds, code, text) = play(tmp_path, program)
    assert seconds < 18
    assert code == 1
    assert "rank 0" in text


@pytest.mark.timeout(100)
def test_a_late_rank_does_not_pass_for_the_next_monitored_barrier(
    tmp_path: Path,
) -> None:
    program = """
    short = timedelta(seconds=0.3)
    if rank == 0:
        for _ in range(2):
            try:
                dist.monitored_barrier(timeout=short)
                print("passed")
            except RuntimeError as error:
                print(error)
            time.sleep(1)
    else:
        time.sleep(0.6)
        try:
            dist.monitored_barrier(timeout=short)
        except RuntimeError:
            pass
        time.sleep(2)
    dist.barrier()
    """
    (_, code, text), (_, other, _) = play(tmp_path, program)
    assert (code, other) == (0, 0), text
    assert "passed" not in text
    assert text.count("Rank 1 failed to pass monitoredBarrier") == 2


@pytest.mark.timeout(100)
def test_the_result_of_a_functional_collective_can_be_reduced(tmp_path: Path) -> None:
    program = """
    import torch.distributed._functional_collectives as funcol
    dist.all_reduce(torch.ones(4))
    wrapped = funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    dist.all_reduce(wrapped)
    print(wrapped.tolist())
    """
    for _, code, text in play(tmp_path, program):
        assert code == 0, text
        assert "[4.0, 4.0, 4.0, 4.0]" in text
