"""Shortens the GIL switch interval of this process while operations run.

Every system call and every numpy operation of the engine releases the GIL. If another
thread is busy in Python, getting it back takes one switch interval each time: 5 ms by
default, which turned an all_reduce of 25 MB from 12 ms into 1.2 s; see
docs/decisions/0006-the-gil.md. The interval belongs to the process, so it is shortened
only while operations run, and restored unless the program has set it meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ringleader.settings import switch_interval_s

P = ParamSpec("P")
T = TypeVar("T")

_running: list[None] = []
"""One entry per running operation; append and pop need no lock."""
_usual_s = 0.0
"""The interval to restore; 0 while it is not shortened. Operations may begin and end in
several threads at once: before whichever step a thread is delayed, the interval is
restored in the end, and at worst one operation runs with the long interval."""
_short_s = switch_interval_s()
ROUNDING_S = 1e-6
"""Python stores the interval in whole microseconds."""


def begin() -> None:
    """Call when an operation begins."""
    _running.append(None)
    if not _usual_s:
        _shorten()


def end() -> None:
    """Call when an operation has ended."""
    global _usual_s
    if _running:  # an interrupt may have come before begin()
        _running.pop()
    while (usual_s := _usual_s) and not _running:
        _usual_s = 0.0
        if (
            abs(sys.getswitchinterval() - _short_s) < ROUNDING_S
        ):  # not changed by others
            sys.setswitchinterval(usual_s)
            if _running:  # an operation began meanwhile
                _shorten()


def shortened(run: Callable[P, T]) -> Callable[P, T]:
    """``run``, between ``begin`` and ``end``."""

    def hurry(*args: P.args, **kwargs: P.kwargs) -> T:
        begin()
        try:
            return run(*args, **kwargs)
        finally:
            end()

    return hurry


def _shorten() -> None:
    global _usual_s
    interval_s = sys.getswitchinterval()
    if _short_s and interval_s > _short_s + ROUNDING_S:
        sys.setswitchinterval(_short_s)
        _usual_s = interval_s  # only now: end() restores what it finds here
