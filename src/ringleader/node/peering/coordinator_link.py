"""``CoordinatorLink``: this node at a coordinator, which tells where the others are.

What the coordinator says is a hint where to dial, as a sighting is: mutual TLS with the
cluster's secret decides who is a peer, and the membership decides who is in the
cluster. So a coordinator that is lost disturbs nothing but finding new nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringleader.deadline import Deadline
from ringleader.discovery.static_peers import parse
from ringleader.errors import (
    DeadlineExceeded,
    PeerUnreachable,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.identity.secret_value import Secret
from ringleader.node.peering.peer_connection import Address
from ringleader.node.protocol.node_addresses import can_dial, dialable, is_loopback
from ringleader.transport.own_addresses import address_towards

if TYPE_CHECKING:  # gRPC is imported only where a coordinator is used
    from ringleader.coordinator.client.peer_list import Peer
    from ringleader.coordinator.client.session import CoordinatorSession
    from ringleader.coordinator.grpc_tls import TlsSource

MAX_WORKERS = 64
"""Workers that are dialled, as many as a view holds."""
START_S = 10.0
RETRY_S = 1.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class CoordinatorLink:
    """Keeps this node registered. Lives on the event loop of the agent."""

    address: str
    """host:port of the coordinator; empty: there is none."""
    worker_id: str
    key: Secret[bytes]
    """The cluster's key to its part of the coordinator."""
    tls: TlsSource | None
    addresses: Callable[[Sequence[str]], Sequence[Address]]
    """Returns where this node can be reached now, given our addresses on the way to the
    coordinator: the others may have no other way to us."""
    on_rank: Callable[[], None]
    """Called when ``rank`` has changed."""
    on_event: Callable[[str], None]
    """Called with a sentence when the coordinator is lost or back."""
    rank: int = -1
    """Rank of this node at the coordinator; -1: none yet."""
    others: Mapping[str, Sequence[Address]] = field(default_factory=dict)
    """The other workers and where to dial them, as last heard."""
    _session: CoordinatorSession | None = None
    _task: asyncio.Task[None] | None = None
    """The one of ``run``."""
    _error: RingleaderError | None = None
    _since_s: float = 0.0
    """Wall clock time of the first of a row of errors."""

    @property
    def trouble(self) -> str:
        """What is wrong with the coordinator; empty: nothing."""
        if self._error is None:
            return ""
        clock = time.strftime("%H:%M:%S", time.localtime(self._since_s))
        verb, reason = _explain(self._error)
        return f"coordinator {self.address} {verb} since {clock}: {reason}"

    async def run(self) -> None:
        """Register, and stay registered until cancelled."""
        if not self.address:
            return
        self._task = asyncio.current_task()
        while True:
            own = await asyncio.to_thread(self._find_own)
            registered = self.addresses(own)  # the network may have come up meanwhile
            self._session = session = self._new_session(registered)
            try:
                await session.start(Deadline.after(START_S))
            except RingleaderError as exc:
                self._on_trouble(exc)
                await asyncio.sleep(RETRY_S)
            else:
                break
        self._on_trouble(session.trouble)
        while True:
            self._set_rank(session.rank)
            await asyncio.sleep(RETRY_S)
            found = self.addresses(own)
            if found and found != registered:  # without a network we keep the old ones
                own = await asyncio.to_thread(self._find_own)
                registered = self.addresses(own)
                await session.update_addresses(_as_texts(registered))

    def _find_own(self) -> list[str]:
        """Return our address on the way to the coordinator, if others can use it."""
        host, _, port = self.address.rpartition(":")
        found = address_towards(host.strip("[]"), int(port))
        return [found] if can_dial(found) and not is_loopback(found) else []

    def _new_session(self, addresses: Sequence[Address]) -> CoordinatorSession:
        from ringleader.coordinator.client.channel import JobNamespace
        from ringleader.coordinator.client.session import CoordinatorSession, WorkerInfo

        worker = WorkerInfo(
            namespace=JobNamespace(self.key),
            worker_id=self.worker_id,
            addresses=_as_texts(addresses),
        )
        return CoordinatorSession(
            self.address,
            worker,
            tls=self.tls,
            on_peers=self._on_peers,
            on_trouble=self._on_trouble,
        )

    async def close(self) -> None:
        """Unregister, so that the others need not wait for the time-out."""
        task, self._task = self._task, None
        if task is not None:  # else it might register again
            task.cancel()
            await asyncio.wait([task])
        session, self._session = self._session, None
        if session is not None and self.rank >= 0:  # else ``start`` has closed it
            await session.close()

    def _on_peers(self, peers: Mapping[int, Peer]) -> None:
        others = [peer for peer in peers.values() if peer.worker_id != self.worker_id]
        is_here = self.address.rpartition(":")[0].strip("[]") in _LOOPBACK
        told_by = _LOOPBACK[1] if is_here else ""
        self.others = {
            peer.worker_id: dialable(_as_addresses(peer.addresses), told_by=told_by)
            for peer in others[:MAX_WORKERS]
        }
        if self._session is not None:
            self._set_rank(self._session.rank)

    def _set_rank(self, rank: int) -> None:
        if rank != self.rank:
            self.rank = rank
            self.on_rank()

    def _on_trouble(self, error: RingleaderError | None) -> None:
        before, self._error = self._error, error
        if error is not None and before is None:
            self._since_s = time.time()
            verb, reason = _explain(error)
            goes_on = "; jobs go on without it" if self.rank >= 0 else ""
            self.on_event(f"coordinator {self.address} {verb}: {reason}{goes_on}")
        elif error is None and before is not None:
            self.on_event(f"coordinator {self.address} answers again")


def _explain(error: RingleaderError) -> tuple[str, str]:
    """Return what the coordinator does, and why, for the user."""
    if isinstance(error, PeerUntrusted):
        return "cannot be trusted", error.text
    if isinstance(error, PeerUnreachable | DeadlineExceeded):
        return "does not answer", error.text
    return "refuses this machine", error.text


def _as_texts(addresses: Sequence[Address]) -> tuple[str, ...]:
    return tuple(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in addresses)


def _as_addresses(texts: Sequence[str]) -> list[Address]:
    return [(each.host, each.port) for each in parse(",".join(texts))]
