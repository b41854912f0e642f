"""Manifest lists what a checkpoint holds: each tensor, in which file, at which bytes.

It is the last file that is written, so a folder with a manifest holds all files of its
machine. Every entry has the SHA-256 of its bytes: a reader verifies exactly what it
reads, from its own disk or from another machine's.
"""

from __future__ import annotations

import math

import msgspec

from ringleader.identity.storage.checked_struct import verify_checksum, with_checksum

NAME = "manifest.json"
FORMAT = 1
MAX_BYTES = 256 << 20
"""About a million chunks."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes in a file of the checkpoint, with their SHA-256."""

    file: str
    begin: int
    num_bytes: int
    sha256: str


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A box of a tensor that one rank saved."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


class SavedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole tensor: its chunks, which together cover it."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds. ``paths`` leads from a flat name to the nested key."""

    format: int
    id: str
    step: int
    created: str
    world_size: int
    files: dict[str, int]
    tensors: dict[str, SavedTensor]
    values: dict[str, Place]
    paths: dict[str, tuple[str | int, ...]]
    sha256: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, one copy of each."""
        return sum(self.files.values())

    def places(self) -> list[Place]:
        """Return the places of all chunks and values."""
        chunks = [c.place for t in self.tensors.values() for c in t.chunks]
        return [*chunks, *self.values.values()]


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON, with its checksum."""
    return msgspec.json.encode(with_checksum(manifest))


def decode(data: bytes) -> Manifest:
    """Return the manifest; ValueError if it is damaged or contradicts itself."""
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"it is not a manifest ({exc})"[:200]) from None
    verify_checksum(found)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format}; this release reads {FORMAT}")
    for place in found.places():
        end = place.begin + place.num_bytes
        if min(place.begin, place.num_bytes) < 0 or end > found.files[place.file]:
            raise ValueError(f"an entry lies outside of {place.file}")
    for name, tensor in found.tensors.items():
        covered = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
        if covered != math.prod(tensor.shape):
            raise ValueError(f"the chunks of {name} do not cover it")
    return found
