"""Writes the safetensors format without copies, and reads it from untrusted sources.

A file is the length of its header (8 bytes), the header (JSON: name -> dtype, shape
and offsets) and the data. The reader knows beforehand which tensors the file must hold.
It refuses a header that says anything else, and allocates nothing on its word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ringleader.decoding import from_json

MAX_HEADER_BYTES = 1 << 20
"""About 11,000 tensors; reading the header of 5000 takes 11 ms."""
_LENGTH_BYTES = 8
_ALIGNMENT = 8
"""Headers are padded to it, as the format demands, so that data is used in place."""

_METADATA = "__metadata__"

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
SIZES |= {"I8": 1, "U8": 1, "BOOL": 1, "U64": 8, "U32": 4, "U16": 2, "C64": 8}
SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1}


class TensorSpec(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the data."""
        return SIZES[self.dtype] * math.prod(self.shape)


class TensorData(NamedTuple):
    """A tensor to be written."""

    name: str
    spec: TensorSpec
    data: memoryview


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def write(
    parts: Iterable[TensorData], metadata: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """Return the pieces of a file in order. The data is not copied."""
    parts = list(parts)
    text = header({part.name: part.spec for part in parts}, metadata)
    length, rest = text[:_LENGTH_BYTES], text[_LENGTH_BYTES:]
    return [length, rest, *(part.data for part in parts)]


def header(
    specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the length of the header and the header of a file with these tensors."""
    entries: dict[str, object] = {_METADATA: metadata} if metadata else {}
    end = 0
    for name, spec in specs.items():
        begin, end = end, end + spec.num_bytes
        entries[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def max_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Return the largest size of a file with these tensors, header included."""
    names = sum(len(name.encode()) * 6 + 32 * len(f.shape) for name, f in specs.items())
    header = min(MAX_HEADER_BYTES, 4096 + names + 256 * len(specs))
    return _LENGTH_BYTES + header + sum(spec.num_bytes for spec in specs.values())


def read(file: memoryview, specs: Mapping[str, TensorSpec]) -> dict[str, memoryview]:
    """Return the data of the tensors; ValueError if the file holds any others."""
    entries, data = _entries(file)
    if entries.keys() != specs.keys():
        raise ValueError(_which(entries.keys() ^ specs.keys()))
    found: dict[str, memoryview] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda e: e[1].data_offsets):
        spec = specs[name]
        if (entry.dtype, tuple(entry.shape)) != spec:
            raise ValueError(
                f"{name!r} is {entry.dtype} {entry.shape}"[:200]
                + f", not {spec.dtype} {list(spec.shape)}"
            )
        begin, end = end, end + spec.num_bytes
        if entry.data_offsets != (begin, end):
            raise ValueError(f"{name!r} is not at {begin}..{end}")
        found[name] = data[begin:end]
    if end != len(data):
        raise ValueError(f"{len(data)} bytes of data, not {end}")
    return found


def read_metadata(file: memoryview) -> tuple[dict[str, str], memoryview]:
    """Return the metadata in the header, and the data of all tensors."""
    raw, data = _header(file)
    try:
        found = from_json(raw.get(_METADATA, b"{}"), dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ValueError(f"its metadata is not valid: {exc}"[:200]) from None
    return found, data


def _entries(file: memoryview) -> tuple[dict[str, _Entry], memoryview]:
    raw, data = _header(file)
    raw.pop(_METADATA, None)
    try:
        entries = {k: from_json(v, _Entry) for k, v in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _invalid_header(exc) from None
    return entries, data


def _header(file: memoryview) -> tuple[dict[str, msgspec.Raw], memoryview]:
    """Return the JSON of each entry of the header, and the data after it."""
    if len(file) < _LENGTH_BYTES:
        raise ValueError("not safetensors: shorter than 8 bytes")
    length = int.from_bytes(file[:_LENGTH_BYTES], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(file) - _LENGTH_BYTES):
        raise ValueError("not safetensors: the length of its header is impossible")
    text = file[_LENGTH_BYTES : _LENGTH_BYTES + length]
    try:
        raw = from_json(text, dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _invalid_header(exc) from None
    return raw, file[_LENGTH_BYTES + length :]


def _invalid_header(exc: Exception) -> ValueError:
    return ValueError(f"not safetensors: its header is not valid: {exc}"[:200])


def _which(names: Iterable[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in sorted(names)[:3])
    return f"not the tensors of this model: {shown} missing or unexpected"
