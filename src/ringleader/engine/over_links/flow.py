"""A program ready to run over links: its moves as flows of bytes with dependencies.

A flow is one move with a progress mark, ``done``. Program order on a chunk becomes a
limit: a flow may advance to byte x once every earlier flow on that chunk that it
follows has passed x. That is enough to forward bytes as they arrive (cut-through) and
still compute what the program says.

A chunk has an input (this rank's values, never written) and an output (the memory of
the result). A chunk that only passes through has neither: it lives in a small window
that wraps around, and its writer stays less than a window ahead of its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringleader.collectives.schedule import Kind, Program
from ringleader.engine.arrays import Array, Bytes, bytes_of
from ringleader.errors import InternalError


class Flow:
    """One move, its memory and its progress. All counts are bytes."""

    __slots__ = (
        "after",
        "bytes",
        "chunk",
        "done",
        "epoch",
        "is_last",
        "kind",
        "num_bytes",
        "own",
        "peer",
        "readers",
        "target",
        "wrap",
    )

    def __init__(self, kind: Kind, peer: int, chunk: int) -> None:
        self.kind = kind
        self.peer = peer
        self.chunk = chunk
        self.epoch = 0
        """Number of times the chunk was replaced before; windows are per epoch."""
        self.is_last = False
        """Whether no later move writes the chunk."""
        self.after: list[Flow] = []
        """Flows that must be ahead of this one."""
        self.readers: list[Flow] = []
        """Flows that send what this one writes."""
        self.done = 0
        self.num_bytes = 0
        self.wrap = 0
        """Length of the window that the chunk passes through; 0 if it has an output."""
        self.bytes = memoryview(b"")
        self.own: Array | None = None
        """The values that a reduction adds to."""
        self.target: Array | None = None
        """The memory that the move writes."""

    def limit(self) -> int:
        """The byte up to which this flow may advance now."""
        limit = self.num_bytes
        for flow in self.after:
            if flow.done < limit:
                limit = flow.done
        if self.wrap:
            for flow in self.readers:
                if flow.done + self.wrap < limit:
                    limit = flow.done + self.wrap
        return limit


class Plan:
    """The flows of one program, reusable for any tensor; ``bind`` gives them memory."""

    def __init__(self, program: Program) -> None:
        self.flows = [Flow(*move) for move in program]
        self.sends: dict[int, list[Flow]] = {}
        self.recvs: dict[int, list[Flow]] = {}
        self.by_chunk: dict[int, list[Flow]] = {}
        for flow in self.flows:
            lanes = self.sends if flow.kind is Kind.SEND else self.recvs
            lanes.setdefault(flow.peer, []).append(flow)
            self.by_chunk.setdefault(flow.chunk, []).append(flow)
        self._last_writes: dict[int, Flow] = {}
        for chunk, flows in self.by_chunk.items():
            _link_up(flows)
            writes = [flow for flow in flows if flow.kind is not Kind.SEND]
            if writes:
                writes[-1].is_last = True
                self._last_writes[chunk] = writes[-1]
        self.written = frozenset(self._last_writes)
        """The chunks that this rank receives."""
        self.num_chunks = 1 + max(self.by_chunk, default=0)

    def bind(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        lengths: Sequence[int],
        windows: Windows,
        dtype: np.dtype[Any],
    ) -> None:
        """Give every flow its memory for one call.

        The sequences are indexed by chunk; lengths are elements. A chunk that is
        received and has no output gets a window per epoch.
        """
        transient = {
            (flow.chunk, flow.epoch): None
            for flow in self.flows
            if flow.kind is not Kind.SEND
            and outputs[flow.chunk] is None
            and lengths[flow.chunk]
        }
        given = windows.allocate(len(transient), dtype)
        of_chunk = dict(zip(transient, given, strict=True))
        for chunk, flows in self.by_chunk.items():
            held = inputs[chunk]
            for flow in flows:
                flow.done = flow.num_bytes = 0
                if not lengths[chunk]:
                    continue
                window = of_chunk.get((chunk, flow.epoch))
                if flow.kind is not Kind.SEND:
                    flow.own = held
                    held = flow.target = outputs[chunk] if window is None else window
                if held is None:
                    raise InternalError(f"chunk {chunk} is sent but has no memory")
                flow.num_bytes = lengths[chunk] * held.itemsize
                flow.wrap = held.nbytes if held is window else 0
                flow.bytes = bytes_of(held)

    def complete_bytes(self, chunk: int) -> int:
        """Number of bytes of ``chunk`` that hold their final value on this rank."""
        last = self._last_writes.get(chunk)
        return 0 if last is None else last.done

    def release(self) -> None:
        """Drop the memory of the call, so that its tensors can be freed."""
        for flow in self.flows:
            flow.bytes = memoryview(b"")
            flow.own = flow.target = None


def _link_up(flows: list[Flow]) -> None:
    """Set the order on one chunk: sends follow the last write, writes all flows."""
    last_write: list[Flow] = []
    sends: list[Flow] = []
    epoch = 0
    for flow in flows:
        if flow.kind is Kind.SEND:
            flow.after = list(last_write)
            sends.append(flow)
        else:
            flow.after = last_write + sends
            if flow.kind is Kind.COPY and last_write:
                epoch += 1
            last_write, sends = [flow], []
        flow.epoch = epoch
    for i, flow in enumerate(flows):
        later = flows[i + 1 :]
        flow.readers = [
            f for f in later if f.kind is Kind.SEND and f.epoch == flow.epoch
        ]


class Windows:
    """The bounded memory for chunks that pass through; one per engine, reused."""

    LIMIT_BYTES = 4 << 20
    """All windows of one call together, so that scratch memory is bounded."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)

    def window_bytes(self, num_chunks: int) -> int:
        """Smallest size of a window, if every chunk needs up to two of them."""
        return self._size(2 * num_chunks)

    def _size(self, count: int) -> int:
        # A multiple of 64: every dtype fits a whole number of times.
        return max(64, min(self.LIMIT_BYTES // count, 1 << 20) // 64 * 64)

    def allocate(self, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """``count`` windows of equal size, as arrays of ``dtype``."""
        if not count:
            return []
        if not self._memory.size:
            self._memory = np.empty(self.LIMIT_BYTES, np.uint8)
        size = self._size(count)
        starts = range(0, count * size, size)
        return [self._memory[i : i + size].view(dtype) for i in starts]
