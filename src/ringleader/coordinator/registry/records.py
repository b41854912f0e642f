"""What the registry knows: namespaces, workers, checkpoints; and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Namespace:
    """A job of a cluster."""

    key_hash: bytes
    """SHA-256 of the key that the caller sent: the state file does not contain what
    grants access."""
    job: str


@dataclass(frozen=True, slots=True)
class Worker:
    """One registered worker."""

    rank: int
    worker_id: str
    incarnation: str
    addresses: tuple[str, ...]


class DepartureReason(Enum):
    """Why a worker is no longer registered."""

    UNREGISTERED = "unregistered"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker that left."""

    rank: int
    worker_id: str
    reason: DepartureReason


@dataclass(frozen=True, slots=True)
class PeerChanges:
    """What a watcher has to learn to know the workers of ``version``."""

    version: int
    is_snapshot: bool
    joined: tuple[Worker, ...] = ()
    departed: tuple[Departure, ...] = ()


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint, and which of its participants have finished."""

    step: int
    path: str
    participants: dict[str, int]
    """Worker id -> rank, as registered when it began."""
    started_at_s: float
    """Seconds since 1970."""
    done: set[str] = field(default_factory=set)
    completed_at_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if all participants are done."""
        return len(self.done) == len(self.participants)


class RefusalKind(Enum):
    """Kinds of refusals; each is a status code of gRPC."""

    FULL = "full"
    UNKNOWN = "unknown"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call was not carried out; the text goes to the caller."""

    kind: RefusalKind
    text: str
