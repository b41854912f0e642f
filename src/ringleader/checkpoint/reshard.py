"""Reshard: a checkpoint as another number of ranks would have saved it, offline.

Loading needs none of this: any number of ranks reads any checkpoint. It is for moving
one: to machines whose disks each hold a part, or back to one file.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from ringleader.checkpoint import manifest as manifests
from ringleader.checkpoint.catalog import Found, checkpoint_name
from ringleader.checkpoint.export import read_box
from ringleader.checkpoint.manifest import Chunk, Manifest, Place
from ringleader.checkpoint.place_reader import DamagedCheckpoint, PlaceReader
from ringleader.checkpoint.storage import Storage, write
from ringleader.errors import ConfigError
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorSpec

MAX_RANKS = 100_000
"""The names of files have five digits at least."""
_OF_RANKS = {("ranks",), ("rank_tensors",)}
"""Paths below which the state differs between the ranks that saved it."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box of a tensor, or a value, that goes to one file."""

    name: str
    spec: TensorSpec
    offsets: tuple[int, ...] | None
    """None: a value."""

    @property
    def key(self) -> str:
        """Its name in the file."""
        if self.offsets is None or not any(self.offsets):
            return self.name
        return f"{self.name}@{','.join(map(str, self.offsets))}"


def reshard(storage: Storage, found: Found, target: Storage, ranks: int) -> Found:
    """Write the checkpoint to ``target`` in as many files as ``ranks`` would.

    Tensors are cut along their first dimension, as FSDP2 does. What only the old ranks
    have, such as their random numbers, is left out where their number changes. The
    manifest is written last; a failure leaves nothing behind.
    """
    if not 1 <= ranks < MAX_RANKS:
        raise ConfigError(f"{ranks} ranks: use 1 to {MAX_RANKS - 1}")
    source = found.manifest
    new_id = secrets.token_hex(8)
    folder = checkpoint_name(source.step, new_id)
    left_out = _of_ranks(source) if ranks != source.world_size else set()
    places: dict[tuple[str, tuple[int, ...] | None], Place] = {}
    files: dict[str, int] = {}
    try:
        for rank, pieces in enumerate(_cut(source, ranks, left_out)):
            if pieces:
                file = manifests.file_name(rank)
                written = _Written(storage, found, file, pieces)
                write(target, f"{folder}/{file}", written.content())
                places |= written.places
                files[file] = written.num_bytes
        made = replace(
            source,
            id=new_id,
            world_size=ranks,
            files=files,
            tensors={
                name: replace(tensor, chunks=_chunks(name, tensor.shape, ranks, places))
                for name, tensor in source.tensors.items()
                if name not in left_out
            },
            values={n: places[n, None] for n in source.values if n not in left_out},
            paths={n: p for n, p in source.paths.items() if n not in left_out},
        )
        write(target, f"{folder}/{manifests.NAME}", [manifests.encode(made)])
    except BaseException:
        target.remove(folder)
        raise
    return Found(folder, made)


def _of_ranks(manifest: Manifest) -> set[str]:
    return {name for name, path in manifest.paths.items() if path[:1] in _OF_RANKS}


def _boxes(
    shape: tuple[int, ...], ranks: int
) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Yield (rank, offsets, sizes): equal parts of the first dimension, the last
    shorter; what has no first dimension is one part."""
    if not shape or not shape[0]:
        yield 0, (0,) * len(shape), shape
        return
    step = -(-shape[0] // ranks)
    for rank, begin in enumerate(range(0, shape[0], step)):
        size = min(step, shape[0] - begin)
        yield rank, (begin, *[0] * (len(shape) - 1)), (size, *shape[1:])


def _cut(manifest: Manifest, ranks: int, left_out: set[str]) -> list[list[_Piece]]:
    """Return what goes to the file of each rank."""
    found: list[list[_Piece]] = [[] for _ in range(ranks)]
    of_ranks = _of_ranks(manifest)
    for name, tensor in manifest.tensors.items():
        if name not in left_out:
            for rank, offsets, sizes in _boxes(tensor.shape, ranks):
                spec = TensorSpec(tensor.dtype, sizes)
                found[rank].append(_Piece(name, spec, offsets))
    for name, place in manifest.values.items():
        if name not in left_out:
            owner = manifest.paths[name][1] if name in of_ranks else 0
            spec = TensorSpec("U8", (place.num_bytes,))
            found[int(owner)].append(_Piece(name, spec, None))
    return found


def _chunks(
    name: str,
    shape: tuple[int, ...],
    ranks: int,
    places: dict[tuple[str, tuple[int, ...] | None], Place],
) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(offsets, sizes, places[name, offsets])
        for _, offsets, sizes in _boxes(shape, ranks)
    )


class _Written:
    """One file while it is written; holds one piece at a time."""

    def __init__(
        self, storage: Storage, found: Found, file: str, pieces: list[_Piece]
    ) -> None:
        self._reader = PlaceReader(storage, found.folder, found.manifest)
        self._manifest = found.manifest
        self._where = f"{storage}/{found.folder}"
        self._file = file
        self._pieces = pieces
        self.places: dict[tuple[str, tuple[int, ...] | None], Place] = {}
        self.num_bytes = 0

    def content(self) -> Iterator[bytes | memoryview]:
        """Return the bytes of the file in order, and note where each piece lies."""
        header = tensor_file.header({piece.key: piece.spec for piece in self._pieces})
        self.num_bytes = len(header)
        yield header
        for piece in self._pieces:
            data = self._read(piece)
            place = Place(
                self._file, self.num_bytes, len(data), hashlib.sha256(data).hexdigest()
            )
            self.places[piece.name, piece.offsets] = place
            self.num_bytes += len(data)
            yield data

    def _read(self, piece: _Piece) -> bytes | memoryview:
        if piece.offsets is not None:
            tensor = self._manifest.tensors[piece.name]
            box = (piece.offsets, piece.spec.shape)
            return read_box(self._reader, self._where, piece.name, tensor, box)
        place = self._manifest.values[piece.name]
        data = self._reader.read_here(place)
        if data is None:
            text = f"{self._where}/{place.file}: {piece.name} is missing or damaged"
            raise DamagedCheckpoint(f"{text} here")
        return data
