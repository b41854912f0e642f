"""An append-only file of accepted updates, written before they are acknowledged.

A record is a header (the lengths of a small JSON object and of a body, their checksum,
and a checksum of the header itself), the object and the body. A crash can leave the
last record incomplete. It was never acknowledged: reading stops there, and writing goes
on from there. For the same reason nothing is appended after a write that failed. A
record whose bytes are all there but do not match its checksums is damaged, and reading
it raises. A write that returned survives the death of the process; only a power cut can
lose what the system had not yet written to the disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from ringleader.errors import ConfigError
from ringleader.paramserver.server.storage.checked_files import DamagedFile
from ringleader.paramserver.server.storage.journal_records import JournalRecord

_HEAD = struct.Struct("<4sIQI")
_HEAD_CHECK = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _HEAD_CHECK.size
_MAGIC = b"RLJ2"


class Entry(NamedTuple):
    """A record with its body, and the offset in the file where it ends."""

    record: JournalRecord
    body: bytes
    end: int


_DECODER: msgspec.json.Decoder[JournalRecord] = msgspec.json.Decoder(JournalRecord)


class Journal:
    """A journal that is appended to. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._file: FileIO | None = None

    def begin(self) -> None:
        """Open the file and discard what it holds."""
        self._open(0)

    def resume(self, end: int) -> None:
        """Open or create the file, and continue at ``end`` of its last good record."""
        self._open(end)

    def _open(self, end: int) -> None:
        try:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._file.truncate(end)
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc
        self.num_bytes = end

    def append(
        self, record: JournalRecord, body: bytes | bytearray | memoryview = b""
    ) -> None:
        """Write one record. Once this returns, killing the process does not lose it."""
        if self._file is None:
            raise ConfigError(
                f"{self.path}: a write failed before; nothing is appended after it"
            )
        text = msgspec.json.encode(record)
        check = zlib.crc32(body, zlib.crc32(text))
        head = _pack_head(len(text), len(body), check)
        try:
            self._write(head + text)
            self._write(body)
        except OSError as exc:
            self.close()
            raise _unwritable(self.path, exc) from exc
        self.num_bytes += len(head) + len(text) + len(body)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Sync the file, so that its records survive a power cut as well."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read(path: Path) -> Iterator[Entry]:
    """Iterate over the complete records; none if the file does not exist.

    Raises DamagedFile after the last good record if what follows is damaged.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        while (found := _next(file, size, path)) is not None:
            yield found


def _next(file: BinaryIO, size: int, path: Path) -> Entry | None:
    """Read the next record; None at the end, or if a crash left it incomplete."""
    begin = file.tell()
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    _, record_bytes, body_bytes, check = _HEAD.unpack(head[: _HEAD.size])
    if head != _pack_head(record_bytes, body_bytes, check):
        raise _damaged(path, begin, size)
    if record_bytes + body_bytes > size - file.tell():
        return None
    text, body = file.read(record_bytes), file.read(body_bytes)
    if zlib.crc32(body, zlib.crc32(text)) != check:
        raise _damaged(path, begin, size)
    return Entry(_DECODER.decode(text), body, file.tell())


def _pack_head(record_bytes: int, body_bytes: int, check: int) -> bytes:
    head = _HEAD.pack(_MAGIC, record_bytes, body_bytes, check)
    return head + _HEAD_CHECK.pack(zlib.crc32(head))


def _damaged(path: Path, begin: int, size: int) -> DamagedFile:
    text = f"the record at byte {begin} of {size} does not match its checksum"
    return DamagedFile(path, text)


def _unwritable(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be written: {exc.strerror}")
