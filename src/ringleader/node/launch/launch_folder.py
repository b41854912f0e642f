"""``launch_folder``: a private folder of one launcher, for as long as it lives.

A launcher that is killed leaves its folder behind; the next one removes it. The lock of
a folder tells whether its launcher lives: the system releases it when the process ends.
A process id would not do, as containers that share a folder do not share these.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringleader.identity.storage.file_lock import try_lock

_PREFIX = "ringleader-run-"
_LOCK = "lock"


@contextmanager
def launch_folder() -> Iterator[Path]:
    """Make a folder and remove it at the end; remove those that others left behind."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        lock = _hold(folder)
        try:
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(folder: Path) -> int:
    """Return the open lock. It gets its name when it is held: no other takes it before.

    Where a file cannot be locked, or not be renamed while it is open (Windows), it gets
    no name, and nobody ever removes the folder of a launcher that was killed.
    """
    unnamed = folder / "unnamed"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    with suppress(OSError):
        try_lock(descriptor)
        unnamed.rename(folder / _LOCK)
    return descriptor


def _remove_abandoned(within: Path) -> None:
    for folder in within.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it has no lock yet, or another launcher removes it
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    found = folder.lstat()
    is_ours = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
    if not (is_ours and stat.S_ISDIR(found.st_mode)):
        return False
    descriptor = os.open(folder / _LOCK, os.O_RDWR)
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)
