"""While an operation runs, threads of this process hand over the GIL sooner.

Every system call and every numpy operation of the engine lets go of the GIL. If another
thread is busy in Python, getting it back takes one switch interval each time: 5 ms by
default, which turned an all_reduce of 25 MB from 12 ms into 1.2 s (decision 6).
The interval belongs to the process, so it is shortened only for as long as operations
run, and given back unless somebody else has set it meanwhile.
"""

from __future__ import annotations

import sys

from ringleader.settings import switch_interval_s

_running: list[None] = []
"""One entry per operation; append and pop need no lock, which would cost more."""
_usual_s = 0.0
"""What to give back; 0 while nothing is shortened. Groups may begin and end in several
threads at once: whichever step a thread is held up before, the interval ends as it was,
and at worst one operation runs with the long one."""
_short_s = switch_interval_s()
ROUNDING_S = 1e-6
"""The interval is kept in whole microseconds."""


def begin() -> None:
    """An operation begins."""
    _running.append(None)
    if not _usual_s:
        _shorten()


def end() -> None:
    """It has ended."""
    global _usual_s
    if _running:  # an interrupt may have come before begin()
        _running.pop()
    while (usual_s := _usual_s) and not _running:
        _usual_s = 0.0
        if abs(sys.getswitchinterval() - _short_s) < ROUNDING_S:  # it is still ours
            sys.setswitchinterval(usual_s)
            if _running:  # begun meanwhile, and maybe over before the next line
                _shorten()


def _shorten() -> None:
    global _usual_s
    interval_s = sys.getswitchinterval()
    if _short_s and interval_s > _short_s + ROUNDING_S:
        sys.setswitchinterval(_short_s)
        _usual_s = interval_s  # only now: who finds it gives the interval back
