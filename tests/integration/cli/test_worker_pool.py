"""WorkerPool: every failure is an error in time, and no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ringleader.cli.worker_pool import WorkerPool
from ringleader.errors import DeadlineExceeded, PeerLost, RingleaderError

WORKER = """
import os, signal, sys, time
from ringleader.cli.json_socket import serve

rank = int(sys.argv[2])

def handle(task, report):
    if task["do"] == "die" and rank == task["rank"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if task["do"] in ("die", "hang"):
        time.sleep(600)
    if task["do"] == "fail" and rank == task["rank"]:
        raise ValueError("no such thing")
    if task["do"] == "count":
        for i in range(3):
            report({"at": i})
    return {"rank": rank}

serve(sys.argv[1], {"rank": rank}, handle)
"""


def start(pool: WorkerPool, source: str = WORKER) -> list[int]:
    """Start all ranks and return their process ids."""
    for rank in range(pool.size):
        pool.start([sys.executable, "-c", source, pool.address, str(rank)])
    hellos = pool.wait_connected(300)
    return [int(str(hello["pid"])) for hello in hellos]


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            pytest.fail(f"process {pid} is still there")


def test_answers_come_back_in_the_order_of_ranks() -> None:
    with WorkerPool("test", 3) as pool:
        pids = start(pool)
        answers = pool.request({"do": "work"}, 120)
        directory = pool.directory

    assert [answer["rank"] for answer in answers] == [0, 1, 2]
    assert_gone(pids)
    assert not directory.exists()


def test_reports_are_heard_before_the_answer() -> None:
    with WorkerPool("test", 1) as pool:
        start(pool)
        pool.send_all({"do": "count"})
        heard = []
        for _, message in pool.receive(120):
            heard.append(message)
            if "rank" in message:
                break

    assert heard == [{"at": 0}, {"at": 1}, {"at": 2}, {"rank": 0}]


def test_a_killed_worker_is_named_although_the_others_hang() -> None:
    with WorkerPool("test", 3) as pool:
        pids = start(pool)
        with pytest.raises(PeerLost, match=r"test rank 1: .*SIGKILL"):
            pool.request({"do": "die", "rank": 1}, 120)

    assert_gone(pids)


def test_an_error_in_one_rank_is_told_in_its_words() -> None:
    with WorkerPool("test", 2) as pool:
        start(pool)
        with pytest.raises(RingleaderError, match=r"rank 0: ValueError: no such thing"):
            pool.request({"do": "fail", "rank": 0}, 120)


def test_silence_ends_at_the_deadline_and_the_silent_are_ended() -> None:
    with WorkerPool("test", 2) as pool:
        pids = start(pool)
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded, match=r"no reply within 0.5 s"):
            pool.request({"do": "work"}, 0.5)

    assert_gone(pids)


def test_ctrl_c_ends_workers_that_are_busy() -> None:
    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_a_busy_pool(pids)

    assert len(pids) == 2
    assert_gone(pids)


def interrupt_a_busy_pool(pids: list[int]) -> None:
    with WorkerPool("test", 2) as pool:
        pids += start(pool)
        pool.send_all({"do": "hang"})
        raise KeyboardInterrupt


def test_a_worker_that_cannot_start_says_why() -> None:
    with (
        WorkerPool("test", 2) as pool,
        pytest.raises(PeerLost, match=r"(?s)exit code 1.*No module named 'nowhere'"),
    ):
        start(pool, "import nowhere")


def test_a_worker_that_never_says_hello_is_not_waited_for() -> None:
    with WorkerPool("test", 1) as pool:
        pool.start([sys.executable, "-c", "import time; time.sleep(600)"])
        with pytest.raises(DeadlineExceeded, match=r"ranks \[0\] did not start"):
            pool.wait_connected(0.3)


def test_workers_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    """No parent is left to end them: the closed socket must be enough."""
    script = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from ringleader.cli.worker_pool import WorkerPool
with WorkerPool("test", 2) as pool:
    for rank in range(2):
        pool.start([sys.executable, "-c", {WORKER!r}, pool.address, str(rank)])
    pids = [hello["pid"] for hello in pool.wait_connected(300)]
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    pids = [int(word) for word in done.stdout.split()]

    assert len(pids) == 2, done.stderr
    until_s = time.monotonic() + 60
    while any(is_running(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    """Whether a process runs; an ended orphan may remain as a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
