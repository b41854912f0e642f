"""Replay simulates programs event by event, segment by segment.

Theory of operation. A chunk crosses a lane (an ordered pair of ranks) in equal
segments. A segment of a move is done

* for a send, when the sending network card (NIC) has taken it. It needs: the earlier
  moves on the chunk have done this segment, everything before it on the lane has left,
  the link of the lane is free, and it is the lane's turn (lanes take turns on a NIC);
* for a receive, when it has arrived, the earlier moves on the chunk have done this
  segment, and the node has added it (one sum at a time; a copy takes no time).

A segment occupies the sending NIC, the link, the trunk and the receiving NIC for its
own time on each, and these overlap as for a stream of small packets: its head moves on
at once, and its tail arrives as late as the slowest of them allows. The lanes into a
node take turns on its NIC as well, which approximates TCP's flow control. Nothing is
ever lost, and the buffers between two NICs are unlimited.

Simultaneous events are ordered by kind, then by the position of the lane in the program
of its own node, never by rank: so ranks with the same program on a uniform network have
exactly the same timeline, which ``simulator.py`` exploits.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from ringleader.collectives.schedule import Kind
from ringleader.collectives.schedule_checker import ScheduleError
from ringleader.simulation.collectives.replay_state import Lane, ReplayMove

# Kinds of events, in the order in which simultaneous ones are processed. Plain numbers:
# they are compared millions of times, and comparing enums takes half of the run.
SUMMED: Final = 0
HEAD: Final = 1  # the first byte of a segment reaches the receiving NIC
INGRESS_FREE: Final = 2  # the receiving NIC can take the next segment
TAIL: Final = 3  # the last byte has passed the receiving NIC
LINK_FREE: Final = 4
EGRESS_FREE: Final = 5  # the sending NIC can take the next segment


class Replay:
    """One replay: call ``run`` once, then read ``finish_s`` of the nodes."""

    def __init__(self, lanes: list[Lane], num_segments: int) -> None:
        self._lanes = lanes
        self._num_segments = num_segments
        self._events: list[tuple[float, int, int, int, Lane]] = []

    def run(self) -> None:
        """Replay to the end; raises ScheduleError if a move can never be done."""
        for lane in sorted(self._lanes, key=lambda lane: lane.out_order):
            self._offer(lane, 0.0)
        events = self._events
        react = (
            self._finish_sum,
            self._enter,
            self._admit,
            self._arrive,
            self._queue,
            self._dispatch,
        )
        while events:
            now_s, event, _, _, lane = heappop(events)
            react[event](lane, now_s)
        self._check_all_done()

    def _at(self, time_s: float, event: int, lane: Lane) -> None:
        order = lane.out_order if event >= LINK_FREE else lane.in_order
        heappush(self._events, (time_s, event, order, lane.number, lane))

    def _offer(self, lane: Lane, now_s: float) -> None:
        """Queue the lane for its NIC if its next segment is ready to be sent."""
        at = lane.num_left // self._num_segments
        if lane.is_waiting or at >= len(lane.sends):
            return
        step = lane.sends[at]
        for before in step.before:
            if before.done <= step.done:
                return
        lane.is_waiting = True
        if lane.free_s > now_s:
            self._at(lane.free_s, LINK_FREE, lane)
        else:
            self._queue(lane, now_s)

    def _queue(self, lane: Lane, now_s: float) -> None:
        lane.source.waiting.append(lane)
        self._wake_egress(lane, now_s)

    def _wake_egress(self, lane: Lane, now_s: float) -> None:
        node = lane.source
        if not node.is_egress_due:
            node.is_egress_due = True
            self._at(max(now_s, node.egress_free_s), EGRESS_FREE, lane)

    def _dispatch(self, woken_by: Lane, now_s: float) -> None:
        """Send the next segment of the lane that has waited longest for the NIC."""
        node = woken_by.source
        lane = node.waiting.popleft()
        lane.is_waiting = node.is_egress_due = False
        node.egress_free_s = now_s + node.egress_segment_s
        if lane.is_link_slow:
            lane.free_s = now_s + lane.segment_s
        head_s = now_s
        if lane.trunk is not None:
            head_s = max(now_s, lane.trunk.free_s)
            lane.trunk.free_s = head_s + lane.trunk.segment_s
        self._at(head_s + lane.latency_s, HEAD, lane)
        step = lane.sends[lane.num_left // self._num_segments]
        lane.num_left += 1
        self._advance(step, now_s + lane.segment_s)
        self._wake_after(step, now_s)
        self._offer(lane, now_s)
        if node.waiting:
            self._wake_egress(lane, now_s)

    def _enter(self, lane: Lane, now_s: float) -> None:
        """Queue a segment for the receiving NIC, on which lanes take turns too."""
        if not lane.heads_s:
            lane.to.arriving.append(lane)
        lane.heads_s.append(now_s)
        self._wake_ingress(lane, now_s)

    def _wake_ingress(self, lane: Lane, now_s: float) -> None:
        node = lane.to
        if not node.is_ingress_due:
            node.is_ingress_due = True
            self._at(max(now_s, node.ingress_free_s), INGRESS_FREE, lane)

    def _admit(self, woken_by: Lane, now_s: float) -> None:
        """Receive a segment of the lane that has waited longest for the NIC."""
        node = woken_by.to
        lane = node.arriving.popleft()
        node.is_ingress_due = False
        head_s = lane.heads_s.popleft()
        if lane.heads_s:
            node.arriving.append(lane)
        node.ingress_free_s = now_s + node.ingress_segment_s
        end_s = max(node.ingress_free_s, head_s + lane.segment_s)
        self._at(end_s, TAIL, lane)
        if node.arriving:
            self._wake_ingress(lane, now_s)

    def _arrive(self, lane: Lane, now_s: float) -> None:
        at = lane.num_arrived // self._num_segments
        if at >= len(lane.receives):
            raise ScheduleError(
                f"a chunk is sent but never received on lane {lane.number}"
            )
        step = lane.receives[at]
        lane.num_arrived += 1
        step.arrived += 1
        if self._take(step, now_s):
            self._wake_after(step, now_s)

    def _take(self, step: ReplayMove, now_s: float) -> bool:
        """Copy or add the segments that are ready; True if they are done at once."""
        limit = step.arrived
        for before in step.before:
            if before.done < limit:
                limit = before.done
        if step.taken >= limit:
            return False
        reduce_s = step.node.reduce_segment_s if step.kind is Kind.REDUCE else 0.0
        while step.taken < limit:
            step.taken += 1
            if reduce_s:
                self._sum(step, now_s)
            else:
                self._advance(step, now_s)
        return not reduce_s

    def _sum(self, step: ReplayMove, now_s: float) -> None:
        node = step.node
        node.reduce_free_s = max(now_s, node.reduce_free_s) + node.reduce_segment_s
        node.summing.append(step)
        self._at(node.reduce_free_s, SUMMED, step.lane)

    def _finish_sum(self, lane: Lane, now_s: float) -> None:
        """Complete the oldest sum of a node; sums end in the order they began."""
        step = lane.to.summing.popleft()
        self._advance(step, now_s)
        self._wake_after(step, now_s)

    def _advance(self, step: ReplayMove, now_s: float) -> None:
        step.done += 1
        if step.done == self._num_segments and now_s > step.node.finish_s:
            step.node.finish_s = now_s

    def _wake_after(self, step: ReplayMove, now_s: float) -> None:
        """Advance the later moves on this chunk as far as they are ready."""
        moved = [step]
        while moved:
            for following in moved.pop().after:
                if following.kind is Kind.SEND:
                    self._offer(following.lane, now_s)
                elif self._take(following, now_s):
                    moved.append(following)

    def _check_all_done(self) -> None:
        steps = [s for lane in self._lanes for s in (*lane.sends, *lane.receives)]
        stuck = [s for s in steps if s.done < self._num_segments]
        if stuck:
            first = stuck[0]
            raise ScheduleError(
                f"{len(stuck)} moves never complete, first a {first.kind.name} of "
                f"node {first.node.number}"
            )
