"""Listing: the files under a path, with the SHA-256 of each of their chunks.

It comes from another machine, so decoding checks it: names stay below the folder they
are written to, and sizes agree with the number of hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringleader.data.file_names import check_collisions, check_name
from ringleader.decoding import from_json
from ringleader.errors import ConfigError

CHUNK_BYTES = 4 << 20
"""A chunk is held in memory by sender and receiver. With smaller ones, a listing of
100 GB would have more than 25,000 hashes; larger ones repeat more after a break."""

MAX_FILES = 1_000_000
_HASHING_THREADS = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LITTER = {".DS_Store", "Thumbs.db", "desktop.ini"}
"""Files that file managers leave in folders; they are not part of the data."""


class ListedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: its name below the root, with ``/``, and the SHA-256 of its chunks."""

    name: str
    num_bytes: int
    sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file that travel and are verified together."""

    file: str
    begin: int
    num_bytes: int
    sha256: str

    def is_intact(self, data: bytes) -> bool:
        """Return whether these are the bytes of this chunk."""
        return hashlib.sha256(data).hexdigest() == self.sha256


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a folder, or one file."""

    is_file: bool
    files: tuple[ListedFile, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents: equal listings have equal digests."""
        return hashlib.sha256(encode(self)).hexdigest()

    def chunks(self) -> list[Chunk]:
        """Return the chunks of all files, in order."""
        return [
            Chunk(file.name, begin, min(CHUNK_BYTES, file.num_bytes - begin), digest)
            for file in self.files
            for begin, digest in zip(_begins(file.num_bytes), file.sha256, strict=True)
        ]

    def path_of(self, root: Path, file: str) -> Path:
        """Return where a file lies if ``root`` is the path that was listed."""
        return root if self.is_file else root / file


def encode(listing: Listing) -> bytes:
    """Return the listing as JSON."""
    return msgspec.json.encode(listing)


def decode(data: bytes) -> Listing:
    """Return the listing; ValueError if it is not one, or if a name is not allowed."""
    try:
        found = from_json(data, Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"not a list of files ({exc})"[:200]) from None
    if len(found.files) > MAX_FILES or (found.is_file and len(found.files) != 1):
        raise ValueError(f"a list of {len(found.files)} files")
    for file in found.files:
        _check_file(file)
    check_collisions([file.name for file in found.files])
    return found


def list_files(path: Path, names: Sequence[str] | None = None) -> Listing:
    """Read and hash all files under ``path``, or those with these names below it.

    Raises ConfigError if there is something that cannot be sent: a link that leads out
    of the folder, a pipe, a name that another system does not allow.
    """
    is_file = path.is_file()
    if names is None:
        names = [path.name] if is_file else sorted(_walk(path))
    if not names:
        raise ConfigError(f"{path}: there are no files in it")
    for name in names:
        try:
            check_name(name)
        except ValueError as exc:
            raise ConfigError(f"{path}: cannot be sent: {exc}") from None
    try:
        with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing frees the GIL
            files = [_hash_file(path if is_file else path / n, n, pool) for n in names]
    except OSError as exc:
        raise ConfigError(f"{exc.filename or path}: {exc.strerror}") from exc
    try:
        check_collisions(names)
    except ValueError as exc:
        raise ConfigError(f"{path}: cannot be sent: {exc}") from None
    return Listing(is_file, tuple(files))


def read_chunk(path: Path, chunk: Chunk) -> bytes | None:
    """Return the bytes of a chunk of the file ``path``; None if it has fewer."""
    try:
        with open(path, "rb") as file:
            file.seek(chunk.begin)
            data = file.read(chunk.num_bytes)
    except OSError:
        return None
    return data if len(data) == chunk.num_bytes else None


def _hash_file(path: Path, name: str, pool: ThreadPoolExecutor) -> ListedFile:
    num_bytes = path.stat().st_size

    def digest(begin: int) -> str:
        with open(path, "rb") as file:
            file.seek(begin)
            return hashlib.sha256(file.read(CHUNK_BYTES)).hexdigest()

    return ListedFile(name, num_bytes, tuple(pool.map(digest, _begins(num_bytes))))


def _walk(root: Path) -> Iterator[str]:
    """Yield the names of all files below ``root``."""

    def fail(exc: OSError) -> None:
        raise ConfigError(f"{exc.filename}: cannot be read: {exc.strerror}")

    inside = root.resolve()
    for folder, folders, files in os.walk(root, onerror=fail):
        for name in folders:
            if os.path.islink(found := os.path.join(folder, name)):
                text = "it is a link to a folder; put the folder itself there"
                raise ConfigError(f"{found}: cannot be sent: {text}")
        for name in files:
            if name not in _LITTER:
                found = os.path.join(folder, name)
                _check_kind(Path(found), inside)
                yield Path(os.path.relpath(found, root)).as_posix()


def _check_kind(path: Path, inside: Path) -> None:
    """Raise ConfigError unless this is a plain file in the folder ``inside``."""
    if not path.resolve().is_relative_to(inside):
        text = f"it is a link to a file outside of {inside}"
        raise ConfigError(f"{path}: cannot be sent: {text}")
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    if not is_regular:
        raise ConfigError(f"{path}: cannot be sent: it is not a plain file")


def _begins(num_bytes: int) -> range:
    return range(0, num_bytes, CHUNK_BYTES)


def _check_file(file: ListedFile) -> None:
    check_name(file.name)
    if file.num_bytes < 0 or -(-file.num_bytes // CHUNK_BYTES) != len(file.sha256):
        raise ValueError(f"{file.name}: its size and its hashes disagree")
    if not all(_SHA256.fullmatch(digest) for digest in file.sha256):
        raise ValueError(f"{file.name}: not a SHA-256")
