"""Buckets of DistributedDataParallel in memory that all ranks of a host have mapped.

The all_reduce of such a bucket adds up where the gradients are, without copies into
slots and out of them, and has one sum for all ranks: see
engine/shared_memory/mapped_sum.py. torch moves the memory of a bucket to a shared file,
and the reducer goes on with the same tensor. Only the reducer may know a bucket that is
moved: a numpy array would still look at the old memory. From the sum it copies the
gradients, before the next backward pass.

Before each all_reduce the ranks tell each other what they know of their buckets. One is
moved when all ranks see it for the second time, because DDP makes others after the
first step. Where not all ranks have moved theirs (one has run out of data and takes
part with zeros, one has no room), all go on as if none had.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import astuple, dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ringleader.backend.open_file import OpenFile
from ringleader.engine.arrays import as_array
from ringleader.engine.call import Mapped
from ringleader.groups import calls
from ringleader.groups.group import Group, handle_of
from ringleader.settings import shares_buckets

_log = logging.getLogger("ringleader")

FIRST, SEEN, STAYS = -1, -2, -3
"""What a rank knows of a bucket that is not shared: that it is new, that it was seen
before, and that it stays where it is. Those that are shared have numbers from 0 on."""
FOLDER = "/dev/shm"
"""Where torch has shared memory."""
LEFT_BYTES = 1 << 30
"""What we leave to others in that folder, such as the workers of a DataLoader; also
half of it. Containers often have 64 MiB in all."""
MAX_BUCKETS = 128
"""Buckets of one model: torch keeps a descriptor open for each. With DDP's 25 MiB they
are 3 GB of gradients."""
_ROW_LENGTH = 9
_ROW = struct.Struct(f"<q{_ROW_LENGTH - 1}Q")
"""One of three messages: what this rank knows of its bucket, and a checksum of the
call; whether it has moved the bucket, and its file (rank 0: also that of the sum);
whether it has mapped all files."""


@dataclass(slots=True)
class _Bucket:
    """One bucket of this rank."""

    storage: Any
    """A weak reference to the memory."""
    number: int = SEEN
    mapped: Mapped | None = None
    """Those of all ranks and their sum, once they are shared."""
    result: Tensor | None = None
    """The memory of the sum."""


class SharedBuckets:
    """The buckets of one model, on one rank of a group that shares memory."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._buckets: dict[int, _Bucket] = {}
        """By the address of torch's record of the memory, which stays when torch moves
        the memory; the weak reference in ``_Bucket`` keeps that address from others."""
        self.num_shared = 0
        """Buckets that were ever shared; equal on all ranks."""
        self.is_on = shares_buckets()
        """False if this rank shares none. A failure turns it off on all ranks."""

    def all_reduce(self, tensor: Tensor, op: str) -> Tensor:
        """Combine all ranks' bucket, as part of an operation; return the result.

        It is ``tensor`` or other memory, which the next call for this bucket changes.
        """
        bucket = self._buckets.get(tensor.untyped_storage()._cdata)
        state = FIRST if bucket is None else bucket.number
        if not self.is_on:  # another thread may turn it off, so it is read only here
            state = STAYS
        kind = crc32(f"{tensor.dtype} {tensor.numel()} {op}".encode())
        is_alike = len(set(self._tell(state, kind))) == 1 and state != STAYS
        if bucket is None:
            self._remember(tensor)
        elif is_alike and state == SEEN:
            self._share(bucket, tensor)
        if bucket is None or bucket.result is None or not is_alike:
            self._group.all_reduce(tensor, op)
            return tensor
        call = calls.all_reduce(tensor, op, None)
        call.mapped = bucket.mapped
        handle_of(self._group).submit(call, "shm")
        return bucket.result

    def _remember(self, tensor: Tensor) -> None:
        """Know a bucket the next time, and forget those that are gone."""
        gone = [key for key, each in self._buckets.items() if each.storage.expired()]
        for key in gone:
            del self._buckets[key]
        storage = tensor.untyped_storage()
        bucket = self._buckets[storage._cdata] = _Bucket(_weak_reference(storage))
        if tensor.nbytes != storage.nbytes():
            bucket.number = STAYS

    def _tell(self, *numbers: int) -> list[tuple[int, ...]]:
        """Exchange a row of numbers with all ranks."""
        row = bytearray(_ROW.pack(*numbers, *[0] * (_ROW_LENGTH - len(numbers))))
        rows = bytearray(_ROW.size * self._group.size)
        self._group.all_gather(
            torch.frombuffer(rows, dtype=torch.uint8),
            torch.frombuffer(row, dtype=torch.uint8),
        )
        return list(_ROW.iter_unpack(rows))

    def _share(self, bucket: _Bucket, tensor: Tensor) -> None:
        """Move the bucket of every rank, and map them all, with memory for the sum."""
        group, bucket.number = self._group, STAYS
        if self.num_shared == MAX_BUCKETS:  # equal on all ranks
            return
        own = [tensor, torch.empty_like(tensor)] if group.rank == 0 else [tensor]
        files = _move(own, tensor.nbytes * (group.size + 1))
        rows = self._tell(bool(files), *(n for file in files for n in astuple(file)))
        mapped: list[Tensor] = []
        if all(has_moved for has_moved, *_ in rows):
            theirs = [OpenFile(*row[1:5]) for row in rows]
            mapped = _map([*theirs, OpenFile(*rows[0][5:])], tensor)
        if all(has_mapped for has_mapped, *_ in self._tell(bool(mapped))):
            *inputs, bucket.result = mapped
            arrays = [as_array(each) for each in inputs]
            bucket.mapped = Mapped(arrays, as_array(bucket.result))
            bucket.number = self.num_shared
            self.num_shared += 1
        else:
            self.is_on = False


def _weak_reference(storage: torch.UntypedStorage) -> Any:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _move(tensors: list[Tensor], total_bytes: int) -> list[OpenFile]:
    """Move tensors to shared memory, in place; empty if there is no room for all."""
    try:
        room = os.statvfs(FOLDER)
        left = room.f_bavail * room.f_frsize - total_bytes
        if left < max(LEFT_BYTES, room.f_blocks * room.f_frsize // 2):
            raise OSError(f"{FOLDER} has no room for it")
        return [OpenFile.of(t.untyped_storage()._share_fd_cpu_()[0]) for t in tensors]
    except (OSError, RuntimeError) as exc:  # the latter is torch's
        _log.info("a bucket of DDP is not shared: %s", exc)
        return []


def _map(files: list[OpenFile], like: Tensor) -> list[Tensor]:
    """Map files that hold a tensor like this one; empty if one cannot be mapped."""
    try:
        return [file.map(like.nbytes).view(like.dtype) for file in files]
    except (OSError, RuntimeError) as exc:
        _log.info("a bucket of DDP is not shared: %s", exc)
        return []
