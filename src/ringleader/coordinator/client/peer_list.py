"""PeerList applies the updates of a coordinator. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringleader.coordinator.registry import limits
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.errors import ConfigError, ProtocolError


@dataclass(frozen=True, slots=True)
class Peer:
    """A registered worker, as the coordinator knows it."""

    rank: int
    worker_id: str
    incarnation: str
    addresses: tuple[str, ...]
    """Where to reach it, ``host:port`` or ``[ipv6]:port``, the best first."""


class PeerList:
    """The workers of a job, by rank."""

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        self._pending: dict[int, Peer] = {}
        self._peers: dict[int, Peer] = {}

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The workers of the last complete update."""
        return self._peers

    def apply(self, update: pb.PeersUpdate) -> bool:
        """Apply an update; return whether ``peers`` changed.

        Nothing that comes from the network is trusted: ProtocolError if the update is
        not one that a coordinator sends.
        """
        pending = {} if update.is_snapshot else self._pending
        for gone in update.departed:
            if gone.rank in pending and pending[gone.rank].worker_id == gone.worker_id:
                del pending[gone.rank]
        for worker in update.joined:
            pending[worker.rank] = self._checked(worker)
        if len(pending) > limits.MAX_WORKERS:
            text = f"sent {len(pending)} workers, the limit is {limits.MAX_WORKERS}"
            raise ProtocolError(self._coordinator, text)
        self._pending = pending
        if update.continues:
            return False
        before, self._peers = self._peers, dict(pending)
        return before != self._peers

    def _checked(self, worker: pb.Worker) -> Peer:
        try:
            if worker.rank >= limits.MAX_WORKERS:
                raise ConfigError(f"rank {worker.rank}")
            return Peer(
                worker.rank,
                limits.check_id("worker_id", worker.worker_id),
                limits.check_id("incarnation", worker.incarnation),
                limits.check_addresses(worker.addresses),
            )
        except ConfigError as exc:
            text = f"sent an invalid worker: {exc}"
            raise ProtocolError(self._coordinator, text) from None
