"""Files with checksums: a damaged file is recognised before anything uses it.

Tensors are in the safetensors format; the metadata in its header holds the SHA-256 of
the whole file, computed with zeros in that place. A JSON file is an object of the
SHA-256 and the content.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorData

_SHA256 = "sha256"
_BLANK = "0" * 64


class DamagedFile(ConfigError):
    """A file is not what was written to it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.path = path
        self.why = why


class _CheckedJson(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str
    content: msgspec.Raw


def write_tensors(path: Path, parts: Sequence[TensorData]) -> None:
    """Write tensors to a new file, and sync it."""
    pieces = tensor_file.write(parts, {_SHA256: _BLANK})
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    pieces[1] = _replaced(pieces[1], _BLANK, digest.hexdigest())
    _write(path, pieces)


def read_tensors(path: Path, *, is_foreign: bool = False) -> bytes:
    """Return a file of tensors; DamagedFile if its checksum does not match.

    A foreign file, such as one of another program, may have no checksum.
    """
    file = _read(path)
    try:
        metadata, data = tensor_file.read_metadata(memoryview(file))
    except ValueError as exc:
        raise DamagedFile(path, str(exc)) from None
    expected = metadata.get(_SHA256, "")
    if is_foreign and not expected:
        return file
    head = memoryview(file)[: len(file) - len(data)]
    _check(path, expected, _replaced(head, expected, _BLANK), data)
    return file


def write_json(path: Path, content: bytes) -> None:
    """Write encoded JSON to a new file, and sync it."""
    digest = hashlib.sha256(content).hexdigest()
    checked = _CheckedJson(sha256=digest, content=msgspec.Raw(content))
    _write(path, [msgspec.json.encode(checked)])


def read_json(path: Path) -> bytes:
    """Return the JSON in a file; DamagedFile if its checksum does not match."""
    try:
        found = from_json(_read(path), _CheckedJson)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DamagedFile(path, f"it is not JSON with a checksum ({exc})") from None
    content = bytes(found.content)
    _check(path, found.sha256, content)
    return content


def _check(path: Path, expected: str, *pieces: bytes | memoryview) -> None:
    if not expected:
        raise DamagedFile(path, "it has no checksum")
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != expected:
        raise DamagedFile(path, "its checksum does not match its content")


def _replaced(head: bytes | memoryview, old: str, new: str) -> bytes:
    return bytes(head).replace(old.encode(), new.encode(), 1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise DamagedFile(path, f"it cannot be read: {exc.strerror}") from exc


def _write(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    with open(path, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
