"""Encoding and decoding of the frames of one coded call.

Frames are encoded at the sender and decoded and added at the receiver. A call can ask
for the encoding error: every element of an all_reduce is encoded exactly once by every
rank, on its way to a sum or as the result, so the errors of all ranks add up to the
difference between the result and the exact sum. Raw frames lose nothing: in a hierarchy
only the local roots encode, and the others report an error of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringleader.codec.codec import Codec
from ringleader.collectives.schedule import Kind
from ringleader.engine.arrays import Bytes
from ringleader.engine.float_view import Floats, FloatView
from ringleader.engine.over_links.coded_frames import (
    ChunkMemory,
    FrameMove,
    Slots,
    Version,
)
from ringleader.engine.reductions import Divide
from ringleader.errors import ProtocolError


class FrameCodec:
    """Encodes, decodes and adds the frames of one call, in the memory of its chunks."""

    def __init__(
        self,
        codec: Codec,
        chunks: Sequence[ChunkMemory],
        slots: Slots,
        divide: Divide | None,
    ) -> None:
        self._codec = codec
        self._chunks = chunks
        self._divide = divide
        self._frame = slots.frame
        self._a, self._b = slots.floats
        self._coded = slots.spare

    def elements(self, chunk: int, frame: int) -> slice:
        """The elements of a frame in its chunk."""
        start = frame * self._frame
        return slice(start, min(start + self._frame, self._chunks[chunk].length))

    def coded(self, version: Version, frame: int) -> Bytes:
        """The memory of the coded form of a frame, exactly as long as that."""
        at = self.elements(version.chunk, frame)
        size = self._codec.num_bytes(at.stop - at.start)
        if not version.stored_in_output:
            return version.slots[frame % len(version.slots)][:size]
        output = _present(self._chunks[version.chunk].output).bytes(at)
        if size <= len(output):
            return output[:size]
        # A scale can be longer than the values, but only in a short last frame.
        if not version.slots:
            version.slots = [np.empty(size, np.uint8)]
        return version.slots[0]

    def inbox(self, move: FrameMove, memory: Bytes) -> Bytes | None:
        """Memory for the next frame of ``move``; None while it has to wait."""
        if not move.may_write():
            return None
        version = move.version
        output = self._chunks[move.chunk].output
        is_coded_copy = move.kind is Kind.COPY and not move.is_raw
        is_encoded_later = output is not None and not is_coded_copy
        if version.sends and not is_encoded_later and not version.has_room():
            return None
        if is_coded_copy and version.sends:
            return self.coded(version, move.done)
        at = self.elements(move.chunk, move.done)
        if not move.is_raw:
            return memory[: self._codec.num_bytes(at.stop - at.start)]
        if move.kind is Kind.COPY and output is not None and output.is_float32:
            return output.bytes(at)
        return memory[: 4 * (at.stop - at.start)]

    def can_send(self, move: FrameMove) -> bool:
        """Whether the next frame of ``move`` can be sent now."""
        version = move.version
        if not move.is_raw:
            return version.num_coded > move.done or self._can_encode(version)
        if version.stored_in_output:
            return version.is_sent(move.done)  # and so decoded
        return version.write is None or version.write.done > move.done

    def outgoing(self, move: FrameMove, memory: Bytes) -> Bytes:
        """The next frame of ``move``, which can be sent; ``memory``: room for it."""
        version = move.version
        if not move.is_raw:
            if version.num_coded == move.done:
                self._encode_next(version)
            return self.coded(version, move.done)
        chunk, at = self._chunks[move.chunk], self.elements(move.chunk, move.done)
        is_input = version.write is None and not version.stored_in_output
        held = _present(chunk.input if is_input else chunk.output)
        room = memory[: 4 * (at.stop - at.start)].view(np.float32)
        return held.read(at, room).view(np.uint8)

    def after_send(self, move: FrameMove) -> None:
        """Count a frame of ``move`` that was sent; decode it if it was the last one."""
        version, frame = move.version, move.done
        move.done += 1
        if version.stored_in_output and not move.is_raw and version.is_sent(frame):
            self._decode_result(version, frame)

    def _can_encode(self, version: Version) -> bool:
        """Whether the next frame has its values and room for its coded form."""
        write = version.write
        if not version.is_encoded or not version.has_room():
            return False
        if write is None:
            return True
        has_output = self._chunks[version.chunk].output is not None
        return has_output and write.done > version.num_coded

    def _encode_next(self, version: Version) -> None:
        """Encode the next frame from the values that are held."""
        memory = self._chunks[version.chunk]
        held = memory.input if version.write is None else memory.output
        at = self.elements(version.chunk, version.num_coded)
        values = _present(held).read(at, self._a[: at.stop - at.start])
        self._encode(version, at, values)

    def _encode(self, version: Version, at: slice, values: Floats) -> None:
        target = self.coded(version, version.num_coded)
        data = self._coded[: len(target)] if version.stored_in_output else target
        error_out = self._chunks[version.chunk].error_out
        self._codec.encode(values, data, None if error_out is None else error_out[at])
        if version.stored_in_output:  # only now: the values may have been there
            np.copyto(target, data)
        version.num_coded += 1

    def take_in(self, move: FrameMove, data: Bytes) -> None:
        """Process a frame that has arrived: add it to what is held, or keep it."""
        version = move.version
        if move.kind is Kind.REDUCE:
            self._add(move, data)
        elif move.is_raw:
            self._keep_raw(move, data)
        else:
            if not version.stored_in_output:
                self._keep(move, data)
            version.num_coded += 1
        move.done += 1

    def _keep_raw(self, move: FrameMove, data: Bytes) -> None:
        output = self._chunks[move.chunk].output
        if output is not None and not output.is_float32:
            at = self.elements(move.chunk, move.done)
            output.write(at, data.view(np.float32))

    def _keep(self, move: FrameMove, data: Bytes) -> None:
        output = self._chunks[move.chunk].output
        if output is not None:
            at = self.elements(move.chunk, move.done)
            self._decode(move.peer, data, output, at, is_final=move.version.is_final)

    def _add(self, move: FrameMove, data: Bytes) -> None:
        memory, at = self._chunks[move.chunk], self.elements(move.chunk, move.done)
        if move.is_raw:
            values = data.view(np.float32)
        else:
            values = self._b[: at.stop - at.start]
            self._read(move.peer, data, values)
        held = memory.input if move.before.write is None else memory.output
        mine = _present(held).read(at, self._a[: len(values)])
        if memory.output is not None:
            total = np.add(mine, values, memory.output.room(at, values))
            if self._divide and move.version.is_final and not move.version.sends:
                self._divide(total)
            memory.output.write(at, total)
        else:
            total = self._a[: len(values)]
            self._encode(move.version, at, np.add(mine, values, total))

    def _decode_result(self, version: Version, frame: int) -> None:
        """Decode a frame that is stored in the output, once every peer has it."""
        at = self.elements(version.chunk, frame)
        peer = -1 if version.write is None else version.write.peer
        stored = self.coded(version, frame)
        data = self._coded[: len(stored)]
        np.copyto(data, stored)  # its values are written to the same memory
        output = _present(self._chunks[version.chunk].output)
        self._decode(peer, data, output, at, is_final=True)

    def _decode(
        self, peer: int, data: Bytes, output: FloatView, at: slice, *, is_final: bool
    ) -> None:
        values = output.room(at, self._b[: at.stop - at.start])
        self._read(peer, data, values)
        if self._divide and is_final:
            self._divide(values)
        output.write(at, values)

    def _read(self, peer: int, data: Bytes, values: Floats) -> None:
        try:
            self._codec.decode(data, values)
        except ValueError as exc:
            raise ProtocolError(peer, f"sent {self._codec.name}: {exc}") from exc


def _present(view: FloatView | None) -> FloatView:
    assert view is not None
    return view
