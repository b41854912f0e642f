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

Inside a host of a hierarchy nothing is encoded: frames to and from these peers are raw,
that is float32 values. A raw frame of a result is sent when the result has been
decoded, so that all ranks of the host get the values that all other hosts decode.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
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

    @property
    def is_float32(self) -> bool:
        """Whether its values can be sent from where they are."""
        return all(v is None or v.is_float32 for v in (self.input, self.output))


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
        """The moves that send it encoded."""
        self.raw_sends: list[FrameMove] = []
        self.is_final = True
        self.num_coded = 0
        """Frames whose coded form exists or existed."""
        self.stored_in_output = False
        """Whether its coded form is stored in the chunk's output."""
        self.slots: list[Bytes] = []

    @property
    def is_encoded(self) -> bool:
        """Whether this rank encodes it."""
        write = self.write
        is_coded_copy = write and write.kind is Kind.COPY and not write.is_raw
        return bool(self.sends) and not is_coded_copy

    @property
    def moves(self) -> list[FrameMove]:
        """All moves that write or send it."""
        write = [] if self.write is None else [self.write]
        return [*self.sends, *self.raw_sends, *write]

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

    __slots__ = (
        "before",
        "chunk",
        "done",
        "is_raw",
        "kind",
        "num_frames",
        "peer",
        "version",
    )

    def __init__(self, move: Move, history: list[Version], *, is_raw: bool) -> None:
        self.kind, self.peer, self.chunk = move
        self.is_raw = is_raw
        self.done = 0
        self.num_frames = 0
        self.before = history[-1]
        """The version that is held when the move begins."""
        self.version = self.before
        """The version that is held when the move is done."""
        if self.kind is Kind.SEND:
            (self.before.raw_sends if is_raw else self.before.sends).append(self)
        else:
            self.before.is_final = False
            self.version = Version(self.chunk, self)
            history.append(self.version)

    def may_write(self) -> bool:
        """Whether the next frame may replace the version before."""
        frame, before = self.done, self.before
        if before.write is not None and before.write.done <= frame:
            return False
        if any(move.done <= frame for move in before.raw_sends):
            return False
        return not before.sends or before.num_coded > frame


class CodedPlan:
    """A program as versions of chunks, reusable for any tensor."""

    def __init__(self, program: Program, raw_peers: Container[int] = ()) -> None:
        self.sends: dict[int, list[FrameMove]] = {}
        self.recvs: dict[int, list[FrameMove]] = {}
        self.versions: dict[int, list[Version]] = {}
        for move in program:
            history = self.versions.setdefault(move.chunk, [Version(move.chunk, None)])
            lanes = self.sends if move.kind is Kind.SEND else self.recvs
            frame_move = FrameMove(move, history, is_raw=move.peer in raw_peers)
            lanes.setdefault(move.peer, []).append(frame_move)
        self.num_chunks = 1 + max(self.versions, default=0)
        self._sent = [v for h in self.versions.values() for v in h if v.sends]

    def bind(self, chunks: Sequence[ChunkMemory], codec: Codec, slots: Slots) -> None:
        """Reset all progress and give every version its slots for one call."""
        for chunk, history in self.versions.items():
            memory = chunks[chunk]
            num_frames = -(-memory.length // slots.frame)
            for version in history:
                version.num_coded, version.slots = 0, []
                for move in version.moves:
                    move.done, move.num_frames = 0, num_frames
            _check(history, memory)
            if memory.error_out is not None and not any(v.is_encoded for v in history):
                memory.error_out.fill(0)
        in_slots = []
        for version in self._sent:
            has_output = chunks[version.chunk].output is not None
            version.stored_in_output = version.is_final and has_output
            in_slots += [] if version.stored_in_output else [version]
        self._allocate(in_slots, chunks, codec, slots)

    def _allocate(
        self,
        in_slots: Sequence[Version],
        chunks: Sequence[ChunkMemory],
        codec: Codec,
        slots: Slots,
    ) -> None:
        """Set the slots of these versions, and the boxes of all lanes."""
        lengths = [min(chunks[v.chunk].length, slots.frame) for v in in_slots]
        sizes = [n for n in map(codec.num_bytes, lengths) for _ in range(NUM_SLOTS)]
        raw, coded = 4 * slots.frame, codec.num_bytes(slots.frame)
        sizes += [raw if moves[0].is_raw else coded for moves in self.recvs.values()]
        outbox = 0 if all(c.is_float32 for c in chunks) else raw
        sizes += [outbox if moves[0].is_raw else 0 for moves in self.sends.values()]
        given = slots.allocate(codec, sizes)
        for version in in_slots:
            version.slots, given = given[:NUM_SLOTS], given[NUM_SLOTS:]
        self.inboxes, self.outboxes = given[: len(self.recvs)], given[len(self.recvs) :]


def _check(history: list[Version], memory: ChunkMemory) -> None:
    """Raise if a sum without an output is not encoded as soon as it is computed."""
    for version in history:
        is_sum = version.write is not None and version.write.kind is Kind.REDUCE
        is_encoded = version.sends and not version.raw_sends
        if is_sum and memory.output is None and not is_encoded:
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

    def allocate(self, codec: Codec, sizes: Sequence[int]) -> list[Bytes]:
        """One slot each of these sizes, in bytes."""
        if not len(self.floats[0]):
            self.floats = [np.empty(self.frame, np.float32) for _ in self.floats]
        if len(self.spare) < codec.num_bytes(self.frame):
            self.spare = np.empty(codec.num_bytes(self.frame), np.uint8)
        starts = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)])
        if len(self._memory) < starts[-1]:
            self._memory = np.empty(starts[-1], np.uint8)
        pairs = zip(starts, sizes, strict=False)
        return [self._memory[start : start + size] for start, size in pairs]
