"""Waiting in an operation: with a deadline, while control frames are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn, Protocol

from ringleader.deadline import Deadline
from ringleader.engine.observer import Observer
from ringleader.errors import DeadlineExceeded, GroupAborted
from ringleader.transport.link import wait_ready
from ringleader.wire import header

NAP_S = 0.05
"""The longest sleep. A missed doorbell (transport/shm_link.py) costs at most this."""
PROBE_AFTER_S = 0.2
"""Waiting this long is unusual: ask the peers whether they make the same call."""


_NO_LIMIT = timedelta(0)


class Options(Protocol):
    """Interface the waiter needs from the options of a call."""

    @property
    def timeout(self) -> timedelta:
        """The time limit of the call; not positive for that of the group."""
        ...


class ControlPoller(Protocol):
    """Interface the waiter needs from the control channel of the group."""

    rank: int
    current: bytes
    """The header of the call that is running."""
    aborted: GroupAborted | None
    """Set from any thread; must be raised at once."""

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events to wait for."""
        ...

    def progress(self, stalled_s: float) -> None:
        """Read and write control frames; raise if the group is broken.

        A peer that vanished without a notice is an error only once this rank has been
        stalled: what the peer sent before may still be enough to finish.
        """
        ...

    def ask(self, peers: list[int]) -> None:
        """Tell all peers that this rank waits for ``peers``, and in which call."""
        ...

    def suspect(self, peers: list[int]) -> int:
        """The rank that delays us: one of ``peers``, or a rank that they wait for."""
        ...


class Waiter:
    """Waits for one group; used by the thread that holds the engine."""

    def __init__(self, poller: ControlPoller, default_s: float) -> None:
        self.default_s = default_s
        """The time limit of operations that are not given one."""
        self.observer: Observer | None = None
        """Told how long this rank waits, and for which peer."""
        self._poller = poller
        self.given: Deadline | None = None
        """The deadline of a prepared call that was queued; None for others."""
        self.options: Options | None = None
        """Those of the prepared call that runs, if it has any. Only a call that sleeps
        needs its time limit: torch takes 1 us to tell it."""
        self._call = b""
        self._deadline = Deadline.after(0)
        self._stalled_at_s = 0.0
        self._probe_at_s = 0.0

    def start(self, deadline: Deadline, call: bytes) -> None:
        """Begin the call with this header. Raises DeadlineExceeded if it is too late.

        Prepared calls do not use this: it is called for them when they first sleep. The
        deadline may be over if several calls share it.
        """
        if deadline.is_over():
            text = (
                f"was busy with other work for the {deadline.after_s:.1f} s that "
                f"{header.decode(call, self._poller.rank)} and the calls with it had"
            )
            raise DeadlineExceeded(self._poller.rank, text)
        self._call = call
        self._deadline = deadline
        self._stalled_at_s = 0.0

    def check(self) -> None:
        """Raise if the group is being aborted; for loops that may never wait."""
        if self._poller.aborted is not None:
            raise self._poller.aborted

    def moved(self) -> None:
        """Note that bytes moved after a sleep: the group is not stalled."""
        self._stalled_at_s = 0.0

    def idle(
        self, links: Sequence[tuple[int, int]], blocked_on: Callable[[], list[int]]
    ) -> None:
        """Sleep until a link or a control stream may be ready.

        Raises DeadlineExceeded at the deadline. ``blocked_on`` returns the peers that
        this rank waits for.
        """
        if self._call is not self._poller.current:
            self.start(self._limit(), self._poller.current)
        now_s = time.monotonic()
        if not self._stalled_at_s:
            self._stalled_at_s = now_s
            self._probe_at_s = now_s + PROBE_AFTER_S
        self._poller.progress(now_s - self._stalled_at_s)
        left_s = self._deadline.at_s - now_s
        if left_s <= 0:
            self._expire(blocked_on())
        if now_s >= self._probe_at_s:
            self._probe_at_s = now_s + PROBE_AFTER_S
            self._poller.ask(blocked_on())
        wait_ready([*links, *self._poller.wanted()], min(NAP_S, left_s))

    def _limit(self) -> Deadline:
        """The deadline of a prepared call, from now on unless it was queued."""
        if self.given is not None:
            return self.given
        timeout = _NO_LIMIT if self.options is None else self.options.timeout
        has_own = timeout > _NO_LIMIT
        return Deadline.after(timeout.total_seconds() if has_own else self.default_s)

    def _expire(self, peers: list[int]) -> NoReturn:
        """Raise DeadlineExceeded, naming the rank that delays us and the call."""
        blamed = self._poller.suspect(peers)
        others = ", ".join(str(p) for p in peers if p != blamed)
        if others:
            others = f" (and for rank {others}, which may wait for it as well)"
        call = header.decode(self._call, blamed)
        text = (
            f"waited {self._deadline.after_s:.1f} s for it{others} in {call}; "
            "it may be slow, stopped or cut off. Raise the timeout or form a new group"
        )
        raise DeadlineExceeded(blamed, text)
