"""Manifest lists what a checkpoint holds: each tensor, in which file, at which bytes.

It is the last file that is written, so a folder with a manifest holds all files of its
machine. Every entry has the SHA-256 of its bytes: a reader verifies exactly what it
reads, from its own disk or from another machine's.
"""

from __future__ import annotations

import math
import re

import msgspec

from ringleader.decoding import from_json
from ringleader.identity.storage.checked_struct import verify_checksum, with_checksum
from ringleader.wire.tensor_file import SIZES, TensorSpec

NAME = "manifest.json"
_FILE = re.compile(r"shard-[0-9]{5,9}\.safetensors")
"""Manifests come from other machines too: a name must not lead out of the folder."""

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


def file_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"shard-{rank:05d}.safetensors"


def rank_of(file: str) -> int:
    """Return the rank that wrote a file; ValueError if it is no such name."""
    if not _FILE.fullmatch(file):
        raise ValueError(f"no file of a checkpoint: {file[:80]!r}")
    return int(file.removeprefix("shard-").removesuffix(".safetensors"))


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON, with its checksum."""
    return msgspec.json.encode(with_checksum(manifest))


def decode(data: bytes) -> Manifest:
    """Return the manifest; ValueError if it is damaged or contradicts itself."""
    try:
        found = from_json(data, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"it is not a manifest ({exc})"[:200]) from None
    verify_checksum(found)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format}; this release reads {FORMAT}")
    for file in found.files:
        rank_of(file)
    for place in found.places():
        end = place.begin + place.num_bytes
        size = found.files.get(place.file, -1)
        if min(place.begin, place.num_bytes) < 0 or end > size:
            raise ValueError(f"an entry lies outside of {place.file[:80]!r}")
    for name, tensor in found.tensors.items():
        _check_chunks(name, tensor)
    return found


def _check_chunks(name: str, tensor: SavedTensor) -> None:
    for chunk in tensor.chunks:
        boxes = zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True)
        if any(min(at, n) < 0 or at + n > length for at, n, length in boxes):
            raise ValueError(f"a chunk of {name} lies outside of it")
        spec = TensorSpec(tensor.dtype, chunk.sizes)
        if tensor.dtype not in SIZES or spec.num_bytes != chunk.place.num_bytes:
            raise ValueError(f"a chunk of {name} has another size than its bytes")
    covered = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
    if covered != math.prod(tensor.shape):
        raise ValueError(f"the chunks of {name} do not cover it")
