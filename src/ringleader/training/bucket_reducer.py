"""BucketReducer: the calls of a group for the buckets and sideband of one result."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.low_comm.method import SPARSE
from ringleader.training.low_comm.sparse_sum import sparse_sum
from ringleader.training.residuals import Residuals
from ringleader.training.sideband import Entry, EntryLayout


class Sidebands:
    """The entries of the last two results, as they were exchanged."""

    def __init__(self, layout: EntryLayout) -> None:
        self.layout = layout
        self._kept: list[Tensor] = [torch.empty(0, dtype=torch.uint8)] * 2

    def room(self, version: int, size: int) -> Tensor:
        """Return the memory for the entries of ``size`` members of a result."""
        num_bytes = size * self.layout.num_bytes
        if self._kept[version % 2].numel() != num_bytes:
            self._kept[version % 2] = torch.empty(num_bytes, dtype=torch.uint8)
        return self._kept[version % 2]

    def of(self, version: int) -> Tensor:
        """Return the entries of a result as bytes."""
        return self._kept[version % 2]

    def entries(self, version: int) -> list[Entry]:
        """Return the entries of a result; raises ProtocolError if one is invalid."""
        rows = self.of(version).view(-1, self.layout.num_bytes)
        return [self.layout.decode(rank, row) for rank, row in enumerate(rows)]


class BucketReducer:
    """Starts the calls of one attempt at the result ``version``."""

    def __init__(
        self,
        group: Group,
        version: int,
        buffers: FlatBuffers,
        sidebands: Sidebands,
        residuals: Residuals,
        on_begin: Callable[[], None],
    ) -> None:
        self._group = group
        self._version = version
        self._buffers = buffers
        self._sidebands = sidebands
        self._residuals = residuals
        self._on_begin = on_begin
        """Called when the first bucket leaves."""

    def reduce_bucket(self, index: int) -> Work:
        """Start the sum of bucket ``index``."""
        if index == 0:
            self._on_begin()
        source = self._buffers.part(index)
        out = self._buffers.result_part(self._version, index)
        codec = self._residuals.codec_of(source)
        if codec is None:
            return self._group.all_reduce(source, out=out, async_op=True)
        before, after = self._residuals.parts(index)
        if codec == SPARSE:
            sparse_sum(self._group, source, out, before, after)
            work = Work()
            work.finish()
            return work
        return self._group.all_reduce(
            source,
            out=out,
            codec=codec,
            residual=before,
            error_out=after,
            async_op=True,
        )

    def exchange_sideband(self, entry: Tensor) -> Work:
        """Start the exchange of the entries of all members."""
        out = self._sidebands.room(self._version, self._group.size)
        return self._group.all_gather(out, entry, async_op=True)
