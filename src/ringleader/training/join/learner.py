"""Learner: what a source knows about one process that follows the run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ringleader.node.peering.peer_connection import PeerConnection


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

    ``put``, ``cut`` and ``drop`` are called by the user's thread, the rest by the
    control thread. ``todo`` and ``held`` change under the lock of the source.
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
        self._loop = asyncio.get_running_loop()
        self._backlog = 0
        self._lock = threading.Lock()

    @property
    def backlog(self) -> int:
        """Bytes of steps that were taken and not sent yet."""
        with self._lock:
            return self._backlog

    def put(self, step: Step) -> None:
        """Queue a step."""
        with self._lock:
            self._backlog += step.num_bytes
        self._call(step)

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
