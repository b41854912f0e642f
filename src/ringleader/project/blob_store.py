"""``BlobStore``: chunks of files by their SHA-256, one folder for each user.

A chunk is there completely or not at all: it is written under another name and renamed.
Many processes may use one store. What was used in the last hour is never evicted, so a
job that is being prepared finds what it has stored; a job that runs has its own copies.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ringleader.errors import ConfigError
from ringleader.project.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES

MAX_STORE_BYTES = 8 << 30
"""Sixteen projects of the largest size; older chunks are evicted."""
IN_USE_S = 3600.0
"""Preparing a job takes minutes at most."""

_TEMPORARY = ".new-"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class BlobStore:
    """The chunks below ``folder``. Functions block: call them outside an event loop."""

    folder: Path

    def has(self, digest: str) -> bool:
        """Return whether a chunk is here, and keep it for the next hour."""
        try:
            os.utime(self._path(digest))
        except FileNotFoundError:
            return False
        return True

    def put(self, digest: str, data: bytes | memoryview) -> bool:
        """Store a chunk; return False, and store nothing, if it is not intact.

        Raises ConfigError if it cannot be written.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        if self.has(digest):
            return True
        path = self._path(digest)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(temporary, "xb", opener=_open_private) as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as exc:
            with suppress(OSError):
                temporary.unlink()
            raise disk_error(path, exc) from exc
        return True

    def get(self, digest: str) -> bytes:
        """Return a chunk; raises ConfigError if it is missing or damaged."""
        path = self._path(digest)
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            text = "a part of the project is missing; start the job again"
            raise ConfigError(f"{path}: {text}") from None
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
        if hashlib.sha256(data).hexdigest() != digest:
            with suppress(OSError):  # so that the next job brings it again
                path.unlink()
            text = "it was damaged on this disk and is removed; start the job again"
            raise ConfigError(f"{path}: {text}")
        return data

    def copy_into(self, digest: str, out: BinaryIO) -> None:
        """Append a chunk to an unbuffered file; raises ConfigError as ``get`` does.

        Where the file system has clones (btrfs, XFS), both share one copy on the disk
        until one of them is written. A hard link would not do: a program that writes
        into its file would write into the store.
        """
        data, cloned = self.get(digest), 0
        if hasattr(os, "copy_file_range"):
            with suppress(OSError), open(self._path(digest), "rb") as file:
                cloned = os.copy_file_range(file.fileno(), out.fileno(), len(data))
        left = memoryview(data)[cloned:]
        while left:
            left = left[out.write(left) :]

    def check_room(self, num_bytes: int) -> None:
        """Raise ConfigError if the disk has no room for this many bytes."""
        check_room(self.folder, num_bytes)

    def evict(self, max_bytes: int | None = None, in_use_s: float = IN_USE_S) -> int:
        """Delete the longest unused chunks beyond ``max_bytes``; return their bytes.

        Those of the last ``in_use_s`` stay: jobs that are being prepared need them.

        By default that is 8 GB, and a tenth of a small disk. Also deletes what crashed
        processes have left half written.
        """
        if max_bytes is None:
            max_bytes = share_of_disk(self.folder, MAX_STORE_BYTES, 10)
        unused_before_s = time.time() - in_use_s
        found: list[tuple[float, int, Path]] = []
        for path in self._files():
            with suppress(OSError):  # another process has evicted it
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        excess = sum(size for _, size, _ in found) - max_bytes
        freed = 0
        for used_s, size, path in sorted(found):
            if used_s > unused_before_s:
                break
            if freed < excess or path.name.startswith(_TEMPORARY):
                with suppress(OSError):
                    path.unlink()
                    freed += size
        return freed

    def _files(self) -> Iterator[Path]:
        yield from self.folder.glob("??/*")

    def _path(self, digest: str) -> Path:
        assert _DIGEST.fullmatch(digest), digest
        return self.folder / digest[:2] / digest


def split_chunks(data: bytes) -> list[memoryview]:
    """Return the chunks of a file's content."""
    view = memoryview(data)
    return [view[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def size_text(num_bytes: int) -> str:
    """Return a size as people read it: ``2.1 GB``."""
    size = float(num_bytes)
    if num_bytes == 1:
        return "1 byte"
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def share_of_disk(folder: Path, most_bytes: int, part: int) -> int:
    """Return ``most_bytes``, or one of ``part`` parts of the disk if that is less."""
    with suppress(OSError):
        return min(most_bytes, shutil.disk_usage(_existing(folder)).total // part)
    return most_bytes


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise ConfigError if the disk of ``folder`` has no room for so many bytes."""
    try:
        free = shutil.disk_usage(_existing(folder)).free
    except OSError as exc:
        raise disk_error(folder, exc) from exc
    if num_bytes > free:
        text = f"{size_text(num_bytes)} are needed, {size_text(free)} are free"
        raise ConfigError(f"the disk of {folder} is full: {text}; make room")


def disk_error(path: Path, exc: OSError) -> ConfigError:
    """Translate an error of writing ``path``; a full disk is named as such."""
    if exc.errno not in _NO_SPACE:
        return ConfigError(f"{path}: cannot be written: {exc.strerror or exc}")
    return ConfigError(f"the disk of {path.parent} is full; make room")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _existing(path: Path) -> Path:
    """Return the deepest folder of ``path`` that exists."""
    return next(each for each in (path, *path.parents) if each.is_dir())
