"""Run a plan over links: one thread, all lanes at once, bytes forwarded on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import Kind
from ringleader.engine.arrays import bytes_of
from ringleader.engine.flow import Flow, Plan
from ringleader.engine.lanes import IncomingHeader, OnMismatch, OutgoingHeader, move_all
from ringleader.engine.reductions import Combine
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link

CALL_BYTES = 1 << 20
"""At most this much per system call: enough to be cheap, little enough that the other
direction is never starved."""
INBOX_BYTES = 512 << 10
"""What arrives for a reduction lands here first, and is added while still in cache."""
ALL_INBOXES_BYTES = 8 << 20


class OutLane:
    """Everything this rank sends to one peer in one operation, in order."""

    __slots__ = ("_at", "_flows", "_header", "link")

    def __init__(self, link: Link, flows: list[Flow], header: bytes) -> None:
        self.link = link
        self._flows = [f for f in flows if f.num_bytes]
        self._header = OutgoingHeader(link, header)
        self._at = 0

    def is_finished(self) -> bool:
        return not self._header and self._at == len(self._flows)

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        if self._header:
            return True
        flow = self._flows[self._at]
        return flow.limit() > flow.done

    def push(self) -> bool:
        """Send what can be sent; True when something moved."""
        if self._header:
            moved = self._header.push()
            if self._header or self._at == len(self._flows):
                return moved
        flow = self._flows[self._at]
        start, limit = flow.done, flow.limit()
        if start == limit:
            return False
        lo = start % flow.wrap if flow.wrap else start
        hi = min(lo + min(limit - start, CALL_BYTES), flow.wrap or limit)
        sent = self.link.try_send(flow.bytes[lo:hi])
        flow.done = start + sent
        if flow.done == flow.num_bytes:
            self._at += 1
        return sent > 0


class InLane:
    """Everything this rank receives from one peer in one operation, in order."""

    __slots__ = (
        "_at",
        "_combine",
        "_filled",
        "_flows",
        "_header",
        "_inbox",
        "_inbox_bytes",
        "_item",
        "_last",
        "link",
    )

    def __init__(
        self,
        link: Link,
        flows: list[Flow],
        header: IncomingHeader,
        inbox: NDArray[Any],
        combine: Combine | None,
        last: Combine | None,
    ) -> None:
        self.link = link
        self._flows = [f for f in flows if f.num_bytes]
        self._at = 0
        self._header = header
        self._filled = 0
        self._inbox = inbox
        self._inbox_bytes = bytes_of(inbox)
        self._item = inbox.itemsize
        self._combine = combine
        self._last = last

    def is_finished(self) -> bool:
        return not self._header and self._at == len(self._flows)

    def has_room(self) -> bool:
        """Whether what the peer sends next could be taken now."""
        if self._header:
            return True
        flow = self._flows[self._at]
        item = self._item if flow.kind is Kind.REDUCE else 1
        return flow.limit() >= flow.done + item

    def pull(self) -> bool:
        """Receive what is there and fits; True when something moved."""
        if self._header:
            return self._header.pull()
        flow = self._flows[self._at]
        start, limit = flow.done, flow.limit()
        if start == limit:
            return False
        lo = start % flow.wrap if flow.wrap else start
        hi = min(lo + min(limit - start, CALL_BYTES), flow.wrap or limit)
        if flow.kind is Kind.COPY:
            received = self.link.try_recv_into(flow.bytes[lo:hi])
            flow.done = start + received
        else:
            received = self._pull_and_combine(flow, lo, hi)
        if flow.done == flow.num_bytes:
            self._at += 1
        return received > 0

    def _pull_and_combine(self, flow: Flow, lo: int, hi: int) -> int:
        """Into the inbox, then add every whole element to what is held."""
        end = min(hi - lo, len(self._inbox_bytes)) // self._item * self._item
        if end <= self._filled:
            return 0
        received = self.link.try_recv_into(self._inbox_bytes[self._filled : end])
        filled = self._filled + received
        count = filled // self._item
        if count:
            combine = self._last if flow.is_last else self._combine
            assert combine is not None
            assert flow.own is not None
            assert flow.home is not None
            at, to = flow.done // self._item, lo // self._item
            # A source is addressed from the chunk's start, a window by its wrap.
            mine = to if flow.own is flow.home else at
            combine(
                flow.own[mine : mine + count],
                self._inbox[:count],
                flow.home[to : to + count],
            )
            flow.done += count * self._item
            rest = filled - count * self._item
            if rest:
                self._inbox_bytes[:rest] = self._inbox_bytes[filled - rest : filled]
            filled = rest
        self._filled = filled
        return received


class StreamEngine:
    """Runs plans over the links of one group. One thread at a time."""

    def __init__(self, links: Mapping[int, Link], waiter: Waiter) -> None:
        self._links = links
        self._waiter = waiter
        self._inbox: NDArray[np.uint8] = np.empty(0, np.uint8)

    def run(
        self,
        plan: Plan,
        *,
        headers: Mapping[int, tuple[bytes, bytes]],
        dtype: np.dtype[Any],
        combine: Combine | None,
        last: Combine | None,
        on_mismatch: OnMismatch,
    ) -> None:
        """Move every byte of a bound plan; ``headers``: peer -> (ours, expected).

        ``last`` combines where nothing is written afterwards: with it a total can
        become a mean while it is in the cache, and before others get it.
        """
        links = self._links
        outs = [OutLane(links[p], f, headers[p][0]) for p, f in plan.sends.items()]
        inboxes = self._inboxes(len(plan.recvs), dtype)
        ins = [
            InLane(
                links[p],
                flows,
                IncomingHeader(links[p], headers[p][1], on_mismatch),
                inbox,
                combine,
                last,
            )
            for (p, flows), inbox in zip(plan.recvs.items(), inboxes, strict=True)
        ]
        move_all(outs, ins, links, self._waiter)

    def _inboxes(self, count: int, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        if not count:
            return []
        size = min(INBOX_BYTES, ALL_INBOXES_BYTES // count) // 64 * 64
        if len(self._inbox) < count * size:
            self._inbox = np.empty(count * size, np.uint8)
        starts = range(0, count * size, size)
        return [self._inbox[i : i + size].view(dtype) for i in starts]
