"""The calls of this process that have not been answered."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from itertools import count

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.rpc.future import Future, Run


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call and where its answer goes."""

    id: int
    peer: int
    what: str
    future: Future


class Calls:
    """The pending calls of an endpoint. Any thread may call the methods."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._pending: dict[int, PendingCall] = {}
        self._numbers = count(1)
        self._due_s = math.inf
        """When ``expire`` must be called next, or earlier than that."""

    def begin(self, peer: int, what: str, deadline: Deadline) -> PendingCall:
        """Add a call to rank ``peer``; ``what`` describes it in errors."""

        def late() -> DeadlineExceeded:
            text = f"did not answer {what} within {deadline.after_s:.3g} s"
            return DeadlineExceeded(peer, f"{text}; it may still be running there")

        call = PendingCall(
            next(self._numbers), peer, what, Future(deadline, self._run, late)
        )
        with self._lock:
            self._pending[call.id] = call
        return call

    def is_due_before(self, deadline: Deadline) -> bool:
        """Return whether ``expire`` will be called in time for this deadline."""
        with self._lock:
            if self._due_s <= deadline.at_s:
                return True
            self._due_s = deadline.at_s
            return False

    def take(self, call_id: int, peer: int) -> PendingCall | None:
        """Remove a call to ``peer``; None if it has expired or was never made."""
        with self._lock:
            call = self._pending.get(call_id)
            if call is None or call.peer != peer:
                return None
            del self._pending[call_id]
        return call

    def take_all(self, peer: int | None = None) -> list[PendingCall]:
        """Remove all calls, or those to one rank."""
        with self._lock:
            found = [c for c in self._pending.values() if peer in (None, c.peer)]
            for call in found:
                del self._pending[call.id]
        return found

    def expire(self) -> None:
        """End the calls that have passed their deadline."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        with self._lock:
            calls = self._pending.values()
            late = [c for c in calls if c.future.deadline.at_s <= now_s]
            for call in late:
                del self._pending[call.id]
            moments = [c.future.deadline.at_s for c in self._pending.values()]
            self._due_s = min(moments, default=math.inf)
        for call in late:
            call.future.expire()

    def idle_s(self, at_most_s: float) -> float:
        """Return the seconds until ``expire`` must be called."""
        return min(max(0.0, self._due_s - time.monotonic()), at_most_s)

    def __len__(self) -> int:
        return len(self._pending)
