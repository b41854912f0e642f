"""CachedFiles: a verified copy of listed files in the cache of this machine.

The folder is named after the digest of the listing, so equal data is kept once and
changed data gets another folder. While chunks are missing it has a temporary name; what
has arrived stays there after a crash, and only the rest is fetched again.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringleader.data.listing import Chunk, Listing, read_chunk
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.identity.storage.home import FileLock, Home
from ringleader.identity.storage.private_file import sync_directory

FOLDER = "files"
MAX_BYTES = 200 * 10**9
"""Largest data that is fetched unless the caller allows more."""

_TEMPORARY = ".new-"
_LOCK_POLL_S = 0.1
_READING_THREADS = 4


class CachedFiles:
    """The copy of one listing. One process at a time changes it, between ``open`` and
    ``close``."""

    def __init__(self, cache: Path, listing: Listing) -> None:
        self.listing = listing
        self.chunks = listing.chunks()
        self._name = listing.digest[:32]
        self._home = Home(cache / FOLDER)
        self._final = self._home.path / self._name
        self._lock: FileLock | None = None

    @property
    def path(self) -> Path:
        """Where the complete data is: a folder, or the file if one file was listed."""
        only = self.listing.files[0].name if self.listing.is_file else ""
        return self._final / only

    def open(self, deadline: Deadline) -> list[int]:
        """Take hold of the copy; return the numbers of missing or damaged chunks.

        Raises ConfigError if another process still changes it at the deadline.
        """
        lock = self._home.path / f"{self._name}.lock"
        try:
            self._home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.touch(mode=0o600)
        except OSError as exc:
            raise _unwritable(lock.parent, exc) from exc
        while (held := self._home.try_lock(lock.name)) is None:
            if deadline.is_over():
                text = f"{self._final}: another process is fetching the same data"
                raise ConfigError(f"{text}; try again when it is done")
            time.sleep(_LOCK_POLL_S)
        self._lock = held
        with ThreadPoolExecutor(_READING_THREADS) as pool:  # hashing frees the GIL
            intact = list(pool.map(self._is_intact, self.chunks))
        return [number for number, is_there in enumerate(intact) if not is_there]

    def make_room(self, missing: list[int], max_bytes: int) -> None:
        """Give all files their sizes, with holes for what is missing.

        Raises ConfigError if the data is larger than allowed or than the disk.
        """
        total = self.listing.num_bytes
        if total > max_bytes:
            text = f"{total:,} bytes, more than max_bytes={max_bytes:,} allows"
            raise ConfigError(f"the data has {text}")
        needed = sum(self.chunks[number].num_bytes for number in missing)
        folder = self._folder()
        try:
            free = shutil.disk_usage(self._home.path).free
            if needed > free:
                text = f"{needed:,} bytes are missing, but {free:,} are free"
                raise ConfigError(
                    f"{folder}: {text}; make room, or set RINGLEADER_CACHE"
                )
            for file in self.listing.files:
                path = folder / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "ab", opener=_open_private) as opened:
                    if opened.tell() != file.num_bytes:
                        opened.truncate(file.num_bytes)
        except OSError as exc:
            raise _unwritable(folder, exc) from exc

    def write(self, number: int, data: bytes) -> bool:
        """Store a chunk; return False, and store nothing, if it is not intact.

        Raises ConfigError if it cannot be written.
        """
        chunk = self.chunks[number]
        if not chunk.is_intact(data):
            return False
        path = self._folder() / chunk.file
        try:
            with open(path, "r+b", opener=_open_private) as file:
                file.seek(chunk.begin)
                file.write(data)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        return True

    def read(self, number: int) -> bytes | None:
        """Return the bytes of a chunk; None if they are not there."""
        chunk = self.chunks[number]
        return read_chunk(self._folder() / chunk.file, chunk)

    def publish(self) -> None:
        """Give the complete copy its name, after all bytes are on the disk."""
        folder = self._folder()
        try:
            for file in self.listing.files:
                with open(folder / file.name, "rb") as opened:
                    os.fsync(opened.fileno())
            if folder != self._final:
                os.replace(folder, self._final)
            sync_directory(self._final.parent)
        except OSError as exc:
            raise _unwritable(folder, exc) from exc

    def close(self) -> None:
        """Let go of the copy."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _folder(self) -> Path:
        """Return where the files are: under the final name once they were complete."""
        if self._final.is_dir():
            return self._final
        return self._final.with_name(f"{_TEMPORARY}{self._name}")

    def _is_intact(self, chunk: Chunk) -> bool:
        data = read_chunk(self._folder() / chunk.file, chunk)
        return data is not None and chunk.is_intact(data)


def _open_private(path: str, flags: int) -> int:
    """Open a file of the cache; a link in its place is refused."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _unwritable(path: Path, exc: OSError) -> ConfigError:
    reason = exc.strerror or str(exc)
    where = exc.filename or path
    return ConfigError(f"{where}: cannot be written: {reason}")
