"""A program made ready to run: its moves as flows of bytes that wait for one another.

A flow is one move with a progress mark, ``done``. Program order on a chunk becomes:
a flow may advance to byte x once every earlier flow it follows on that chunk has passed
x. That is all the engine needs to forward bytes as they arrive (cut-through) and still
compute what the program says.

A chunk has a source (what the rank brings, never written) and a home (where the result
goes). A chunk that only passes through has neither: it lives in a small window that
wraps around, and whoever writes it stays less than a window ahead of who reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import Kind, Program
from ringleader.engine.arrays import bytes_of
from ringleader.errors import InternalError

Array = NDArray[Any]


class Flow:
    """One move, its memory and how far it is. All counts are bytes."""

    __slots__ = (
        "after",
        "bytes",
        "chunk",
        "done",
        "epoch",
        "home",
        "is_last",
        "kind",
        "num_bytes",
        "own",
        "peer",
        "readers",
        "wrap",
    )

    def __init__(self, kind: Kind, peer: int, chunk: int) -> None:
        self.kind = kind
        self.peer = peer
        self.chunk = chunk
        self.epoch = 0
        """Counts how often the chunk was replaced so far: windows are per epoch."""
        self.is_last = False
        """Whether nothing writes the chunk after it."""
        self.after: list[Flow] = []
        self.readers: list[Flow] = []
        self.done = 0
        self.num_bytes = 0
        self.wrap = 0
        """Length of the window the chunk passes through; 0 when it has a home."""
        self.bytes = memoryview(b"")
        self.own: Array | None = None
        self.home: Array | None = None

    def limit(self) -> int:
        """How far this flow may advance now."""
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
        for flows in self.by_chunk.values():
            _link_up(flows)
            writes = [flow for flow in flows if flow.kind is not Kind.SEND]
            if writes:
                writes[-1].is_last = True
        self.num_chunks = 1 + max(self.by_chunk, default=0)

    def bind(
        self,
        sources: Sequence[Array | None],
        homes: Sequence[Array | None],
        lengths: Sequence[int],
        windows: Windows,
    ) -> None:
        """Give every flow its memory for one call.

        Per chunk: what the rank brings, where the result goes, and how many elements it
        has. A chunk that is received without a home gets a window per epoch.
        """
        transient = {
            (flow.chunk, flow.epoch): None
            for flow in self.flows
            if flow.kind is not Kind.SEND
            and homes[flow.chunk] is None
            and lengths[flow.chunk]
        }
        given = dict(zip(transient, windows.give(len(transient)), strict=True))
        for chunk, flows in self.by_chunk.items():
            held = sources[chunk]
            for flow in flows:
                flow.done = flow.num_bytes = 0
                if not lengths[chunk]:
                    continue
                window = given.get((chunk, flow.epoch))
                if flow.kind is not Kind.SEND:
                    flow.own = held
                    held = flow.home = homes[chunk] if window is None else window
                if held is None:
                    raise InternalError(f"chunk {chunk} is moved but nobody holds it")
                flow.num_bytes = lengths[chunk] * held.itemsize
                flow.wrap = held.nbytes if held is window else 0
                flow.bytes = bytes_of(held)

    def is_written(self, chunk: int) -> bool:
        """Whether any move of this rank writes ``chunk``."""
        flows = self.by_chunk.get(chunk, [])
        return any(f.kind is not Kind.SEND for f in flows)

    def complete_bytes(self, chunk: int) -> int:
        """How much of ``chunk`` holds its final value on this rank."""
        writes = [f for f in self.by_chunk.get(chunk, []) if f.kind is not Kind.SEND]
        return writes[-1].done if writes else -1

    def release(self) -> None:
        """Forget the memory of the call, so that tensors can be freed."""
        for flow in self.flows:
            flow.bytes = memoryview(b"")
            flow.own = flow.home = None


def _link_up(flows: list[Flow]) -> None:
    """Program order on one chunk: sends follow the last write, writes follow all."""
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
    """All windows of one call together, so that scratch stays small whatever comes."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)

    def room(self, num_chunks: int) -> int:
        """Bytes that every window has, however many of the chunks need one or two."""
        return self._size(2 * num_chunks)

    def _size(self, count: int) -> int:
        # Multiples of 64: every dtype fits a whole number of times.
        return max(64, min(self.LIMIT_BYTES // count, 1 << 20) // 64 * 64)

    def give(self, count: int) -> list[Array]:
        """``count`` equal windows, as arrays of ``dtype``."""
        if not count:
            return []
        if not self._memory.size:
            self._memory = np.empty(self.LIMIT_BYTES, np.uint8)
        size = self._size(count)
        starts = range(0, count * size, size)
        return [self._memory[i : i + size].view(self.dtype) for i in starts]
