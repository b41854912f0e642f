"""The engine for everything that is not small, coded or in shared memory.

It runs the program of an algorithm over links: one thread moves all lanes at once, and
bytes are forwarded and added as they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringleader.collectives.schedule import Kind, split
from ringleader.engine.arrays import Array, Bytes, bytes_of, storage_dtype
from ringleader.engine.call import Call, PeerHeaders, PlanKey
from ringleader.engine.engine import Forms, NextHeader, Runs
from ringleader.engine.over_links import prepared_messages
from ringleader.engine.over_links.flow import Flow, Plan, Windows
from ringleader.engine.over_links.lanes import IncomingHeader, OutgoingHeader, move_all
from ringleader.engine.over_links.message_swap import MessageSwap
from ringleader.engine.over_links.programs import Programs
from ringleader.engine.reductions import Combine, combine_and_divide
from ringleader.engine.waiter import Waiter
from ringleader.transport.link import Link

SYSCALL_BYTES = 1 << 20
"""Limit of one system call: large enough to be cheap, small enough that the other
direction is never starved."""
BEHIND_BYTES = 4 << 20
"""What goes to one peer is sent by a thread, where there is one, from this length on:
waking a thread takes as long as sending a few hundred kilobytes."""
INBOX_BYTES = 512 << 10
"""Values to be added arrive in an inbox of this size and are added while in cache."""
ALL_INBOXES_BYTES = 8 << 20
PASSING = frozenset({"reduce", "reduce_scatter", "gather", "scatter"})
"""Operations in which chunks pass through ranks that do not keep them. A chunk that
passes through must fit into its window as a whole: on a ring all ranks send before they
forward, and a rank that cannot store more would wait for others that wait for it."""


class FlowOut:
    """The flows to one peer."""

    __slots__ = ("_flows", "_header", "_is_behind", "_next", "_try_send", "link")

    def __init__(self, link: Link, flows: list[Flow], header: bytes) -> None:
        self.link = link
        self._flows = [f for f in flows if f.num_bytes]
        self._header = OutgoingHeader(link, header)
        self._next = 0
        num_bytes = sum(flow.num_bytes for flow in self._flows)
        self._is_behind = link.sends_behind and num_bytes >= BEHIND_BYTES
        self._try_send = link.try_send_behind if self._is_behind else link.try_send

    def is_finished(self) -> bool:
        return not self._header and self._next == len(self._flows)

    def has_work(self) -> bool:
        """Whether there is something to send now."""
        if self._header:
            return True
        flow = self._flows[self._next]
        return flow.limit() > flow.done

    def push(self) -> bool:
        """Send what can be sent; return whether anything moved."""
        if self._header:
            moved = self._header.push()
            if self._header or self._next == len(self._flows):
                return moved
        moved = self._push_flow()
        if moved and self._is_behind and self._next < len(self._flows):
            self._push_flow()  # so that the thread has work while we receive
        return moved

    def _push_flow(self) -> bool:
        flow = self._flows[self._next]
        start, limit = flow.done, flow.limit()
        if start == limit:
            return False
        lo = start % flow.wrap if flow.wrap else start
        hi = min(lo + min(limit - start, SYSCALL_BYTES), flow.wrap or limit)
        sent = self._try_send(flow.bytes[lo:hi])
        flow.done = start + sent
        if flow.done == flow.num_bytes:
            self._next += 1
        return sent > 0


class FlowIn:
    """The flows from one peer."""

    __slots__ = (
        "_combine",
        "_combine_last",
        "_filled",
        "_flows",
        "_header",
        "_inbox",
        "_inbox_bytes",
        "_item",
        "_next",
        "link",
    )

    def __init__(
        self,
        link: Link,
        flows: list[Flow],
        header: bytes,
        inbox: Array,
        combine: Combine | None,
        combine_last: Combine | None,
    ) -> None:
        self.link = link
        self._flows = [f for f in flows if f.num_bytes]
        self._next = 0
        self._header = IncomingHeader(link, header)
        self._filled = 0
        self._inbox = inbox
        self._inbox_bytes = bytes_of(inbox)
        self._item = inbox.itemsize
        self._combine = combine
        self._combine_last = combine_last

    def is_finished(self) -> bool:
        return not self._header and self._next == len(self._flows)

    def has_room(self) -> bool:
        """Whether the peer's next bytes could be stored now."""
        if self._header:
            return True
        flow = self._flows[self._next]
        item = self._item if flow.kind is Kind.REDUCE else 1
        return flow.limit() >= flow.done + item

    def pull(self) -> bool:
        """Receive what is there and fits; return whether anything moved."""
        if self._header:
            return self._header.pull()
        flow = self._flows[self._next]
        start, limit = flow.done, flow.limit()
        if start == limit:
            return False
        lo = start % flow.wrap if flow.wrap else start
        hi = min(lo + min(limit - start, SYSCALL_BYTES), flow.wrap or limit)
        if flow.kind is Kind.COPY:
            received = self.link.try_recv_into(flow.bytes[lo:hi])
            flow.done = start + received
        else:
            received = self._pull_and_combine(flow, lo, hi)
        if flow.done == flow.num_bytes:
            self._next += 1
        return received > 0

    def _pull_and_combine(self, flow: Flow, lo: int, hi: int) -> int:
        """Receive into the inbox, then add every complete element to what is held."""
        end = min(hi - lo, len(self._inbox_bytes)) // self._item * self._item
        if end <= self._filled:
            return 0
        received = self.link.try_recv_into(self._inbox_bytes[self._filled : end])
        filled = self._filled + received
        count = filled // self._item
        if count:
            combine = self._combine_last if flow.is_last else self._combine
            assert combine is not None
            assert flow.own is not None
            assert flow.target is not None
            at, to = flow.done // self._item, lo // self._item
            # An input is addressed from the chunk's start, a window by its wrap.
            mine = to if flow.own is flow.target else at
            combine(
                flow.own[mine : mine + count],
                self._inbox[:count],
                flow.target[to : to + count],
            )
            flow.done += count * self._item
            rest = filled - count * self._item
            if rest:
                self._inbox_bytes[:rest] = self._inbox_bytes[filled - rest : filled]
            filled = rest
        self._filled = filled
        return received


