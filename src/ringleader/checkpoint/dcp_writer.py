"""Writer: the storage plug-in that torch.distributed.checkpoint (DCP) writes with.

    dcp.save(state, storage_writer=Writer(folder, step), planner=SavePlanner())
    dcp.load(state, storage_reader=Reader(folder), planner=LoadPlanner())

Each rank writes one safetensors file; the coordinator writes the manifest last. Used
in this way, all ranks must see the same folder. ``checkpoint.save`` and ``load`` need
no shared folder; they use the same two classes.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import (
    StorageWriter,
    WriteResult,
)
from torch.futures import Future

from ringleader.checkpoint import dtypes, manifest
from ringleader.checkpoint.catalog import checkpoint_name
from ringleader.checkpoint.dcp_metadata import saved_tensors
from ringleader.checkpoint.manifest import Manifest, Place
from ringleader.checkpoint.storage import open_storage, write
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorSpec


class _Destination(NamedTuple):
    """Where one rank writes; the coordinator decides it for all."""

    folder: str
    file: str
    checkpoint_id: str


class Writer(StorageWriter):
    """Writes the shard of this rank and, on the coordinator, the manifest."""

    def __init__(
        self, root: str | os.PathLike[str], step: int, *, publish: bool = True
    ) -> None:
        self.storage = open_storage(root)
        self.step = step
        self.manifest: Manifest | None = None
        """On the coordinator, after ``finish``."""
        self._publish = publish
        self._destination: _Destination | None = None

    @property
    def folder(self) -> str:
        """The name of the checkpoint's folder; empty before ``write_data``."""
        return self._destination.folder if self._destination else ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another checkpoint; DCP calls it where a path is given."""
        if checkpoint_id is not None:
            self.storage = open_storage(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: DCP shall not choose this class by itself."""
        return False

    def set_up_storage_writer(
        self, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Do nothing; the plan brings all that is needed."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank the name of its file."""
        checkpoint_id = secrets.token_hex(8)
        return [self.addressed(p, checkpoint_id, rank) for rank, p in enumerate(plans)]

    def addressed(self, plan: SavePlan, checkpoint_id: str, rank: int) -> SavePlan:
        """Return the plan of a rank with the name of its file."""
        folder = checkpoint_name(self.step, checkpoint_id)
        to = _Destination(folder, manifest.file_name(rank), checkpoint_id)
        return SavePlan(plan.items, to, plan.planner_data)

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the shard of this rank; return where each item lies in it."""
        to = self._destination = plan.storage_data
        shard = _Shard(plan.items, planner)
        if plan.items:
            write(self.storage, f"{to.folder}/{to.file}", shard.pieces())
        done: Future[list[WriteResult]] = Future()
        done.set_result(shard.results(to))
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the manifest and, unless the caller publishes it, write it."""
        to = self._destination
        assert to is not None, "write_data is called first"
        places = {r.index: r.storage_data for each in results for r in each}
        files: dict[str, int] = {}
        for place in places.values():
            end = place.begin + place.num_bytes
            files[place.file] = max(end, files.get(place.file, 0))
        self.manifest = Manifest(
            format=manifest.FORMAT,
            id=to.checkpoint_id,
            step=self.step,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            world_size=len(results),
            files=files,
            tensors=saved_tensors(metadata, places),
            values={i.fqn: p for i, p in places.items() if i.offset is None},
            paths=dict(metadata.planner_data or {}),
        )
        if self._publish:
            path = f"{to.folder}/{manifest.NAME}"
            write(self.storage, path, [manifest.encode(self.manifest)])


class _Shard:
    """The file of one rank. Tensors are fetched from the device one at a time."""

    def __init__(self, items: list[WriteItem], planner: SavePlanner) -> None:
        self._planner = planner
        self._items: list[tuple[WriteItem, TensorSpec, bytes | None]] = []
        for item in items:
            if item.tensor_data is None:
                data = _bytes_of(item, planner)
                self._items.append((item, TensorSpec("U8", (len(data),)), data))
            else:
                dtype = dtypes.name_of(item.tensor_data.properties.dtype)
                spec = TensorSpec(dtype, tuple(item.tensor_data.chunk.sizes))
                self._items.append((item, spec, None))
        specs = {_key(item.index): spec for item, spec, _ in self._items}
        self._header = tensor_file.header(specs)
        self._digests: list[str] = []

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Return the bytes of the file in order."""
        yield self._header
        for item, _, data in self._items:
            piece = data if data is not None else _raw(_tensor_of(item, self._planner))
            self._digests.append(hashlib.sha256(piece).hexdigest())
            yield piece

    def results(self, to: _Destination) -> list[WriteResult]:
        """Return the place of each item, after all pieces were taken."""
        found: list[WriteResult] = []
        begin = len(self._header)
        for (item, spec, _), digest in zip(self._items, self._digests, strict=True):
            place = Place(to.file, begin, spec.num_bytes, digest)
            found.append(WriteResult(item.index, spec.num_bytes, place))
            begin += spec.num_bytes
        return found


def _key(index: MetadataIndex) -> str:
    """Return the name of an item in its file: that of the tensor, and the offsets of
    a chunk that is not its first."""
    if index.offset is None or not any(index.offset):
        return index.fqn
    return f"{index.fqn}@{','.join(map(str, index.offset))}"


def _bytes_of(item: WriteItem, planner: SavePlanner) -> bytes:
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO)
    return data.getvalue()


def _tensor_of(item: WriteItem, planner: SavePlanner) -> Tensor:
    data = planner.resolve_data(item)
    assert isinstance(data, Tensor)
    return data


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data
