"""An append-only file of accepted updates, written before they are acknowledged.

A record is a header (the lengths of a small JSON object and of a body, their checksum,
and a checksum of the header itself), the object and the body. A crash can leave the
last record incomplete. It was never acknowledged: reading stops there, and writing goes
on from there. For the same reason nothing is appended after a write that failed. A
record whose bytes are all there but do not match its checksums is damaged, and reading
it raises. A write that returned survives the death of the process; only a power cut can
lose what the system had not yet written to the disk.

A file beside the journal says how long it is after each whole record. So a journal that
lost its end later, by a power cut or a copy that broke off, is told from one whose last
record was never complete, also if it ends between two records.
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
_END = struct.Struct("<QI")
"""A length and its checksum."""


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
        self._end_file: FileIO | None = None

    def begin(self) -> None:
        """Open the file and discard what it holds."""
        self._open(0)

    def resume(self, end: int) -> None:
        """Open or create the file, and continue at ``end`` of its last good record."""
        self._open(end)

    def _open(self, end: int) -> None:
        try:
            self._end_file = open(end_path(self.path), "wb", buffering=0)  # noqa: SIM115
            self._note_end(end)  # before: a crash here must not look like a loss
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self._file.truncate(end)
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc

    def _note_end(self, end: int) -> None:
        assert self._end_file is not None
        self._end_file.seek(0)
        self._end_file.write(_pack_end(end))
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
            self._note_end(self.num_bytes + len(head) + len(text) + len(body))
        except OSError as exc:
            self.close()
            raise _unwritable(self.path, exc) from exc

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Sync the file, so that its records survive a power cut as well."""
        for file in (self._file, self._end_file):
            if file is not None:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._end_file):
            if file is not None:
                file.close()
        self._file = self._end_file = None


def end_path(path: Path) -> Path:
    """Return the file that says how long the journal at ``path`` is."""
    return path.with_name(f"{path.name}.end")


def read(path: Path) -> Iterator[Entry]:
    """Iterate over the complete records; none if the file does not exist.

    Raises DamagedFile after the last good record if what follows is damaged, or if the
    end is missing.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        end = 0
        while (found := _next(file, size, path)) is not None:
            end = found.end
            yield found
    noted = _noted_end(path)
    if noted is not None and end < noted:
        text = f"it ends at byte {size}, and was {noted} bytes long"
        raise DamagedFile(path, f"{text}: {noted - end} bytes of records are missing")


def doubt(path: Path, end: int) -> str:
    """Return what cannot be known of a journal whose last whole record ends at ``end``.

    That is only so without the file that says its length, as in older releases.
    """
    size = path.stat().st_size
    if size == end or _noted_end(path) is not None:
        return ""
    return (
        f"{path} ends in the middle of a record, {size - end} bytes after the last "
        "whole one. If the server ended while it wrote, that was never acknowledged; "
        "if the file was cut later"
    )


def _noted_end(path: Path) -> int | None:
    try:
        found = end_path(path).read_bytes()
    except OSError:
        return None
    if len(found) != _END.size or found != _pack_end(_END.unpack(found)[0]):
        return None
    return int(_END.unpack(found)[0])


def _pack_end(end: int) -> bytes:
    return _END.pack(end, zlib.crc32(end.to_bytes(8, "little")))


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
