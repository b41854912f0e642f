"""The thread that sends for a link: without a thread, and in a fork."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ringleader.transport.sending_thread import SendingThread

PATIENCE_S = 60.0


def test_who_can_have_no_thread_works_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    thread = SendingThread(lambda: done.append(threading.get_ident()))
    for _ in range(2):
        thread.start()
        assert not thread.is_busy
    thread.close()
    assert done == [threading.get_ident()] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_no_thread_of_its_parent() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    thread = SendingThread(work)
    thread.start()
    assert begun.wait(PATIENCE_S)
    with thread._lock:  # as if the thread held it when the process was forked
        child = os.fork()
        if child == 0:
            thread.wait()
            thread.close()
            os._exit(0)
    try:
        assert exit_code(child) == 0
    finally:
        may_end.set()
        thread.close()


def exit_code(child: int) -> int:
    """The exit code of a process; it is killed if it hangs."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the fork still waits")
