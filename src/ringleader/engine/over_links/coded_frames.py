"""A program whose chunks travel coded: versions of chunks, cut into frames.

Between two writes of a program a rank holds one version of a chunk. A version that is
sent has a coded form: either encoded here from its values, once, however many peers it
goes to; or, if the version arrived whole (COPY), the very bytes that arrived. So a
result is encoded by the one rank that computed it, and all ranks, including that one,
decode the same bytes: all end bit-identical.

Everything happens frame by frame: encoding, sending, decoding and forwarding. Coded
frames of partial sums live in a few slots that are used in turn. The coded frames of a
result that is forwarded are stored in the result's own output, which is larger, until
every peer has them: however long a peer is late, there is room for what arrives, and no
extra memory is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from ringleader.codec.codec import BLOCK, Codec
from ringleader.collectives.schedule import Kind, Move, Program
from ringleader.engine.arrays import Array, Bytes
from ringleader.engine.call import Call
from ringleader.engine.float_view import Floats, FloatView
from ringleader.errors import ConfigError

FRAME = 64 * BLOCK
"""Elements of a frame: 512 KiB of float32, which stay in a core's cache."""
MANY_RANKS = 8
"""In larger groups frames are shorter: every chunk on its way has slots, and scratch
memory has to stay small."""
NUM_SLOTS = 2


