"""A program whose chunks travel coded: versions of chunks, cut into frames.

Between two writes of a program a rank holds one version of a chunk. A version that is
sent has a coded form: encoded here from its values, once, whoever it goes to; or, where
the version arrived whole (COPY), the very bytes that arrived. So a result is encoded by
the one rank that computed it, everybody decodes those bytes, that rank as well, and all
end bit-identical.

Frames are the unit of everything: encoded, sent, decoded and forwarded one by one. What
is coded on its way to a sum lives in a few slots that take turns. A result that is
passed on stays in its own home, which is the larger, until everybody has it: however
long a peer keeps us waiting, there is room for what arrives, and no memory is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.codec.codec import BLOCK, Codec
from ringleader.collectives.schedule import Kind, Move, Program
from ringleader.engine.float_view import Floats, Run
from ringleader.errors import ConfigError

FRAME = 64 * BLOCK
"""Elements of a frame: 512 KiB of float32, which stay in a core's cache."""
MANY_RANKS = 8
"""Beyond, frames are shorter: every chunk on its way has slots, and scratch memory has
to stay small."""
NUM_SLOTS = 2

Bytes = NDArray[np.uint8]


def frame_length(size: int) -> int:
    """Elements per frame in a group of ``size``; equal on all its ranks."""
    return max(BLOCK, FRAME * MANY_RANKS // max(size, MANY_RANKS) // BLOCK * BLOCK)


@dataclass(slots=True, eq=False)
class Chunk:
    """The memory of one chunk in one call."""

    length: int
    source: Run | None
    """What this rank brings."""
    home: Run | None
    """Where the result goes."""
    error_out: Floats | None = None
    """Where to write what our encoding of it lost."""


class Version:
    """What this rank holds of a chunk from one write to the next."""

    def __init__(self, chunk: int, write: Part | None) -> None:
        self.chunk = chunk
        self.write = write
        """The move that made it; None: it is what the rank brought."""
        self.sends: list[Part] = []
        self.is_final = True
        self.made = 0
        """Frames that have had their coded form."""
        self.stored_in_output = False
        """Whether its coded form is in its home."""
        self.slots: list[Bytes] = []

    @property
    def is_encoded(self) -> bool:
        """Whether this rank makes its coded form itself."""
        is_copy = self.write is not None and self.write.kind is Kind.COPY
        return bool(self.sends) and not is_copy

    def has_room(self) -> bool:
        """Whether the next frame has a place: everybody has sent what was there."""
        if self.stored_in_output:
            return True
        oldest = self.made - len(self.slots)
        return all(part.done > oldest for part in self.sends)

    def is_sent(self, frame: int) -> bool:
        """Whether everybody has ``frame``."""
        return all(part.done > frame for part in self.sends)


class Part:
    """One move of a program, and how many of its frames are done."""

    __slots__ = ("before", "chunk", "done", "kind", "num_frames", "peer", "version")

    def __init__(self, move: Move, history: list[Version]) -> None:
        self.kind, self.peer, self.chunk = move
        self.done = 0
        self.num_frames = 0
        self.before = history[-1]
        """The version that is held when the move begins."""
        self.version = self.before
        """And when it is done."""
        if self.kind is Kind.SEND:
            self.before.sends.append(self)
        else:
            self.before.is_final = False
            self.version = Version(self.chunk, self)
            history.append(self.version)

    def may_write(self) -> bool:
        """Whether the next frame may replace what is held of it."""
        frame, before = self.done, self.before
        if before.write is not None and before.write.done <= frame:
            return False
        return not before.sends or before.made > frame


class Parts:
    """A program as versions of chunks; reusable for any tensor."""

    def __init__(self, program: Program) -> None:
        self.sends: dict[int, list[Part]] = {}
        self.recvs: dict[int, list[Part]] = {}
        self.versions: dict[int, list[Version]] = {}
        for move in program:
            history = self.versions.setdefault(move.chunk, [Version(move.chunk, None)])
            lanes = self.sends if move.kind is Kind.SEND else self.recvs
            lanes.setdefault(move.peer, []).append(Part(move, history))
        self.num_chunks = 1 + max(self.versions, default=0)
        self._sent = [v for h in self.versions.values() for v in h if v.sends]

    def bind(self, chunks: Sequence[Chunk], codec: Codec, slots: Slots) -> None:
        """Get ready for one call."""
        for chunk, history in self.versions.items():
            memory = chunks[chunk]
            num_frames = -(-memory.length // slots.frame)
            for version in history:
                version.made, version.slots = 0, []
                for part in (
                    *version.sends,
                    *([version.write] if version.write else []),
                ):
                    part.done, part.num_frames = 0, num_frames
            _check(history, memory)
            if memory.error_out is not None and not any(v.is_encoded for v in history):
                memory.error_out.fill(0)
        passing = []
        for version in self._sent:
            has_home = chunks[version.chunk].home is not None
            version.stored_in_output = version.is_final and has_home
            passing += [] if version.stored_in_output else [version] * NUM_SLOTS
        lengths = [chunks[v.chunk].length for v in passing]
        given = slots.give(codec, [*lengths, *(slots.frame for _ in self.recvs)])
        for i, version in enumerate(passing[::NUM_SLOTS]):
            version.slots = given[i * NUM_SLOTS : (i + 1) * NUM_SLOTS]
        self.inboxes = given[len(lengths) :]


def _check(history: list[Version], memory: Chunk) -> None:
    """A sum that has no home passes through: it is sent as soon as it is made."""
    for version in history:
        is_sum = version.write is not None and version.write.kind is Kind.REDUCE
        if is_sum and memory.home is None and not version.sends:
            raise ConfigError("this algorithm keeps sums that nothing coded can keep")


class Slots:
    """The memory of coded frames; one per group, reused."""

    def __init__(self, size: int) -> None:
        self.frame = frame_length(size)
        self.floats = [np.empty(0, np.float32)] * 2
        """Room for the values of two frames."""
        self.spare: Bytes = np.empty(0, np.uint8)
        """Room to encode one in."""
        self._memory: Bytes = np.empty(0, np.uint8)

    def give(self, codec: Codec, lengths: Sequence[int]) -> list[Bytes]:
        """One slot each for frames of chunks of these lengths."""
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
