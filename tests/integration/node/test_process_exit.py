"""How ``ringleader run`` ends its own process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, gc, sys
from ringleader.node.launch.process_exit import leave

class Kept:
    def __del__(self):
        sys.stderr.write("torn down")

kept = Kept()
kept.itself = kept
atexit.register(print, "handler")
print("flushed")
leave(3)
"""


def test_it_runs_exit_handlers_and_flushes_but_tears_nothing_down() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3
    assert (done.stdout, done.stderr) == ("flushed\nhandler\n", "")
