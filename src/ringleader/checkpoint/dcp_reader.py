"""Reader: the storage plug-in that torch.distributed.checkpoint (DCP) reads with."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ringleader.checkpoint import dtypes
from ringleader.checkpoint.catalog import newest_here
from ringleader.checkpoint.dcp_metadata import as_metadata
from ringleader.checkpoint.manifest import Manifest, Place
from ringleader.checkpoint.place_reader import PlaceReader
from ringleader.checkpoint.storage import Storage, open_storage


class Reader(StorageReader):
    """Reads what each rank needs, each byte verified against the manifest.

    Without ``found``, it reads the newest checkpoint in a folder that all ranks share.
    """

    def __init__(
        self, root: str | os.PathLike[str], found: PlaceReader | None = None
    ) -> None:
        self.storage: Storage = open_storage(root)
        self._found = found

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another checkpoint; DCP calls it where a path is given."""
        if checkpoint_id is not None:
            self.storage = open_storage(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: DCP shall not choose this class by itself."""
        return False

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Return the manifest in DCP's terms."""
        return as_metadata(self._places().manifest)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Do nothing; the places are known from the manifest."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what this rank needs into its tensors, if all of it is intact."""
        self.locate(plan.items)
        self.read(plan.items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def locate(self, items: Sequence[ReadItem]) -> None:
        """Verify what this rank needs; see ``PlaceReader.locate``."""
        self._places().locate(list(self._wanted(items)))

    def read(self, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        """Copy what was located into the tensors and values of this rank."""
        wanted = self._wanted(items)
        error: Exception | None = None
        for place, data in self._places().fetch(list(wanted)):
            try:
                for item in wanted[place]:
                    _load_item(item, data, planner, self._places().manifest)
            except Exception as exc:  # noqa: BLE001  # the other ranks go on fetching
                error = exc
        if error is not None:
            raise error

    def _wanted(self, items: Sequence[ReadItem]) -> dict[Place, list[ReadItem]]:
        places = as_metadata(self._places().manifest).storage_data
        wanted: dict[Place, list[ReadItem]] = {}
        for item in items:
            wanted.setdefault(places[item.storage_index], []).append(item)
        return wanted

    def _places(self) -> PlaceReader:
        if self._found is None:
            found = newest_here(self.storage)
            self._found = PlaceReader(self.storage, found.folder, found.manifest)
        return self._found


def _load_item(item: ReadItem, data: bytes, planner: LoadPlanner, of: Manifest) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(data))
        return
    index = item.storage_index
    saved = of.tensors[index.fqn]
    sizes = next(
        c.sizes for c in saved.chunks if c.offsets == tuple(index.offset or ())
    )
    dtype = dtypes.dtype_of(saved.dtype)
    chunk = (
        torch.frombuffer(bytearray(data), dtype=dtype)
        if data
        else torch.empty(0, dtype=dtype)
    )
    part = chunk.reshape(sizes)
    for dim, (begin, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        part = part.narrow(dim, begin, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(part)
    planner.commit_tensor(item, target)
