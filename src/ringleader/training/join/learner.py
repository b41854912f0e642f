"""Learner: what a source knows about one process that follows the run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from ringleader.node.peering.peer_connection import PeerConnection

BEHIND: Final = 2
"""A learner that lacks the gradients of more steps is slow."""

SHARE: Final = 2
"""Between two steps a slow learner gets so many times the gradients of one: half of it
is for what it lacks of the state, so that it gets all of it in the end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the source: the gradients of what the learner had before it."""

    version: int
    groups: bytes
    gradients: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(each.nbytes for each in self.gradients.values())


class Learner:
    """One learner: what it has, what it lacks, and the steps that it has yet to get.

    ``put``, ``owed``, ``cut`` and ``drop`` are called by the user's thread, the rest by
    the control thread. ``todo`` and ``held`` change under the lock of the source.
    """

    def __init__(
        self, name: str, connection: PeerConnection, mine: Sequence[int]
    ) -> None:
        self.name = name
        self.life = connection.hello.incarnation
        self._close = connection.close
        self.queue: asyncio.Queue[Step | None] = asyncio.Queue()
        self.todo = deque(mine)
        """Indices of the parameters that it lacks."""
        self.held: list[int] = []
        self.gradients: dict[int, Tensor] = {}
        """The gradients of the step that the optimizer takes now, by parameter."""
        self.groups = b""
        self.is_slow = False
        """Whether steps were taken faster than it got their gradients: from then on
        they wait for it."""
        self.moved_s = time.monotonic()
        """When its link has taken bytes last."""
        self._loop = asyncio.get_running_loop()
        self._backlog = 0
        self._largest = 0
        """Bytes of the largest step."""
        self._share = 0
        """Bytes that it is to get before the next step is taken."""
        self._lock = threading.Lock()

    @property
    def backlog(self) -> int:
        """Bytes of steps that were taken and not sent yet."""
        with self._lock:
            return self._backlog

    def put(self, step: Step) -> None:
        """Queue a step; the next one waits for it, if it is slow."""
        with self._lock:
            self._backlog += step.num_bytes
            self._share = SHARE * step.num_bytes
            self._largest = max(self._largest, step.num_bytes)
            self.is_slow = self.is_slow or self._backlog > BEHIND * self._largest
        self._call(step)

    @property
    def owed(self) -> int:
        """Bytes that it is to get before the next step; none if it has everything."""
        with self._lock:
            has_all = not (self._backlog or self.todo)
            return 0 if has_all or not self.is_slow else max(0, self._share)

    def moved(self, num_bytes: int) -> None:
        """Count bytes that its link has taken, of steps and of parameters."""
        with self._lock:
            self._share -= num_bytes
        self.moved_s = time.monotonic()

    def drop(self) -> None:
        """End the connection after what is queued."""
        self._call(None)

    def cut(self) -> None:
        """End the connection at once: what is queued is of no use to it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._close)
        self._call(None)

    def sent(self, step: Step) -> None:
        """Count a step that was sent."""
        with self._lock:
            self._backlog -= step.num_bytes

    def _call(self, item: Step | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.queue.put_nowait, item)
