"""``leave``: ends a process that has imported torch without tearing it down."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process now: exit handlers run, and what was printed is written.

    An interpreter that ends as usual first collects every object of torch, which takes
    a second of a core and helps nobody.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(status)
