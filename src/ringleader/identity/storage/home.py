"""Home is the private directory of a user's keys and secrets, ``~/.ringleader``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.file_lock import try_lock, unlock
from ringleader.identity.storage.private_file import (
    TEMPORARY,
    check_private,
    read_private,
    sync_directory,
    write_private,
)

LOCK = "lock"
"""The file whose lock is held during changes. It is never removed: otherwise two
processes could hold the locks of two files of that name."""

_LOCK_WAIT_S = 60.0
"""Changes take milliseconds, on a busy machine seconds; a longer wait means that a
process is stuck."""

_POLL_S = 0.02


@dataclass(slots=True)
class FileLock:
    """An open file whose lock is ours until ``close``."""

    descriptor: int

    def close(self) -> None:
        """Release the lock."""
        if self.descriptor >= 0:
            unlock(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True, slots=True)
class Home:
    """A directory that only its owner may enter. Safe to use from many processes."""

    path: Path

    def read(self, name: str, limit_bytes: int) -> Secret[bytes] | None:
        """Return the content of a file here; None if there is none."""
        self._check()
        return read_private(self.path / name, limit_bytes)

    def names(self) -> list[str]:
        """Return the names of the files here."""
        self._check()
        return sorted(os.listdir(self.path)) if self.path.is_dir() else []

    def try_lock(self, name: str) -> FileLock | None:
        """Lock a file here; None while another process holds it."""
        return _try_lock(self.path / name, os.O_RDWR)

    @contextmanager
    def writing(self) -> Iterator[HomeWriter]:
        """Change files while no other process does; makes the directory if needed."""
        self._make()
        held = self._wait_for_lock()
        try:
            change = HomeWriter(self.path)
            change.sweep()
            yield change
        finally:
            held.close()

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(f"{self.path}: cannot be made: {exc.strerror}") from exc
        self._check()

    def _check(self) -> None:
        try:
            check_private(self.path, os.stat(self.path))
        except FileNotFoundError:
            return

    def _wait_for_lock(self) -> FileLock:
        path = self.path / LOCK
        deadline = Deadline.after(_LOCK_WAIT_S)
        while (held := _try_lock(path, os.O_RDWR | os.O_CREAT)) is None:
            if deadline.is_over():
                text = f"{path}: locked by another process for {_LOCK_WAIT_S:g} s"
                raise ConfigError(f"{text}; is a ringleader command stuck?")
            time.sleep(_POLL_S)
        return held


def _try_lock(path: Path, flags: int) -> FileLock | None:
    """Open and lock a file; None while another process holds it."""
    descriptor = -1
    try:
        descriptor = os.open(path, flags, 0o600)
        if try_lock(descriptor):
            return FileLock(descriptor)
    except OSError as exc:
        if descriptor >= 0:
            os.close(descriptor)
        raise ConfigError(f"{path}: cannot be locked: {exc.strerror}") from exc
    os.close(descriptor)
    return None


@dataclass(frozen=True, slots=True)
class HomeWriter:
    """Changes files of a home while its lock is held."""

    path: Path

    def write(self, name: str, content: Secret[bytes]) -> None:
        """Make or replace a file atomically."""
        write_private(self.path / name, content)

    def remove(self, name: str) -> None:
        """Delete a file; it may be gone already."""
        path = self.path / name
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be deleted: {exc.strerror}") from exc
        sync_directory(self.path)

    def sweep(self) -> None:
        """Delete files that crashed processes left half written; they may hold
        secrets."""
        for left in self.path.glob(f"{TEMPORARY}*"):
            left.unlink(missing_ok=True)
