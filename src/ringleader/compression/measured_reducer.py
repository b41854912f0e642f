"""MeasuredReducer: counts what compression saves, while metrics are on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from ringleader.codec.registry import make_codec
from ringleader.compression.bucket import Bucket
from ringleader.compression.communicator import Communicator, GroupCommunicator
from ringleader.compression.reducers import Reducer, make_reducer
from ringleader.compression.scheme import Scheme
from ringleader.compression.sparse_format import Bytes
from ringleader.metrics import catalog
from ringleader.metrics.process_metrics import current


class MeasuredReducer:
    """The reducer of a scheme, measured if metrics are on."""

    def __init__(self, scheme: Scheme) -> None:
        self._name = scheme.name
        self._reducer: Reducer = make_reducer(scheme)

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """See Reducer."""
        if not current.is_enabled:
            self._reducer.reduce(bucket, comm)
            return
        raw_bytes, since_s = bucket.out.nbytes, time.perf_counter()
        counted = CountedCommunicator(comm)
        self._reducer.reduce(bucket, counted)
        registry = current.registry
        seconds = time.perf_counter() - since_s
        registry.add(catalog.COMPRESSION_SECONDS, seconds, self._name)
        registry.add(catalog.COMPRESSION_RAW_BYTES, raw_bytes, self._name)
        registry.add(catalog.COMPRESSION_SENT_BYTES, counted.num_bytes, self._name)


class CountedCommunicator:
    """A communicator that counts the bytes this rank contributes to collectives."""

    def __init__(self, comm: Communicator) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self.accepts_residual = comm.accepts_residual
        self.num_bytes = 0
        self._comm = comm

    def average(self, tensor: Tensor) -> None:
        """See Communicator."""
        self.num_bytes += tensor.nbytes
        self._comm.average(tensor)

    def average_coded(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """See Communicator."""
        chosen: str | None = codec
        if codec == "auto" and isinstance(self._comm, GroupCommunicator):
            chosen = self._comm.auto_codec(tensor.nbytes)
        is_raw = chosen is None or chosen == "auto"
        count = tensor.numel()
        coded = 4 * count if is_raw else make_codec(str(chosen)).num_bytes(count)
        self.num_bytes += coded
        self._comm.average_coded(tensor, codec, residual, error_out)

    def all_gather_bytes(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """See Communicator."""
        self.num_bytes += len(mine)
        return self._comm.all_gather_bytes(mine, lengths)

    def all_to_all_bytes(
        self, parts: Sequence[Bytes], lengths: Sequence[int]
    ) -> list[Bytes]:
        """See Communicator."""
        others = (len(part) for rank, part in enumerate(parts) if rank != self.rank)
        self.num_bytes += sum(others)
        return self._comm.all_to_all_bytes(parts, lengths)
