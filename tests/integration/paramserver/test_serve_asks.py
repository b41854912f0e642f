"""``ringleader serve`` without its arguments, in a terminal and in a pipe."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal")

SERVE = "from ringleader.cli.main import app; app()"
LIMIT_S = 300.0


def test_at_a_terminal_serve_asks_for_what_is_missing(tmp_path: Path) -> None:
    """It trains what was typed; an answer that is none is refused by name."""
    import pty

    ours, theirs = pty.openpty()
    words = ["serve", "--rounds", "1", "--port", "0", "--open"]
    command = subprocess.Popen(
        [sys.executable, "-c", SERVE, *words],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    shown = ""

    def wait_for(text: str) -> None:
        nonlocal shown
        until_s = time.monotonic() + LIMIT_S
        while text not in shown:
            assert time.monotonic() < until_s, shown
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 1 << 16).decode()

    try:
        wait_for("Task (digits, mnist, chars:FILE, images:DIR or a .py file): ")
        os.write(ours, b"digits\n")
        wait_for("How many workers? ")
        os.write(ours, b"0\n")
        wait_for("--workers: '0' must be a whole number above 0")
        assert command.wait(LIMIT_S) == 2
    finally:
        command.kill()
        command.wait(LIMIT_S)
        os.close(ours)
        os.close(theirs)


def test_in_a_pipe_serve_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, "serve"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    known = "digits, mnist, chars:FILE, images:DIR or a .py file"
    assert done.stderr == f"ringleader serve: TASK is missing: {known}\n"
