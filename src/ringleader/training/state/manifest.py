"""Manifest lists the tensors of a state; Layout is the part that must be equal.

Both travel between members, so decoding bounds and validates every field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TypeVar

import msgspec

from ringleader.decoding import from_msgpack
from ringleader.wire.tensor_file import SIZES, TensorSpec

MAX_TENSORS = 1 << 17
MAX_NAME = 1024
MAX_DIMENSIONS = 32
MAX_STATE_BYTES = 1 << 44
MAX_BYTES = 64 << 20
"""Encoded size of a manifest with its values, and of a layout."""

_MAX_DIFFERENCES = 3

_T = TypeVar("_T")


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor: its name, dtype (as in safetensors files) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its data."""
        return TensorSpec(self.dtype, self.shape).num_bytes

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tensors of a state, in order, and its encoded plain values."""

    tensors: tuple[Entry, ...]
    values: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors and values."""
        return sum(entry.num_bytes for entry in self.tensors) + len(self.values)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be equal before members can exchange states.

    ``groups`` are the parameter names of each parameter group, ``flags`` the settings
    of the optimizer that change its algorithm, such as ``amsgrad``.
    """

    optimizer: str
    flags: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    tensors: tuple[Entry, ...]

    def digest(self) -> bytes:
        """Return the SHA-256 of the layout; equal layouts have equal digests."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


def difference(mine: Layout, theirs: Layout) -> str:
    """Say in which tensors, groups or flags two layouts differ; "" if they do not."""
    found = list(_differences(mine, theirs))
    more = len(found) - _MAX_DIFFERENCES
    text = "; ".join(found[:_MAX_DIFFERENCES])
    return f"{text}; and {more} more" if more > 0 else text


def _differences(mine: Layout, theirs: Layout) -> Iterator[str]:
    if mine.optimizer != theirs.optimizer:
        yield f"the optimizer is {mine.optimizer} here, {theirs.optimizer} there"
    for here, there in zip_longest(mine.flags, theirs.flags, fillvalue="not set"):
        if here != there:
            yield f"the optimizer has {here} here, {there} there"
    yield from _different_tensors(mine.tensors, theirs.tensors)
    if mine.groups != theirs.groups:
        sizes = [[len(group) for group in each.groups] for each in (mine, theirs)]
        yield f"the parameter groups differ (sizes {sizes[0]} here, {sizes[1]} there)"


def _different_tensors(mine: Iterable[Entry], theirs: Iterable[Entry]) -> Iterator[str]:
    here = {entry.name: entry for entry in mine}
    there = {entry.name: entry for entry in theirs}
    for name, entry in here.items():
        if name not in there:
            yield f"{entry} is only here"
        elif entry != there[name]:
            yield f"{entry} here is {there[name]} there"
    yield from (
        f"{entry} is only there" for name, entry in there.items() if name not in here
    )
    if here == there and list(here) != list(there):
        yield "the tensors come in another order"


def encode(content: Manifest | Layout) -> bytes:
    """Return the content as bytes; ValueError if no member would accept it."""
    data = msgspec.msgpack.encode(content)
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"the names and plain values of the state take {len(data)} bytes, more "
            f"than {MAX_BYTES}; keep large data in tensors"
        )
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Return a manifest; ValueError if it is damaged or out of bounds."""
    found = _decoded(data, Manifest)
    _check_entries(found.tensors)
    return found


def decode_layout(data: bytes) -> Layout:
    """Return a layout; ValueError if it is damaged or out of bounds."""
    found = _decoded(data, Layout)
    _check_entries(found.tensors)
    return found


def _decoded(data: bytes, kind: type[_T]) -> _T:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes are more than a state's list of tensors")
    try:
        return from_msgpack(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"not a list of tensors: {exc}"[:200]) from None


def _check_entries(entries: tuple[Entry, ...]) -> None:
    if len(entries) > MAX_TENSORS:
        raise ValueError(f"{len(entries)} tensors; at most {MAX_TENSORS} are accepted")
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("a tensor is listed twice")
    total = 0
    for entry in entries:
        name = entry.name[:80]
        if not 0 < len(entry.name) <= MAX_NAME:
            raise ValueError(f"a tensor's name has {len(entry.name)} characters")
        if entry.dtype not in SIZES:
            raise ValueError(f"{name}: unknown dtype {entry.dtype[:20]!r}")
        if len(entry.shape) > MAX_DIMENSIONS or min(entry.shape, default=0) < 0:
            raise ValueError(f"{name}: invalid shape {str(entry.shape)[:80]}")
        total += entry.num_bytes
    if total > MAX_STATE_BYTES:
        raise ValueError(f"the tensors have {total} bytes together")
