"""The records of the journal: what the server has acknowledged since a checkpoint."""

from __future__ import annotations

import msgspec

from ringleader.paramserver.server.aggregation import Rule
from ringleader.paramserver.server.update_headers import UpdateHeaders, UpdateKey
from ringleader.paramserver.server.worker_record import ShardLease


class _Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """The JSON part of a record."""


class Joined(_Record, frozen=True, kw_only=True, tag="joined"):
    """A worker joined, or joined again with the same nonce."""

    worker: str
    token: str
    """SHA-256 of the token."""
    name: str
    device: str
    nonce: str
    """SHA-256 of the nonce; empty if there was none."""


class Left(_Record, frozen=True, tag="left"):
    """A worker left."""

    worker: str


class Quarantined(_Record, frozen=True, tag="quarantined"):
    """A worker was quarantined."""

    worker: str


class Leased(_Record, frozen=True, tag="leased"):
    """A worker was given the batches of an update."""

    worker: str
    key: tuple[int, int, int]
    steps: int = 0
    """Batches of the lease; 0: as many as the plan says."""

    @classmethod
    def of(cls, worker: str, lease: ShardLease) -> Leased:
        """Build the record of a lease."""
        key = (lease.version, lease.shard, lease.first_batch)
        return cls(worker, key, lease.steps)

    @property
    def update_key(self) -> UpdateKey:
        """The key of the update."""
        return UpdateKey(*self.key)


class AggregationChanged(_Record, frozen=True, tag="aggregation"):
    """A restarted server combines updates in another way than the one before."""

    rule: Rule
    clip: float


class VersionClosed(_Record, frozen=True, tag="closed"):
    """A version was closed by an optimizer step."""

    version: int
    shards: int
    """Shards of the next version."""
    factor: float
    """Factor of the learning rates in the step."""


class AcceptedUpdate(_Record, frozen=True, tag="update"):
    """An update was accepted. Its body follows in the journal."""

    worker: str
    key: tuple[int, int, int]
    samples: int
    loss: float
    codec: str
    weight: float = 1.0
    """Factor of the samples: below 1 for an update that came late."""

    @classmethod
    def of(cls, worker: str, headers: UpdateHeaders, weight: float) -> AcceptedUpdate:
        """Build the record of an update of ``worker``."""
        key = (headers.key.version, headers.key.shard, headers.key.first_batch)
        stated = headers.samples, headers.loss, headers.codec
        return cls(worker, key, *stated, weight)

    @property
    def update_key(self) -> UpdateKey:
        """The key of the update."""
        return UpdateKey(*self.key)


class HistoryLost(_Record, frozen=True, tag="lost"):
    """Damage made the server forget what followed. All tokens ended, so that workers
    join again and discard weights of versions that no longer exist."""


JournalRecord = (
    Joined
    | Left
    | Quarantined
    | Leased
    | AggregationChanged
    | VersionClosed
    | AcceptedUpdate
    | HistoryLost
)
