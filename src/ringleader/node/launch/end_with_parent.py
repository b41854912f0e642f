"""Programs that end with the process that started them, however that one ends.

``kill -9`` gives a launcher no chance to end its workers. So they are started through
this file, which takes care of that and then becomes the program: on Linux the kernel
kills it, elsewhere a small process watches both. As a script it runs without site
packages, in some 20 ms; it may import nothing else of ringleader.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def end_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs ``command`` and ends with this process.

    On Linux, "this process" is the thread that starts it.
    """
    if sys.platform == "win32":  # exec starts another process there
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def kill_on_death_of_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, its parent, ends; Linux."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before we were ready
        os.kill(os.getpid(), signal.SIGKILL)


def watch(parent: int, worker: int) -> None:
    """Fork a process that kills ``worker`` when ``parent`` ends, and ends with it.

    It is not a child of this process: a program must not meet a child that it did not
    start.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # else a reader of the worker's output would wait for us
        os.dup2(nothing, stream)
    while _is_alive(worker):
        if not _is_alive(parent):
            os.kill(worker, signal.SIGKILL)
        time.sleep(POLL_S)
    os._exit(0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists and belongs to another user
    return True


def main(parent: int, command: list[str]) -> None:
    """Replace this process by ``command``, which ends with process ``parent``."""
    if sys.platform == "linux":
        kill_on_death_of_parent(parent)
    else:
        watch(parent, os.getpid())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
