"""``Courier``: the thread that brings the events of this rank to rank 0.

It does so while the program runs, so that what a rank recorded until shortly before
its death is not lost. On rank 0 it collects what the others have sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.deadline import Deadline
from ringleader.groups.handle import GroupHandle
from ringleader.groups.observation import open_handles
from ringleader.tracing.analysis.clock import Offset
from ringleader.tracing.analysis.events import Links, Recording
from ringleader.tracing.batch import MAX_EVENTS, Batch
from ringleader.tracing.collector import Collector
from ringleader.tracing.meeting_store import find_meeting
from ringleader.tracing.recorder import Recorder
from ringleader.tracing.store_channel import StoreChannel

_log = logging.getLogger(__name__)

LOOK_S = 0.05
"""How often to look whether the ranks have met."""
RECEIVE_S = 0.25
SEND_S = 1.0
CLOCK_S = 30.0
"""How often to compare the clocks, which drift."""
ASK_S = 3.0
"""How long rank 0 may take to answer a question for the time."""
SILENT_S = 8.0
"""A rank that has sent nothing for this long has died, or its machine hangs, or it has
no way to send."""
SLACK_S = 1.0
"""Time for a call of the store that had begun before the end."""
FOREVER_S = 1e9
GATHER_S = 60.0
"""How long rank 0 waits at the end for ranks that are still sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a rank says of its machine."""

    machine: str
    link_kind: str


class Courier:
    """Sends, receives and collects the batches of a trace."""

    def __init__(
        self, recorder: Recorder, origin: Origin, name: str, limit: int
    ) -> None:
        self.rank = 0
        self.size = 1
        self._recorder = recorder
        self._origin = origin
        self._name = name
        self._limit = limit
        self._collector = Collector(1, limit)
        """On rank 0 the events of all; elsewhere a copy of this rank's, as rank 0."""
        self._channel: StoreChannel | None = None
        self._failure = ""
        self._next_clock = Deadline.after(0)
        self._heard_s: dict[int, float] = {}
        self._end = Deadline.after(FOREVER_S)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="ringleader-trace", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def met(self, handle: GroupHandle) -> None:
        """Note the place of this process in a group, in case the ranks have no store.

        The largest group counts.
        """
        if (
            self._channel is None
            and not handle.is_view
            and len(handle.world_ranks) > self.size
        ):
            self.rank = handle.world_ranks[handle.rank]
            self.size = len(handle.world_ranks)

    def hurry(self, gather_s: float) -> None:
        """Let ``finish`` take no longer than this from now on."""
        if gather_s < self._end.left_s():
            self._end = Deadline.after(gather_s)

    def finish(self) -> Recording | None:
        """Send the rest, or collect that of all ranks; end the thread.

        Returns the recording on rank 0, and on a rank that could not send its own.
        """
        self._is_ending.set()
        while self._thread.is_alive() and self._end.left_s() > -SLACK_S:
            self._thread.join(LOOK_S)
        if self._thread.is_alive():
            self._failure = "not sent in time"
        if self.rank == 0 or self._failure or self._channel is None:
            return self._collected()
        return None

    @property
    def failure(self) -> str:
        """Why the trace of this rank did not reach rank 0; empty if it did."""
        if not self._failure and self._channel is None and self.size > 1:
            return "the ranks have no store in common"
        return self._failure

    def _collected(self) -> Recording:
        while self._keep_own():
            pass
        recording = self._collector.recording()
        if self.rank != 0:  # this rank alone, under its own number
            trace = recording.ranks[0]
            trace.rank = self.rank
            recording.ranks = {self.rank: trace}
        return recording

    # -- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_ending.wait(self._pause_s()):
                self._tick()
            self._finish()
        except Exception as exc:  # noqa: BLE001 - a trace must not end the program
            self._failure = f"{type(exc).__name__}: {exc}".splitlines()[0]
            _log.info("trace: %s", self._failure, exc_info=True)

    def _pause_s(self) -> float:
        if self._channel is None:
            return LOOK_S
        return RECEIVE_S if self.rank == 0 else SEND_S

    def _tick(self) -> None:
        if self._channel is None and not self._connect():
            return
        if self.rank == 0:
            self._receive()
            self._keep_own()
        else:
            self._send(is_last=False)

    def _connect(self) -> bool:
        meeting = find_meeting()
        if meeting is None:
            return False
        self.rank, self.size = meeting.rank, meeting.size
        if self.rank == 0:
            self._collector = Collector(self.size, self._limit)
        self._channel = StoreChannel(meeting.store, self._name, self.rank, self.size)
        now = time.monotonic()
        self._heard_s = dict.fromkeys(range(1, self.size), now)
        return True

    def _finish(self) -> None:
        if self._channel is None and not self._connect():
            return
        assert self._channel is not None
        if self.rank != 0:
            self._next_clock = Deadline.after(0)
            self._send(is_last=True)
            limit = Deadline.after(min(SILENT_S, self._end.left_s()))
            if not self._channel.wait_until_taken(limit):
                self._failure = "rank 0 does not collect the trace"
            return
        while self._is_gathering(self._collector.missing() - {0}):
            self._receive()
            time.sleep(LOOK_S)

    def _is_gathering(self, missing: set[int]) -> bool:
        """Return whether a rank that is missing may still send something."""
        heard_s = max((self._heard_s[rank] for rank in missing), default=0.0)
        is_silent = time.monotonic() - heard_s > SILENT_S
        return bool(missing) and not is_silent and not self._end.is_over()

    def _receive(self) -> None:
        assert self._channel is not None
        for rank, batch in self._channel.receive():
            self._heard_s[rank] = time.monotonic()
            self._collector.add(rank, batch)

    def _keep_own(self) -> int:
        """Move events of this rank to the collector; return how many."""
        batch = self._batch([], is_last=self._is_ending.is_set())
        batch.events = self._recorder.take(MAX_EVENTS)
        self._collector.add(0, batch)
        return len(batch.events)

    def _send(self, *, is_last: bool) -> None:
        channel = self._channel
        assert channel is not None
        offsets = self._offsets(channel.ask_clock)
        while is_last or channel.has_room():
            batch = self._batch(offsets, is_last=False)
            batch.events = self._recorder.take(MAX_EVENTS)
            is_done = len(batch.events) < MAX_EVENTS
            batch.is_last = is_last and is_done
            self._collector.add(0, batch)
            channel.send(batch)
            offsets = []
            if is_done:
                return

    def _offsets(self, ask: Callable[[Deadline], Offset | None]) -> list[Offset]:
        if not self._next_clock.is_over():
            return []
        self._next_clock = Deadline.after(CLOCK_S)
        offset = ask(Deadline.after(min(ASK_S, self._end.left_s() / 2)))
        return [] if offset is None else [offset]

    def _batch(self, offsets: list[Offset], *, is_last: bool) -> Batch:
        return Batch(
            machine=self._origin.machine,
            link_kind=self._origin.link_kind,
            num_dropped=self._recorder.num_dropped,
            is_last=is_last,
            offsets=offsets,
            links=_measured_links() if self.rank == 0 else {},
        )


def _measured_links() -> Links:
    """Return the links of all open groups, between ranks of the program."""
    found: Links = {}
    for handle in open_handles():
        ranks, rows = handle.world_ranks, handle.network.links
        if handle.is_view or len(ranks) != len(rows):
            continue
        for a, row in enumerate(rows):
            for b, cost in enumerate(row):
                if a != b and cost is not None:
                    found[ranks[a], ranks[b]] = cost.bandwidth
    return found
