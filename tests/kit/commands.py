"""Commands of ringleader, each a process as users run them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.kit.warm_python import WarmProcess, WarmPython

Run = Callable[..., AbstractContextManager[WarmProcess]]
"""Starts a command with flags; the process is killed when the block ends."""


def command(name: str, *flags: str | Path) -> list[str]:
    """Return a command as arguments of Python."""
    code = f"import typer; from ringleader.cli.{name} import {name}; typer.run({name})"
    return ["-c", code, *map(str, flags)]


def command_runner(warm_python: WarmPython) -> Run:
    """Return what starts commands."""

    @contextmanager
    def run(name: str, *flags: str | Path) -> Iterator[WarmProcess]:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = warm_python.popen(*command(name, *flags), env=env)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    return run


def link_file(server: WarmProcess, out: Path) -> Path:
    """Wait for the file with the join link, and return its path."""
    path, deadline_s = out / "join-link", time.monotonic() + 300
    while not (path.is_file() and path.stat().st_size):
        assert server.poll() is None, server.communicate()[0]
        assert time.monotonic() < deadline_s, "the server does not start"
        time.sleep(0.02)
    return path


def output_of(process: WarmProcess, within_s: float = 400) -> str:
    """Return the output of a process, and check that it succeeded."""
    said, _ = process.communicate(timeout=within_s)
    assert process.returncode == 0, said
    return said