def frame_length(size: int) -> int:
    """Elements per frame in a group of ``size``; equal on all its ranks."""
    return max(BLOCK, FRAME * MANY_RANKS // max(size, MANY_RANKS) // BLOCK * BLOCK)


@dataclass(slots=True, eq=False)
class ChunkMemory:
    """Views of the arrays of a call that belong to one chunk."""

    length: int
    input: FloatView | None
    output: FloatView | None
    error_out: Floats | None


def chunk_memory(call: Call, num_chunks: int) -> list[ChunkMemory]:
    """The memory of every chunk of ``call``."""
    inputs, outputs, lengths = call.chunks(num_chunks)
    bounds = [slice(*pair) for pair in pairwise(accumulate(lengths, initial=0))]
    return [
        ChunkMemory(
            run.stop - run.start,
            None if source is None else _view(call, source, run),
            None if out is None else FloatView(out, call.dtype),
            _part(call.error_out, run),
        )
        for run, source, out in zip(bounds, inputs, outputs, strict=True)
    ]


def _view(call: Call, source: Array, run: slice) -> FloatView:
    return FloatView(source, call.dtype, _part(call.residual, run))


def _part(array: Array | None, run: slice) -> Array | None:
    return None if array is None else array[run]


class Version:
    """The values of a chunk that this rank holds from one write to the next."""

    def __init__(self, chunk: int, write: FrameMove | None) -> None:
        self.chunk = chunk
        self.write = write
        """The move that writes it; None for this rank's input."""
        self.sends: list[FrameMove] = []
        self.is_final = True
        self.num_coded = 0
        """Frames whose coded form exists or existed."""
        self.stored_in_output = False
        """Whether its coded form is stored in the chunk's output."""
        self.slots: list[Bytes] = []

    @property
    def is_encoded(self) -> bool:
        """Whether this rank encodes it."""
        is_copy = self.write is not None and self.write.kind is Kind.COPY
        return bool(self.sends) and not is_copy

    def has_room(self) -> bool:
        """Whether the next coded frame has a slot: its last content was sent."""
        if self.stored_in_output:
            return True
        oldest = self.num_coded - len(self.slots)
        return all(move.done > oldest for move in self.sends)

    def is_sent(self, frame: int) -> bool:
        """Whether ``frame`` was sent to every peer that gets it."""
        return all(move.done > frame for move in self.sends)


class FrameMove:
    """One move of a program, and how many of its frames are done."""

    __slots__ = ("before", "chunk", "done", "kind", "num_frames", "peer", "version")

    def __init__(self, move: Move, history: list[Version]) -> None:
        self.kind, self.peer, self.chunk = move
        self.done = 0
        self.num_frames = 0
        self.before = history[-1]
        """The version that is held when the move begins."""
        self.version = self.before
        """The version that is held when the move is done."""
        if self.kind is Kind.SEND:
            self.before.sends.append(self)
        else:
            self.before.is_final = False
            self.version = Version(self.chunk, self)
            history.append(self.version)

    def may_write(self) -> bool:
        """Whether the next frame may replace the version before."""
        frame, before = self.done, self.before
        if before.write is not None and before.write.done <= frame:
            return False
        return not before.sends or before.num_coded > frame


class CodedPlan:
    """A program as versions of chunks, reusable for any tensor."""

    def __init__(self, program: Program) -> None:
        self.sends: dict[int, list[FrameMove]] = {}
        self.recvs: dict[int, list[FrameMove]] = {}
        self.versions: dict[int, list[Version]] = {}
        for move in program:
            history = self.versions.setdefault(move.chunk, [Version(move.chunk, None)])
            lanes = self.sends if move.kind is Kind.SEND else self.recvs
            lanes.setdefault(move.peer, []).append(FrameMove(move, history))
        self.num_chunks = 1 + max(self.versions, default=0)
        self._sent = [v for h in self.versions.values() for v in h if v.sends]

    def bind(self, chunks: Sequence[ChunkMemory], codec: Codec, slots: Slots) -> None:
        """Reset all progress and give every version its slots for one call."""
        for chunk, history in self.versions.items():
            memory = chunks[chunk]
            num_frames = -(-memory.length // slots.frame)
            for version in history:
                version.num_coded, version.slots = 0, []
                for move in (
                    *version.sends,
                    *([version.write] if version.write else []),
                ):
                    move.done, move.num_frames = 0, num_frames
            _check(history, memory)
            if memory.error_out is not None and not any(v.is_encoded for v in history):
                memory.error_out.fill(0)
        in_slots = []
        for version in self._sent:
            has_output = chunks[version.chunk].output is not None
            version.stored_in_output = version.is_final and has_output
            in_slots += [] if version.stored_in_output else [version] * NUM_SLOTS
        lengths = [chunks[v.chunk].length for v in in_slots]
        given = slots.allocate(codec, [*lengths, *(slots.frame for _ in self.recvs)])
        for i, version in enumerate(in_slots[::NUM_SLOTS]):
            version.slots = given[i * NUM_SLOTS : (i + 1) * NUM_SLOTS]
        self.inboxes = given[len(lengths) :]


def _check(history: list[Version], memory: ChunkMemory) -> None:
    """Raise if a sum without an output is not sent as soon as it is computed."""
    for version in history:
        is_sum = version.write is not None and version.write.kind is Kind.REDUCE
        if is_sum and memory.output is None and not version.sends:
            text = "this algorithm keeps partial sums, which a coded call cannot"
            raise ConfigError(f"{text}; choose another algorithm, or no codec")


class Slots:
    """The memory of coded frames; one per group, reused."""

    def __init__(self, size: int) -> None:
        self.frame = frame_length(size)
        self.floats = [np.empty(0, np.float32)] * 2
        """Room for the values of two frames."""
        self.spare: Bytes = np.empty(0, np.uint8)
        """Room to encode one frame in."""
        self._memory: Bytes = np.empty(0, np.uint8)

    def allocate(self, codec: Codec, lengths: Sequence[int]) -> list[Bytes]:
        """One slot each for coded frames of chunks of these lengths."""
        if not len(self.floats[0]):
            self.floats = [np.empty(self.frame, np.float32) for _ in self.floats]
        if len(self.spare) < codec.num_bytes(self.frame):
            self.spare = np.empty(codec.num_bytes(self.frame), np.uint8)
        sizes = [codec.num_bytes(min(n, self.frame)) for n in lengths]
        starts = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
        if len(self._memory) < starts[-1]:
            self._memory = np.empty(starts[-1], np.uint8)
        pairs = zip(starts, sizes, strict=False)
        return [self._memory[start : start + size] for start, size in pairs]
