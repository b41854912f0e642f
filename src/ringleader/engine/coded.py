"""Run a program over links with a codec in between: fewer bytes, the same moves.

Encode at the sender, decode and add at the receiver. What a rank loses by encoding, it
can be told: every element of an all_reduce is encoded exactly once by every rank, on
its way to a sum or as the result, so what all ranks lost adds up to what the result
lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ringleader.codec.codec import Codec
from ringleader.collectives.schedule import Kind
from ringleader.engine.arrays import bytes_of
from ringleader.engine.coded_frames import Bytes, Chunk, Part, Parts, Slots, Version
from ringleader.engine.float_view import Floats, Run
from ringleader.engine.lanes import IncomingHeader, OnMismatch, OutgoingHeader, move_all
from ringleader.engine.waiter import Waiter
from ringleader.errors import ProtocolError
from ringleader.transport.link import Link

Finish = Callable[[Floats], object]
"""What turns a sum into the result, in place."""


class FrameCodec:
    """Where frames of one call are encoded and decoded."""

    def __init__(
        self,
        codec: Codec,
        chunks: Sequence[Chunk],
        slots: Slots,
        finish: Finish | None,
    ) -> None:
        self._codec = codec
        self._chunks = chunks
        self._finish = finish
        self._frame = slots.frame
        self._a, self._b = slots.floats
        self._coded = slots.spare

    def where(self, chunk: int, frame: int) -> slice:
        """The elements of a frame."""
        start = frame * self._frame
        return slice(start, min(start + self._frame, self._chunks[chunk].length))

    def place(self, version: Version, frame: int) -> Bytes:
        """Where the coded form of a frame is: all of it, exactly."""
        at = self.where(version.chunk, frame)
        size = self._codec.num_bytes(at.stop - at.start)
        if not version.stored_in_output:
            return version.slots[frame % len(version.slots)][:size]
        home = _some(self._chunks[version.chunk].home).bytes(at)
        if size <= len(home):
            return home[:size]
        # A scale may be more than the values: only in a last frame of a few.
        if not version.slots:
            version.slots = [np.empty(size, np.uint8)]
        return version.slots[0]

    def inbox(self, part: Part, memory: Bytes) -> Bytes | None:
        """Where the next frame of ``part`` is to arrive; None while it has to wait."""
        if not part.may_write():
            return None
        version = part.version
        has_home = self._chunks[part.chunk].home is not None
        waits = part.kind is Kind.REDUCE and has_home  # it is encoded later
        if version.sends and not waits and not version.has_room():
            return None
        if part.kind is Kind.COPY and version.sends:
            return self.place(version, part.done)
        at = self.where(part.chunk, part.done)
        return memory[: self._codec.num_bytes(at.stop - at.start)]

    def can_encode(self, version: Version) -> bool:
        """Whether the next frame can be made: values are there, and room."""
        write = version.write
        if not version.is_encoded or not version.has_room():
            return False
        if write is None:
            return True
        has_home = self._chunks[version.chunk].home is not None
        return has_home and write.done > version.made

    def encode(self, version: Version) -> None:
        """Make the next frame from the values that are held."""
        memory = self._chunks[version.chunk]
        held = memory.source if version.write is None else memory.home
        at = self.where(version.chunk, version.made)
        self._encode(version, at, _some(held).read(at, self._a[: at.stop - at.start]))

    def _encode(self, version: Version, at: slice, values: Floats) -> None:
        place = self.place(version, version.made)
        data = self._coded[: len(place)] if version.stored_in_output else place
        error_out = self._chunks[version.chunk].error_out
        self._codec.encode(values, data, None if error_out is None else error_out[at])
        if version.stored_in_output:  # only now: the values may have been there
            np.copyto(place, data)
        version.made += 1

    def take_in(self, part: Part, data: Bytes) -> None:
        """A frame has arrived: add it to what is held, or keep it."""
        version = part.version
        if part.kind is Kind.COPY:
            if not version.stored_in_output:
                self._keep(part, data)
            version.made += 1
        else:
            self._add(part, data)
        part.done += 1

    def _keep(self, part: Part, data: Bytes) -> None:
        home = self._chunks[part.chunk].home
        if home is not None:
            at = self.where(part.chunk, part.done)
            self._decode(part.peer, data, home, at, is_final=part.version.is_final)

    def _add(self, part: Part, data: Bytes) -> None:
        memory, at = self._chunks[part.chunk], self.where(part.chunk, part.done)
        values = self._b[: at.stop - at.start]
        self._read(part.peer, data, values)
        held = memory.source if part.before.write is None else memory.home
        mine = _some(held).read(at, self._a[: len(values)])
        if memory.home is not None:
            total = np.add(mine, values, memory.home.room(at, values))
            if self._finish and part.version.is_final and not part.version.sends:
                self._finish(total)
            memory.home.write(at, total)
        else:
            total = self._a[: len(values)]
            self._encode(part.version, at, np.add(mine, values, total))

    def settle(self, version: Version, frame: int) -> None:
        """Everybody has this frame of a result: now we read it as well."""
        at = self.where(version.chunk, frame)
        peer = -1 if version.write is None else version.write.peer
        place = self.place(version, frame)
        data = self._coded[: len(place)]
        np.copyto(data, place)  # it makes room for what it stands for
        home = _some(self._chunks[version.chunk].home)
        self._decode(peer, data, home, at, is_final=True)

    def _decode(
        self, peer: int, data: Bytes, home: Run, at: slice, *, is_final: bool
    ) -> None:
        values = home.room(at, self._b[: at.stop - at.start])
        self._read(peer, data, values)
        if self._finish and is_final:
            self._finish(values)
        home.write(at, values)

    def _read(self, peer: int, data: Bytes, values: Floats) -> None:
        try:
            self._codec.decode(data, values)
        except ValueError as exc:
            raise ProtocolError(peer, f"sent {self._codec.name}: {exc}") from exc


class CodedOut:
    """Everything this rank sends to one peer in one coded operation, in order."""

    def __init__(
        self, link: Link, parts: list[Part], header: bytes, frames: FrameCodec
    ) -> None:
        self.link = link
        self._parts = [p for p in parts if p.num_frames]
        self._header = OutgoingHeader(link, header)
        self._frames = frames
        self._at = 0
        self._sent = 0

    def is_finished(self) -> bool:
        return not self._header and self._at == len(self._parts)

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        if self._header:
            return True
        part = self._parts[self._at]
        return part.version.made > part.done or self._frames.can_encode(part.version)

    def push(self) -> bool:
        """Send what can be sent; True when something moved."""
        if self._header:
            moved = self._header.push()
            if self._header or self._at == len(self._parts):
                return moved
        part = self._parts[self._at]
        version = part.version
        if version.made == part.done:
            if not self._frames.can_encode(version):
                return False
            self._frames.encode(version)
        place = self._frames.place(version, part.done)
        sent = self.link.try_send(bytes_of(place)[self._sent :])
        self._sent += sent
        if self._sent == len(place):
            self._sent = 0
            part.done += 1
            self._at += part.done == part.num_frames
            if version.stored_in_output and version.is_sent(part.done - 1):
                self._frames.settle(version, part.done - 1)
        return sent > 0


class CodedIn:
    """Everything this rank receives from one peer in one coded operation, in order."""

    def __init__(
        self,
        link: Link,
        parts: list[Part],
        header: IncomingHeader,
        inbox: Bytes,
        frames: FrameCodec,
    ) -> None:
        self.link = link
        self._parts = [p for p in parts if p.num_frames]
        self._header = header
        self._inbox = inbox
        self._frames = frames
        self._at = 0
        self._filled = 0

    def is_finished(self) -> bool:
        return not self._header and self._at == len(self._parts)

    def has_room(self) -> bool:
        """Whether what the peer sends next could be taken now."""
        return bool(self._header) or self._place() is not None

    def _place(self) -> Bytes | None:
        return self._frames.inbox(self._parts[self._at], self._inbox)

    def pull(self) -> bool:
        """Receive what is there and fits; True when something moved."""
        if self._header:
            return self._header.pull()
        place = self._place()
        if place is None:
            return False
        received = self.link.try_recv_into(bytes_of(place)[self._filled :])
        self._filled += received
        if self._filled == len(place):
            part, self._filled = self._parts[self._at], 0
            self._frames.take_in(part, place)
            self._at += part.done == part.num_frames
        return received > 0


class CodedEngine:
    """Runs programs over the links of one group with a codec. One thread at a time."""

    def __init__(self, links: Mapping[int, Link], waiter: Waiter) -> None:
        self._links = links
        self._waiter = waiter
        self.slots = Slots(len(links) + 1)

    def run(
        self,
        parts: Parts,
        chunks: Sequence[Chunk],
        codec: Codec,
        *,
        headers: Mapping[int, tuple[bytes, bytes]],
        on_mismatch: OnMismatch,
        finish: Finish | None = None,
    ) -> None:
        """Move every chunk; ``headers``: peer -> (ours, expected).

        ``finish`` is done to results, while they are in the cache.
        """
        links = self._links
        parts.bind(chunks, codec, self.slots)
        frames = FrameCodec(codec, chunks, self.slots, finish)
        outs = [
            CodedOut(links[p], some, headers[p][0], frames)
            for p, some in parts.sends.items()
        ]
        ins = [
            CodedIn(
                links[p],
                some,
                IncomingHeader(links[p], headers[p][1], on_mismatch),
                inbox,
                frames,
            )
            for (p, some), inbox in zip(parts.recvs.items(), parts.inboxes, strict=True)
        ]
        move_all(outs, ins, links, self._waiter)


def _some(run: Run | None) -> Run:
    assert run is not None
    return run
