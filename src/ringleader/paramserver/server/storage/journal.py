"""An append-only file of accepted updates, written before they are acknowledged.

A record is a header (the lengths of a small JSON object and of a body, a checksum), the
object and the body. A record that a crash left incomplete was never acknowledged:
reading stops there, and writing goes on from there. For the same reason nothing is
appended after a write that failed. A write that returned survives the death of the
process; only a power cut can lose what the system had not yet written to the disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from ringleader.errors import ConfigError
from ringleader.paramserver.server.storage.journal_records import JournalRecord

_HEAD = struct.Struct("<4sIQI")
_MAGIC = b"RLJ1"
_MAX_RECORD_BYTES = 1 << 16

Entry = tuple[JournalRecord, bytes]
"""A record and its body."""

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

    def resume(self) -> None:
        """Open or create the file, and continue after the last complete record."""
        self._open(max((end for _, end in _entries(self.path)), default=0))

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
        head = _HEAD.pack(_MAGIC, len(text), len(body), check)
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
    """Iterate over the complete records; none if the file does not exist."""
    return (entry for entry, _ in _entries(path))


def _entries(path: Path) -> Iterator[tuple[Entry, int]]:
    """Iterate over the complete records and the offsets where they end."""
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        while (found := _next(file, size)) is not None:
            yield found, file.tell()


def _next(file: BinaryIO, size: int) -> Entry | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, record_bytes, body_bytes, check = _HEAD.unpack(head)
    left = size - file.tell()
    if (
        magic != _MAGIC
        or record_bytes > _MAX_RECORD_BYTES
        or record_bytes + body_bytes > left
    ):
        return None
    text, body = file.read(record_bytes), file.read(body_bytes)
    if zlib.crc32(body, zlib.crc32(text)) != check:
        return None
    return _DECODER.decode(text), body


def _unwritable(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be written: {exc.strerror}")
