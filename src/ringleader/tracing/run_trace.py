"""``trace_run``: traces a whole worker, as ``ringleader run --trace`` asks for.

The trace ends with the program, however it ends: by itself, by an exception, or by the
SIGTERM with which a launcher ends its workers when one of them has died.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading

from ringleader.settings.tracing import take_trace_settings
from ringleader.tracing.trace import Trace

HURRY_S = 3.0
"""Time for the trace after SIGTERM; launchers kill after five seconds or more."""
EXIT_STATUS = 128 + signal.SIGTERM


def trace_run() -> None:
    """Trace this process from now on, as the environment says."""
    wanted = take_trace_settings()
    trace = Trace(wanted.path, since_s=wanted.since_s)
    trace.start()
    atexit.register(trace.finish)
    if threading.current_thread() is threading.main_thread():
        _finish_when_terminated(trace)


def _finish_when_terminated(trace: Trace) -> None:
    """Let SIGTERM end the trace and then the process, unless the program handles it.

    A handler in Python would have to wait for the main thread, which may be inside a
    long call of C++. The interpreter writes the signal's number to a socket at once.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    if previous != -1:  # somebody else's, who must go on to get the signals
        signal.set_wakeup_fd(previous)
        ours.close()
        theirs.close()
        return
    signal.signal(signal.SIGTERM, _left_to_thread)
    os.register_at_fork(after_in_child=_forget)
    ending = threading.Thread(
        target=_watch,
        args=(trace, ours, theirs),
        name="ringleader-trace-end",
        daemon=True,
    )
    ending.start()


def _left_to_thread(_number: int, _frame: object) -> None:
    """Handle SIGTERM: ``_watch`` does what is to be done."""


def _is_ours() -> bool:
    return signal.getsignal(signal.SIGTERM) is _left_to_thread


def _watch(trace: Trace, signals: socket.socket, _written: socket.socket) -> None:
    """Wait for SIGTERM; the socket that is written must stay open meanwhile."""
    while number := signals.recv(1):
        if number[0] == signal.SIGTERM and _is_ours():
            trace.finish(HURRY_S)
            os._exit(EXIT_STATUS)


def _forget() -> None:
    """Handle SIGTERM in a forked child as if there were no trace."""
    if _is_ours():
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
