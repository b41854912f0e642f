"""Files that only their owner may read, written atomically.

Windows has no modes; a user's profile is closed to other users by inheritance there, so
nothing is checked.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret

TEMPORARY = ".new-"
"""Prefix of a file that is still being written; a crash leaves it, nobody reads it."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_private(path: Path, content: Secret[bytes]) -> None:
    """Replace a file atomically: after a crash it is the old one or the new one."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content.reveal())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink()
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    sync_directory(path.parent)


def read_private(path: Path, limit_bytes: int) -> Secret[bytes] | None:
    """Return the content of a private file; None if there is none.

    Raises ConfigError if other users could have read it. The open file is checked, so
    nobody can exchange it in between.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    try:
        found = os.fstat(descriptor)
        check_private(path, found)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit_bytes:
            raise ConfigError(f"{path}: not a file of at most {limit_bytes} bytes")
        return Secret(os.read(descriptor, limit_bytes))
    finally:
        os.close(descriptor)


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError if another user owns the file, or may read or write it."""
    if sys.platform == "win32":
        return
    if found.st_uid != os.geteuid():
        text = f"{path}: belongs to user {found.st_uid}, and you are {os.geteuid()}"
        raise ConfigError(f"{text}; be that user, or set RINGLEADER_HOME")
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS:
        wanted = "700" if stat.S_ISDIR(found.st_mode) else "600"
        text = f"{path}: other users can access it (mode {mode:o})"
        raise ConfigError(f"{text}; run: chmod {wanted} {path}")


def sync_directory(path: Path) -> None:
    """Make a rename or a removal in ``path`` survive a power cut."""
    if sys.platform == "win32":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
