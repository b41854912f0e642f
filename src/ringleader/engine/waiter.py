"""How an operation waits: with a deadline, an open ear, and a guess for whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, GroupAborted
from ringleader.transport.link import wait_ready
from ringleader.wire import header

NAP_S = 0.05
"""The longest sleep. A missed doorbell (transport/shm_link.py) costs at most this."""
PROBE_AFTER_S = 0.2
"""Waiting this long is unusual: ask the peer whether it makes the same call."""


class ControlPoller(Protocol):
    """What the waiter listens to besides the links: the control of the group."""

    rank: int
    """Ours."""
    current: bytes
    """The header of the call under way."""
    aborted: GroupAborted | None
    """Set from any thread, to be raised at once."""

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events that mean news."""
        ...

    def progress(self, stalled_s: float) -> None:
        """Read and write what is there; raises when the group is broken.

        A peer that vanished without a word is only an error once we are stalled: what
        it sent before may still be enough to finish.
        """
        ...

    def ask(self, peers: list[int]) -> None:
        """Tell ``peers`` that we wait for them, and everybody else as well."""
        ...

    def suspect(self, peers: list[int]) -> int:
        """Who holds us up: of ``peers``, or one of them waits for it."""
        ...


class Waiter:
    """One per group; used by the thread that holds the engine."""

    def __init__(self, poller: ControlPoller, default_s: float) -> None:
        self.default_s = default_s
        """The time limit of operations that are not given one."""
        self._poller = poller
        self._call = b""
        self._deadline = Deadline.after(0)
        self._stalled_at_s = 0.0
        self._probe_at_s = 0.0

    def start(self, deadline: Deadline, call: bytes) -> None:
        """The call with this header begins and has a deadline of its own.

        Small calls do not say so: their clock starts when they first have to sleep.
        The deadline may be over if it is that of several calls.
        """
        if deadline.is_over():
            text = (
                f"was busy with other things for the {deadline.after_s:.1f} s that "
                f"{header.decode(call, self._poller.rank)} and the calls with it had"
            )
            raise DeadlineExceeded(self._poller.rank, text)
        self._call = call
        self._deadline = deadline
        self._stalled_at_s = 0.0

    def check(self) -> None:
        """Raise if the group is being aborted; for who never has to wait."""
        if self._poller.aborted is not None:
            raise self._poller.aborted

    def moved(self) -> None:
        """Something arrived or left after we had slept."""
        self._stalled_at_s = 0.0

    def idle(
        self, links: Sequence[tuple[int, int]], blocked_on: Callable[[], list[int]]
    ) -> None:
        """Sleep until something may have changed; raise when it is too late."""
        if self._call is not self._poller.current:
            self.start(Deadline.after(self.default_s), self._poller.current)
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

    def _expire(self, peers: list[int]) -> NoReturn:
        """Raise the timeout, naming whom we waited for and in which call."""
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
