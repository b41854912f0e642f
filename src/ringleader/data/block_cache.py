"""BlockCache: blocks of a served dataset on the disk of this machine, bounded.

All processes of the machine that use the dataset share the folder. It exists as long as
the program; folders of programs that were killed are removed by the next one.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from ringleader.data.item_block import read_item
from ringleader.errors import ConfigError
from ringleader.identity.storage.home import LOCK, FileLock, Home

FOLDER = "items"
MAX_BYTES = 10 * 10**9
"""Disk space for blocks unless the caller allows another size."""

_LOOKS = 32
"""How often a process reads the folder while it adds as much as is allowed. Eight of
them exceed it by no more than the quarter that each leaves free for the others."""
_TEMPORARY = ".new-"


class BlockCache:
    """Blocks by number. Safe to use from many processes and threads."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._unseen_bytes = 0
        """Bytes that were added since this process read the folder. Others add, too."""

    def make(self) -> None:
        """Make the folder; ConfigError if that is impossible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            text = f"{self.folder}: cannot be made: {exc.strerror}"
            raise ConfigError(f"{text}; set RINGLEADER_CACHE") from exc

    def has(self, block: int) -> bool:
        """Return whether a block is here, intact or not."""
        return self._path(block).exists()

    def read_item(self, block: int, position: int) -> bytes | None:
        """Return an item of a block; None if it is missing or damaged."""
        try:
            with open(self._path(block), "rb") as file:

                def read(begin: int, num_bytes: int) -> bytes:
                    file.seek(begin)
                    return file.read(num_bytes)

                return read_item(read, position)
        except (OSError, ValueError):
            return None

    def add(self, block: int, data: bytes) -> None:
        """Store a block, and remove the oldest ones above the limit.

        Raises ConfigError if it cannot be written.
        """
        self._unseen_bytes += len(data)
        new = self.folder / f"{_TEMPORARY}{secrets.token_hex(6)}"
        try:
            if self._unseen_bytes > self._max_bytes // _LOOKS:
                self._remove_oldest(self._max_bytes - self._max_bytes // 4 - len(data))
            new.write_bytes(data)
            os.replace(new, self._path(block))
        except OSError as exc:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            text = f"{self.folder}: cannot be written: {exc.strerror}"
            raise ConfigError(f"{text}; make room, or set RINGLEADER_CACHE") from exc

    def remove(self, block: int) -> None:
        """Remove a block; it may be gone already."""
        with suppress(OSError):
            self._path(block).unlink(missing_ok=True)

    def _remove_oldest(self, keep_bytes: int) -> None:
        """If there are more than ``keep_bytes``, remove blocks down to half of that."""
        found: list[tuple[int, int, str]] = []
        for entry in os.scandir(self.folder):
            with suppress(OSError):
                state = entry.stat()
                if entry.name.isdigit():
                    found.append((state.st_mtime_ns, state.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total > keep_bytes:
            for _, size, path in sorted(found):
                if total <= keep_bytes // 2:
                    break
                with suppress(OSError):
                    os.unlink(path)
                total -= size
        self._unseen_bytes = 0

    def _path(self, block: int) -> Path:
        return self.folder / str(block)


class CacheFolder:
    """Keeps the folder of a cache while the program runs. One process per machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: FileLock | None = None
        self._pid = os.getpid()

    def open(self) -> None:
        """Remove the folders of programs that ended, and lock this one."""
        for other in self._folder.parent.iterdir():
            if other != self._folder and other.is_dir():
                _remove_unused(other)
        (self._folder / LOCK).touch(mode=0o600)
        self._lock = Home(self._folder).try_lock(LOCK)

    def close(self) -> None:
        """Remove the folder."""
        if self._lock is not None and os.getpid() == self._pid:
            self._lock.close()
            self._lock = None
            shutil.rmtree(self._folder, ignore_errors=True)


def _remove_unused(folder: Path) -> None:
    """Remove a folder unless its program runs."""
    with suppress(ConfigError):
        lock = Home(folder).try_lock(LOCK)
        if lock is not None:
            lock.close()
            shutil.rmtree(folder, ignore_errors=True)
