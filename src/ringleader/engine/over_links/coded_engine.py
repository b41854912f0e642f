"""The engine for calls with a codec: the program of an algorithm, in coded frames."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ringleader.codec.codec import Codec
from ringleader.codec.registry import make_codec
from ringleader.engine.arrays import Bytes, bytes_of
from ringleader.engine.call import Call, PlanKey
from ringleader.engine.engine import Forms, NextHeader, Runs
from ringleader.engine.observer import ObservedCodec
from ringleader.engine.over_links.coded_frames import (
    CodedPlan,
    FrameMove,
    Slots,
    chunk_memory,
)
from ringleader.engine.over_links.frame_codec import FrameCodec
from ringleader.engine.over_links.lanes import IncomingHeader, OutgoingHeader, move_all
from ringleader.engine.over_links.programs import Programs
from ringleader.engine.reductions import divider
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link


class FramesOut:
    """The frames to one peer."""

    def __init__(
        self,
        link: Link,
        moves: list[FrameMove],
        header: bytes,
        outbox: Bytes,
        frames: FrameCodec,
    ) -> None:
        self.link = link
        self._moves = [m for m in moves if m.num_frames]
        self._header = OutgoingHeader(link, header)
        self._outbox = outbox
        self._frames = frames
        self._next = 0
        self._left: memoryview | None = None
        """What is left of the frame that is being sent."""

    def is_finished(self) -> bool:
        return not self._header and self._next == len(self._moves)

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        if self._header or self._left is not None:
            return True
        return self._frames.can_send(self._moves[self._next])

    def push(self) -> bool:
        """Send what can be sent; return whether anything moved."""
        if self._header:
            moved = self._header.push()
            if self._header or self._next == len(self._moves):
                return moved
        move = self._moves[self._next]
        if self._left is None:
            if not self._frames.can_send(move):
                return False
            self._left = bytes_of(self._frames.outgoing(move, self._outbox))
        sent = self.link.try_send(self._left)
        self._left = self._left[sent:]
        if not self._left:
            self._left = None
            self._frames.after_send(move)
            self._next += move.done == move.num_frames
        return sent > 0


class FramesIn:
    """The frames from one peer."""

    def __init__(
        self,
        link: Link,
        moves: list[FrameMove],
        header: bytes,
        inbox: Bytes,
        frames: FrameCodec,
    ) -> None:
        self.link = link
        self._moves = [m for m in moves if m.num_frames]
        self._header = IncomingHeader(link, header)
        self._inbox = inbox
        self._frames = frames
        self._next = 0
        self._filled = 0

    def is_finished(self) -> bool:
        return not self._header and self._next == len(self._moves)

    def has_room(self) -> bool:
        """Whether the peer's next bytes could be stored now."""
        return bool(self._header) or self._target() is not None

    def _target(self) -> Bytes | None:
        return self._frames.inbox(self._moves[self._next], self._inbox)

    def pull(self) -> bool:
        """Receive what is there and fits; return whether anything moved."""
        if self._header:
            return self._header.pull()
        target = self._target()
        if target is None:
            return False
        received = self.link.try_recv_into(bytes_of(target)[self._filled :])
        self._filled += received
        if self._filled == len(target):
            move, self._filled = self._moves[self._next], 0
            self._frames.take_in(move, target)
            self._next += move.done == move.num_frames
        return received > 0


class CodedEngine:
    """Runs coded programs over the links of one group. One thread at a time."""

    def __init__(
        self, rank: int, links: Mapping[int, Link], waiter: Waiter, programs: Programs
    ) -> None:
        self._rank = rank
        self._size = len(links) + 1
        self._links = links
        self._waiter = waiter
        self._programs = programs
        self._plans: dict[PlanKey, CodedPlan] = {}
        self.slots = Slots(self._size)

    def run(self, call: Call, header: bytes) -> None:
        """Move every chunk in frames; a mean is divided as float32, in cache."""
        assert call.codec is not None
        plan = self._plan(call.plan_key)
        codec: Codec = make_codec(call.codec, self._rank)
        if self._waiter.observer is not None:
            codec = ObservedCodec(codec, self._waiter.observer)
        headers = call.headers(header, self._rank, self._size)
        chunks = chunk_memory(call, plan.num_chunks)
        plan.bind(chunks, codec, self.slots)
        divide = None
        if call.reduce_op == "mean":
            divide = divider(torch.float32, self._size)
        frames = FrameCodec(codec, chunks, self.slots, divide)
        links = self._links
        outs = [
            FramesOut(links[p], moves, headers[p][0], outbox, frames)
            for (p, moves), outbox in zip(
                plan.sends.items(), plan.outboxes, strict=True
            )
        ]
        ins = [
            FramesIn(links[p], moves, headers[p][1], inbox, frames)
            for (p, moves), inbox in zip(plan.recvs.items(), plan.inboxes, strict=True)
        ]
        move_all(outs, ins, links, self._waiter)

    def _plan(self, key: PlanKey) -> CodedPlan:
        plan = self._plans.get(key)
        if plan is None:
            program, raw_peers = self._programs.make(key), self._programs.raw_peers(key)
            plan = self._plans[key] = CodedPlan(program, raw_peers)
        return plan

    def prepare(self, _call: Call, _next_header: NextHeader) -> Forms | None:
        """Encoding takes much longer than what preparing could save."""
        return None

    def progress(self, _call: Call) -> Runs:
        """Unknown: frames of the result become final in no simple order."""
        return ()
