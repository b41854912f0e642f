"""CoordinatorSession keeps one worker registered and knows its peers.

Three calls run beside each other: registering, heartbeats, and the list of peers. All
are repeated when they fail. A coordinator that restarts, or that has evicted the
worker, tells it so by the next heartbeat, and the worker registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ringleader.coordinator.client.channel import CoordinatorChannel, JobNamespace
from ringleader.coordinator.client.peer_list import Peer, PeerList
from ringleader.coordinator.grpc_tls import TlsSource
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerError,
    PeerRefused,
    ProtocolError,
    RingleaderError,
)

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 2.0
_CALL_S = 5.0
_UNREGISTER_S = 2.0
_TIMEOUTS_S = (0.01, 24 * 3600.0)
"""Heartbeat intervals that a coordinator may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it registers: its id and addresses, and the job it belongs to."""

    namespace: JobNamespace
    worker_id: str
    """Stays the same when the worker restarts: it returns to its rank."""
    addresses: tuple[str, ...]
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))


def _ignore(_: object) -> None:
    pass


class CoordinatorSession:
    """One worker at one coordinator. Use it from one asyncio loop.

    ``on_peers`` is called with all workers by rank, this one included, at every change;
    ``on_trouble`` with the error when the coordinator is lost, and with None when it is
    back.
    """

    def __init__(
        self,
        address: str,
        worker: WorkerInfo,
        *,
        tls: TlsSource | None = None,
        on_peers: Callable[[Mapping[int, Peer]], None] = _ignore,
        on_trouble: Callable[[RingleaderError | None], None] = _ignore,
    ) -> None:
        self.worker = worker
        self.rank = -1
        """The rank of this worker; -1 before it is registered."""
        self.trouble: RingleaderError | None = None
        """Why the coordinator cannot be used now."""
        self._channel = CoordinatorChannel(address, tls)
        self._list = PeerList(f"coordinator {address}")
        self._on_peers = on_peers
        self._on_trouble = on_trouble
        self._interval_s = 1.0
        self._is_announced = False
        """Whether the coordinator has the current addresses."""
        self._tasks: list[asyncio.Task[None]] = []
        self._troubles: dict[str, RingleaderError | None] = {}

    @property
    def peers(self) -> Mapping[int, Peer]:
        """All registered workers by rank, as far as known."""
        return self._list.peers

    async def start(self, deadline: Deadline) -> int:
        """Register, begin to send heartbeats and to watch peers; return the rank.

        A coordinator that does not answer is tried until the deadline. If this fails,
        nothing stays behind, at the coordinator neither.
        """
        try:
            await self._register_until(deadline)
        except BaseException:
            await self.close()
            raise
        for forever in (self._beat_forever, self._watch_forever):
            self._tasks.append(asyncio.create_task(forever()))
        return self.rank

    async def close(self) -> None:
        """Unregister and disconnect; may be called at any time, and twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            with contextlib.suppress(RingleaderError):
                # Also when registering failed: the call may have arrived.
                await self._unregister()
        finally:
            await self._channel.close()

    async def update_addresses(self, addresses: tuple[str, ...]) -> None:
        """Tell the others new addresses; if that fails now, then with a heartbeat."""
        self.worker = replace(self.worker, addresses=addresses)
        self._is_announced = False
        with contextlib.suppress(PeerError, ConfigError):
            await self._register(_CALL_S)

    async def start_checkpoint(self, step: int, path: str) -> pb.CheckpointState:
        """Begin the checkpoint of a step; all workers get the same one."""
        request = pb.StartCheckpointRequest(
            namespace=self.worker.namespace.message(),
            worker_id=self.worker.worker_id,
            step=step,
            path=path,
        )
        return _checkpoint(
            await self._channel.call("StartCheckpoint", request, _CALL_S)
        )

    async def end_checkpoint(self, step: int) -> pb.CheckpointState:
        """Say that this worker has written its part."""
        request = pb.EndCheckpointRequest(
            namespace=self.worker.namespace.message(),
            worker_id=self.worker.worker_id,
            step=step,
        )
        return _checkpoint(await self._channel.call("EndCheckpoint", request, _CALL_S))

    async def checkpoints(self) -> list[pb.CheckpointState]:
        """Return the checkpoints of this job, the latest first."""
        request = pb.GetCheckpointsRequest(namespace=self.worker.namespace.message())
        reply = await self._channel.call("GetCheckpoints", request, _CALL_S)
        return list(reply.checkpoints)

    # -- registering -------------------------------------------------------------------

    async def _register_until(self, deadline: Deadline) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._register(min(_CALL_S, max(deadline.left_s(), 0.1)))
            except (PeerRefused, ProtocolError):
                raise
            except PeerError as exc:
                self._set_trouble("register", exc)
                if deadline.left_s() <= wait_s:
                    raise
            else:
                self._set_trouble("register", None)
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _register(self, timeout_s: float) -> None:
        worker = self.worker
        request = pb.RegisterWorkerRequest(
            namespace=worker.namespace.message(),
            worker_id=worker.worker_id,
            incarnation=worker.incarnation,
            addresses=worker.addresses,
        )
        reply = await self._channel.call("RegisterWorker", request, timeout_s)
        interval_s = reply.heartbeat_interval_s
        if not _TIMEOUTS_S[0] <= interval_s <= _TIMEOUTS_S[1]:
            text = f"asks for a heartbeat every {interval_s} s"
            raise ProtocolError(f"coordinator {self._channel.address}", text)
        self._interval_s = interval_s
        self._is_announced = self.worker is worker
        self.rank = int(reply.rank)

    async def _unregister(self) -> None:
        request = pb.UnregisterWorkerRequest(
            namespace=self.worker.namespace.message(),
            worker_id=self.worker.worker_id,
            incarnation=self.worker.incarnation,
        )
        await self._channel.call("UnregisterWorker", request, _UNREGISTER_S)

    # -- repeated calls ----------------------------------------------------------------

    async def _beat_forever(self) -> None:
        """Send heartbeats; register again when told so. Ends if we were replaced."""
        while True:
            # Spread, so that workers that started together do not beat together.
            await asyncio.sleep(self._interval_s * random.uniform(0.9, 1.1))
            try:
                is_replaced = await self._beat()
            except (PeerError, ConfigError) as exc:
                self._set_trouble("heartbeat", exc)
                continue
            if is_replaced:
                who = f"another process registered as {self.worker.worker_id}"
                text = f"{who}; this one is not registered"
                coordinator = f"coordinator {self._channel.address}"
                self._set_trouble("heartbeat", PeerRefused(coordinator, text))
                return
            self._set_trouble("heartbeat", None)

    async def _beat(self) -> bool:
        """Send one heartbeat; return whether another process took our place."""
        # A late answer is better than a repeated call: it renewed the lease, too.
        timeout_s = max(min(_CALL_S, 3 * self._interval_s), 0.5)
        request = pb.HeartbeatRequest(
            namespace=self.worker.namespace.message(),
            worker_id=self.worker.worker_id,
            incarnation=self.worker.incarnation,
        )
        reply = await self._channel.beat(request, timeout_s)
        if reply.status == pb.HeartbeatResponse.STATUS_REPLACED:
            return True
        is_known = reply.status == pb.HeartbeatResponse.STATUS_OK
        if not is_known or not self._is_announced:
            await self._register(_CALL_S)
        return False

    async def _watch_forever(self) -> None:
        wait_s = _FIRST_WAIT_S
        request = pb.WatchPeersRequest(namespace=self.worker.namespace.message())
        while True:
            try:
                async with contextlib.aclosing(self._channel.watch(request)) as updates:
                    async for update in updates:
                        wait_s = _FIRST_WAIT_S
                        self._set_trouble("watch", None)
                        if self._list.apply(update):
                            self._on_peers(self._list.peers)
            except (PeerError, ConfigError) as exc:
                self._set_trouble("watch", exc)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _set_trouble(self, source: str, error: RingleaderError | None) -> None:
        self._troubles[source] = error
        trouble = next((each for each in self._troubles.values() if each), None)
        if (trouble is None) != (self.trouble is None):
            self._on_trouble(trouble)
        self.trouble = trouble


def _checkpoint(reply: object) -> pb.CheckpointState:
    assert isinstance(reply, pb.CheckpointState)
    return reply