class StreamEngine:
    """Runs programs over the links of one group. One thread at a time."""

    def __init__(
        self, rank: int, links: Mapping[int, Link], waiter: Waiter, programs: Programs
    ) -> None:
        self._rank = rank
        self._size = len(links) + 1
        self._links = links
        self._waiter = waiter
        self._programs = programs
        self._plans: dict[PlanKey, Plan] = {}
        self._windows = Windows()
        self._messages = MessageSwap(waiter)
        self._inbox: Bytes = np.empty(0, np.uint8)
        self._bound: Plan | None = None
        """The plan whose flows say what of the last result is final."""

    def run(self, call: Call, header: bytes) -> None:
        """Move every byte, in as many steps as the windows require."""
        plan = self._plan(call.plan_key)
        headers = call.headers(header, self._rank, self._size)
        inputs, outputs, lengths = call.chunks(plan.num_chunks)
        dtype = storage_dtype(call.dtype)
        longest = step = max(lengths, default=0)
        if call.operation in PASSING and call.algorithm != "direct":
            step = self._windows.window_bytes(len(lengths)) // dtype.itemsize
        self._bound = plan if longest <= step else None
        for start in range(0, max(longest, 1), max(step, 1)):
            run = slice(start, start + step)
            plan.bind(
                [None if s is None else s[run] for s in inputs],
                [None if o is None else o[run] for o in outputs],
                [max(0, min(step, n - start)) for n in lengths],
                self._windows,
                dtype,
            )
            self._move(call, plan, headers, dtype)
        call.copy_own(plan.written)
        plan.release()
        if call.operation != "all_reduce":
            self._divide(call)

    def _plan(self, key: PlanKey) -> Plan:
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self._programs.make(key))
        return plan

    def _move(
        self, call: Call, plan: Plan, headers: PeerHeaders, dtype: np.dtype[Any]
    ) -> None:
        """Move every byte of a bound plan."""
        combine = combine_last = None
        if call.reduce_op != "none":
            combine = combine_last = call.combine()
            if call.operation == "all_reduce":
                # A total becomes a mean while it is in cache, before others get it.
                combine_last = combine_and_divide(combine, call.divide(self._size))
        links = self._links
        outs = [FlowOut(links[p], f, headers[p][0]) for p, f in plan.sends.items()]
        inboxes = self._inboxes(len(plan.recvs), dtype)
        ins = [
            FlowIn(links[p], flows, headers[p][1], inbox, combine, combine_last)
            for (p, flows), inbox in zip(plan.recvs.items(), inboxes, strict=True)
        ]
        move_all(outs, ins, links, self._waiter)

    def _divide(self, call: Call) -> None:
        divide = call.divide(self._size)
        if divide is not None:
            for out in call.outputs:
                if out is not None:
                    divide(out)

    def _inboxes(self, count: int, dtype: np.dtype[Any]) -> list[Array]:
        if not count:
            return []
        size = min(INBOX_BYTES, ALL_INBOXES_BYTES // count) // 64 * 64
        if len(self._inbox) < count * size:
            self._inbox = np.empty(count * size, np.uint8)
        starts = range(0, count * size, size)
        return [self._inbox[i : i + size].view(dtype) for i in starts]

    def prepare(self, call: Call, next_header: NextHeader) -> Forms | None:
        """A call of one message per peer, in which nothing is forwarded."""
        plan, dtype = self._plan(call.plan_key), storage_dtype(call.dtype)
        num_chunks = max(plan.num_chunks, len(call.lengths))
        most = self._windows.window_bytes(num_chunks) // dtype.itemsize
        if max(call.lengths, default=0) > most:  # ``run`` may do it in several steps
            return None
        program = self._programs.make(call.plan_key)
        return prepared_messages.prepare(
            call, program, self._rank, self._links, self._messages, next_header
        )

    def progress(self, call: Call) -> Runs:
        """The runs of a whole call whose last flow has passed them."""
        plan, out = self._bound, call.outputs[0] if call.outputs else None
        is_divided_later = call.reduce_op == "mean" and call.operation != "all_reduce"
        if plan is None or not call.whole or out is None or is_divided_later:
            return ()
        runs = []
        for chunk, (start, _) in enumerate(split(len(out), plan.num_chunks)):
            done = plan.complete_bytes(chunk) // out.itemsize
            if done > 0:
                runs.append((start, start + done))
        return tuple(runs)
