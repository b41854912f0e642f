"""Residuals of the codec, which change only when a step is delivered.

An attempt reads the residuals of the last delivery and writes new ones beside them.
Delivery swaps the two; an attempt that is aborted leaves the old ones as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ringleader.training.flat_buffers import FlatBuffers


class Residuals:
    """Two sets of residuals for the float32 buckets of one member."""

    def __init__(self, buffers: FlatBuffers, codec: str | None) -> None:
        self._buffers = buffers
        self._codec = codec
        self._sets: list[dict[str, Tensor]] = [{}, {}]
        self._is_used = False

    def codec_of(self, source: Tensor) -> str | None:
        """Return the codec of a bucket; only float32 is encoded."""
        return self._codec if source.dtype is torch.float32 else None

    def parts(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the residual of bucket ``index``, and where the new one goes."""
        self._is_used = True
        bucket = self._buffers.buckets[index]
        like = self._buffers.contribution[bucket.kind]
        for each in self._sets:
            if bucket.kind not in each:
                each[bucket.kind] = torch.zeros(like.numel(), dtype=like.dtype)
        before, after = self._sets
        where = slice(bucket.start, bucket.stop)
        return before[bucket.kind][where], after[bucket.kind][where]

    def commit(self) -> None:
        """Take the residuals of the attempt that was delivered."""
        if self._is_used:
            self._sets.reverse()
        self._is_used = False

    def abort(self) -> None:
        """Forget those of an attempt that was given up."""
        self._is_used = False

    def clear(self) -> None:
        """Forget all: the state of another member was adopted."""
        self._sets = [{}, {}]
        self._is_used = False
