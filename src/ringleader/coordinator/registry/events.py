"""Events that the registry takes and actions that it asks for.

The caller has validated the fields of events (``limits.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringleader.coordinator.registry.records import Checkpoint, Namespace, Worker


@dataclass(frozen=True, slots=True)
class Register:
    """A worker announces itself. The reply is its rank."""

    namespace: Namespace
    worker_id: str
    incarnation: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unregister:
    """A worker leaves. No reply."""

    namespace: Namespace
    worker_id: str
    incarnation: str


class BeatReply(Enum):
    """Reply to a heartbeat."""

    OK = "ok"
    REGISTER_AGAIN = "register again"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's heartbeat. The reply is a ``BeatReply``."""

    namespace: Namespace
    worker_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """A worker begins a checkpoint. The reply is the checkpoint."""

    namespace: Namespace
    worker_id: str
    step: int
    path: str
    unix_s: float


@dataclass(frozen=True, slots=True)
class EndCheckpoint:
    """A worker has finished its part. The reply is the checkpoint."""

    namespace: Namespace
    worker_id: str
    step: int
    unix_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: workers without heartbeats are evicted."""


Event = Register | Unregister | Beat | StartCheckpoint | EndCheckpoint | Tick


@dataclass(frozen=True, slots=True)
class SaveWorker:
    """Store a worker. One that left is stored, too: it may return to its rank."""

    namespace: Namespace
    worker: Worker
    is_registered: bool


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    """Remove a worker that left from the store."""

    namespace: Namespace
    worker_id: str


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Store a checkpoint."""

    namespace: Namespace
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Remove an old checkpoint from the store."""

    namespace: Namespace
    step: int


@dataclass(frozen=True, slots=True)
class ForgetNamespace:
    """Remove everything of a namespace from the store."""

    namespace: Namespace


Action = SaveWorker | ForgetWorker | SaveCheckpoint | ForgetCheckpoint | ForgetNamespace
