"""Residuals of the codec, which change only when a step is delivered.

An attempt adds the residuals of the last delivery to the contribution and writes new
ones beside them. They are taken when that attempt is delivered, however late: after a
view change it may be completed by a gather. An attempt that is given up leaves the old
ones as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ringleader.membership.steps.attempt import Attempt
from ringleader.training.flat_buffers import FlatBuffers


class Residuals:
    """Two sets of residuals for the float32 buckets of one member."""

    def __init__(self, buffers: FlatBuffers, codec: str | None) -> None:
        self._buffers = buffers
        self._codec = codec
        self._sets: list[dict[str, Tensor]] = [{}, {}]
        self._attempt: Attempt | None = None
        self._written: set[tuple[Attempt, int]] = set()

    @property
    def is_coded(self) -> bool:
        """Whether float32 gradients are encoded."""
        return self._codec is not None

    def codec_of(self, source: Tensor) -> str | None:
        """Return the codec of a bucket; only float32 is encoded."""
        return self._codec if source.dtype is torch.float32 else None

    def begin(self, attempt: Attempt) -> None:
        """Start an attempt; new residuals of one before it are dropped."""
        self._attempt = attempt
        self._written = set()

    def parts(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the residual of bucket ``index``, and where the new one goes."""
        bucket = self._buffers.buckets[index]
        like = self._buffers.contribution[bucket.kind]
        for each in self._sets:
            if bucket.kind not in each:
                each[bucket.kind] = torch.zeros(like.numel(), dtype=like.dtype)
        before, after = self._sets
        where = slice(bucket.start, bucket.stop)
        return before[bucket.kind][where], after[bucket.kind][where]

    def written(self, attempt: Attempt, index: int) -> None:
        """Note that the new residual of bucket ``index`` is complete. Any thread."""
        self._written.add((attempt, index))

    def deliver(self, attempt: Attempt) -> None:
        """Take the residuals of the attempt that was delivered.

        A bucket whose new residual was not completed starts again from zero: the result
        contains the old one already.
        """
        if not self._sets[0]:
            return
        if attempt != self._attempt:
            self.clear()
            return
        for index, bucket in enumerate(self._buffers.buckets):
            if bucket.kind in self._sets[1] and (attempt, index) not in self._written:
                self.parts(index)[1].zero_()
        self._sets.reverse()
        self._attempt = None

    def clear(self) -> None:
        """Forget all: the state of another member was adopted."""
        self._sets = [{}, {}]
        self._attempt = None
