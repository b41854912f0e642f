"""Files by which workers tell their values to the agent of their machine.

A worker writes ``PID.json`` into a folder of its user and machine, at a low rate;
readers and new workers drop what is stale. A file of a process that was killed needs no
other cleaning, and a group needs neither a socket nor a decoder for this.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.metrics.process_values import MAX_ENCODED, ProcessValues
from ringleader.metrics.snapshot import Snapshot

EVERY_S = 2.0
"""Time between two files of a worker: fresh for Prometheus, which asks every 15 s as a
rule, and 1 ms of work each."""
STALE_S = 60.0
"""A file this old belongs to a worker that ended; its last values were seen by then."""
MAX_FILES = 1024
_NAME = re.compile(r"[0-9]{1,10}\.json")


def write_file(folder: Path, rank: str, snapshot: Snapshot) -> None:
    """Publish the values of this process; OSError if that is not possible."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    labels = {"process": "worker", "rank": rank, "pid": str(os.getpid())}
    path = folder / f"{os.getpid()}.json"
    if not path.exists():
        _remove_stale(folder)  # nobody may ever read here
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(ProcessValues(labels, snapshot).encode())
    fresh.replace(path)


def read_files(folder: Path) -> list[ProcessValues]:
    """The values of all workers that published lately; removes what is stale.

    A file that is not valid is left out: whoever can write there is this user.
    """
    found: list[ProcessValues] = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir())[:MAX_FILES]:
            with contextlib.suppress(OSError, ConfigError):
                if values := _read(path):
                    found.append(values)
    return found


def _remove_stale(folder: Path) -> None:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another worker was first
            if _is_stale(path):
                path.unlink()


def _is_stale(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > STALE_S


def _read(path: Path) -> ProcessValues | None:
    if _is_stale(path):
        path.unlink()
        return None
    if not _NAME.fullmatch(path.name):
        return None
    with path.open("rb") as file:
        return ProcessValues.decode(file.read(MAX_ENCODED + 1))
