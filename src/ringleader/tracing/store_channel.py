"""Brings the batches of all ranks to rank 0, through the store of the program.

The store is where the ranks met: it is encrypted between machines where the links are,
and it outlives a rank that dies. A rank leaves its batches there and rank 0 takes them
out. Rank 0 also answers what its clock shows. Only the thread of the trace uses this.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from ringleader.deadline import Deadline
from ringleader.engine.observer import now_s
from ringleader.errors import ProtocolError
from ringleader.tracing.analysis.clock import Answer, Offset, estimate
from ringleader.tracing.batch import Batch
from ringleader.tracing.recorder import to_ns

_log = logging.getLogger(__name__)

MAX_WAITING = 4
"""Batches of one rank that may lie in the store while the program runs."""
QUESTIONS = 8
ANSWER_S = 3.0
"""Limit for all questions once rank 0 has begun to answer: the other may have died."""
CALL_S = 5.0
"""Limit of one call of the store; none waits for something that may not come."""
POLL_S = 0.01
_ATTEMPTS = 1000
"""Requests for the time that rank 0 answers for each rank."""


class StoreChannel:
    """One rank's way to the others."""

    def __init__(self, store: Store, name: str, rank: int, size: int) -> None:
        self._served = store  # the store ends with this object if rank 0 serves it
        # A connection of its own: another one may be busy with a call that waits.
        self._store = PrefixStore(f"ringleader/trace/{name}", store.clone())  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=CALL_S))
        self._rank = rank
        self._others = [r for r in range(size) if r != 0]
        self._next = dict.fromkeys(range(size), 0)
        self._asked = dict.fromkeys(range(size), 0)

    # -- all ranks but the first ---------------------------------------------------

    def has_room(self) -> bool:
        """Return whether rank 0 takes the batches as fast as they come."""
        oldest = self._next[self._rank] - MAX_WAITING
        return oldest < 0 or not self._store.check([self._batch(self._rank, oldest)])

    def send(self, batch: Batch) -> None:
        """Leave a batch for rank 0."""
        number = self._next[self._rank]
        self._store.set(self._batch(self._rank, number), batch.encode())  # type: ignore[arg-type]
        self._next[self._rank] = number + 1

    def wait_until_taken(self, deadline: Deadline) -> bool:
        """Return whether rank 0 takes the last batch before the deadline."""
        key = self._batch(self._rank, self._next[self._rank] - 1)
        while self._store.check([key]):
            if deadline.is_over():
                return False
            time.sleep(POLL_S)
        return True

    def ask_clock(self, deadline: Deadline) -> Offset | None:
        """Return how far the clock of rank 0 is ahead; None if it does not answer."""
        number = self._asked[self._rank]
        self._asked[self._rank] = number + 1
        name = f"clock/{self._rank}/{number}"
        self._store.set(f"{name}/asked", "1")
        while not self._store.check([f"{name}/ready"]):
            if deadline.is_over():
                return None
            time.sleep(POLL_S)
        limit = Deadline.after(ANSWER_S)
        answers = [self._ask(f"{name}/{i}", limit) for i in range(QUESTIONS)]
        heard = [each for each in answers if each is not None]
        return estimate(heard) if heard else None

    def _ask(self, name: str, deadline: Deadline) -> Answer | None:
        asked_ns = to_ns(now_s())
        self._store.set(f"{name}/question", "1")
        if not self._is_there(f"{name}/answer", deadline):
            return None
        heard_ns = to_ns(now_s())
        return Answer(asked_ns, int(self._store.get(f"{name}/answer")), heard_ns)

    def _is_there(self, key: str, deadline: Deadline) -> bool:
        """Ask again and again, without a pause: the answer is a time."""
        while not self._store.check([key]):
            if deadline.is_over():
                return False
        return True

    # -- rank 0 --------------------------------------------------------------------

    def receive(self) -> list[tuple[int, Batch]]:
        """Take out the batches that have come, and answer questions for the time."""
        found = []
        for rank in self._others:
            while self._store.check([self._batch(rank, self._next[rank])]):
                key = self._batch(rank, self._next[rank])
                self._next[rank] += 1
                data = self._store.get(key)
                self._store.delete_key(key)
                try:
                    found.append((rank, Batch.decode(data, rank)))
                except ProtocolError as exc:
                    _log.warning("trace: %s", exc)
            self._answer(rank)
        return found

    def _answer(self, rank: int) -> None:
        number = self._asked[rank]
        name = f"clock/{rank}/{number}"
        if number >= _ATTEMPTS or not self._store.check([f"{name}/asked"]):
            return
        self._asked[rank] = number + 1
        self._store.set(f"{name}/ready", "1")
        limit = Deadline.after(ANSWER_S)
        for i in range(QUESTIONS):
            if not self._is_there(f"{name}/{i}/question", limit):
                return  # too slow, or gone; what is there may still be read
            self._store.set(f"{name}/{i}/answer", str(to_ns(now_s())))
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Delete the questions; the last answer may still be read."""
        self._store.delete_key(f"{name}/asked")
        for i in range(QUESTIONS):
            self._store.delete_key(f"{name}/{i}/question")
            if i < QUESTIONS - 1:
                self._store.delete_key(f"{name}/{i}/answer")

    @staticmethod
    def _batch(rank: int, number: int) -> str:
        return f"batch/{rank}/{number}"
