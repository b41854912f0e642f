"""The first signal ends a process in order, the second at once, whatever it does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, subprocess, sys, time
from ringleader.node.launch.interrupts import Interrupts

class Stopped(Exception): pass

worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                          start_new_session=True)
how, patience_s = sys.argv[1], float(sys.argv[2])
with Interrupts(lambda: [worker.pid], lambda number: Stopped(number), patience_s):
    try:
        print(worker.pid, flush=True)
        time.sleep(600)
    except Stopped as stopped:
        print(f"stopped by {stopped}", flush=True)
        if how == "in C":  # no handler of Python runs meanwhile
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)
        worker.kill()
worker.wait()
sys.exit(7)
"""


def start(how: str, patience_s: float) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, str(patience_s)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def has_ended(pid: int, within_s: float = 60.0) -> bool:
    """Wait until a process has ended; nobody may have collected its status yet."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_the_first_signal_ends_in_order() -> None:
    process, worker = start("sleeps", 600)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert (process.returncode, said) == (7, "stopped by 15\n")
    assert has_ended(worker)


@pytest.mark.parametrize(("signals", "patience_s"), [(2, 600.0), (1, 3.0)])
def test_the_second_signal_or_time_ends_at_once_with_the_workers(
    signals: int, patience_s: float
) -> None:
    process, worker = start("in C", patience_s)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopped by 2\n"
    for _ in range(signals - 1):
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    last = signal.SIGTERM if signals > 1 else signal.SIGINT
    assert process.returncode == 128 + last
    assert has_ended(worker)
