"""Folders in which workers of this machine log numbers, by job.

``ringleader run`` makes ``numbers/JOB/PID`` in the directory of this machine's agents,
PID being its own, and removes it at its end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringleader.node.protocol.agent_config import make_run_directory, run_directory

_FOLDER = "numbers"
MAX_FOLDERS = 64


@contextmanager
def make_number_folder(home: Path, job: str) -> Iterator[Path]:
    """Make the folder of the launcher that calls this; remove it at the end.

    Workers that were forked inside leave the context, too, and must not remove it.
    """
    top, owner = make_run_directory(home) / _FOLDER, os.getpid()
    path = top / job / str(owner)
    _remove_dead(top)
    shutil.rmtree(path, ignore_errors=True)  # of an earlier process with this id
    path.mkdir(mode=0o700, parents=True)
    try:
        yield path
    finally:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process runs the same job
                path.parent.rmdir()


def find_number_folders(home: Path) -> dict[str, list[Path]]:
    """Return the folders of the jobs that run on this machine."""
    found: dict[str, list[Path]] = {}
    for path in sorted((run_directory(home) / _FOLDER).glob("*/*"))[:MAX_FOLDERS]:
        if _is_alive(path.name):
            found.setdefault(path.parent.name, []).append(path)
    return found


def _remove_dead(top: Path) -> None:
    for path in top.glob("*/*"):
        if not _is_alive(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(text: str) -> bool:
    if not text.isdecimal():
        return False
    try:
        os.kill(int(text), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # a process of another user in a shared home
    return True
