"""CoordinatorService: the calls of workers, from gRPC messages to the registry."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import NoReturn, Protocol, TypeVar

import grpc

from ringleader.coordinator.registry import events, limits, records
from ringleader.coordinator.registry.events import BeatReply
from ringleader.coordinator.registry.records import Namespace, Refusal, RefusalKind
from ringleader.coordinator.registry.state_machine import Registry
from ringleader.coordinator.server.peer_feed import PeerFeed
from ringleader.coordinator.server.registry_runner import RegistryRunner
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.coordinator.v1.coordinator_pb2_grpc import CoordinatorServicer
from ringleader.errors import ConfigError

HEARTBEATS_PER_TIMEOUT = 4
"""Heartbeats that workers send within the time-out: three may be lost in a row."""

_CODES = {
    RefusalKind.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
}
_STATUSES = {
    BeatReply.OK: pb.HeartbeatResponse.STATUS_OK,
    BeatReply.REGISTER_AGAIN: pb.HeartbeatResponse.STATUS_REGISTER_AGAIN,
    BeatReply.REPLACED: pb.HeartbeatResponse.STATUS_REPLACED,
}
_REASONS = {
    records.DepartureReason.UNREGISTERED: pb.Departure.REASON_UNREGISTERED,
    records.DepartureReason.EVICTED: pb.Departure.REASON_EVICTED,
}

T = TypeVar("T")


class Context(Protocol):
    """What we use of gRPC's context of a call."""

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """End the call with an error."""


class CoordinatorService(CoordinatorServicer):
    """Answers the calls. All of them run on one asyncio loop."""

    def __init__(
        self,
        registry: Registry,
        runner: RegistryRunner,
        feed: PeerFeed[Sequence[pb.PeersUpdate]],
    ) -> None:
        self._registry = registry
        self._runner = runner
        self._feed = feed

    async def RegisterWorker(  # noqa: N802 # the name in the protocol
        self, request: pb.RegisterWorkerRequest, context: Context
    ) -> pb.RegisterWorkerResponse:
        """Enter a worker and return its rank."""
        event = await _valid(context, lambda: _register(request))
        rank = await _accepted(context, self._runner.step(event), int)
        timeout_s = self._registry.heartbeat_timeout_s
        return pb.RegisterWorkerResponse(
            rank=rank,
            heartbeat_timeout_s=timeout_s,
            heartbeat_interval_s=timeout_s / HEARTBEATS_PER_TIMEOUT,
        )

    async def UnregisterWorker(  # noqa: N802
        self, request: pb.UnregisterWorkerRequest, context: Context
    ) -> pb.UnregisterWorkerResponse:
        """Remove a worker."""
        event = await _valid(context, lambda: events.Unregister(*_who(request)))
        self._runner.step(event)
        return pb.UnregisterWorkerResponse()

    async def Heartbeat(  # noqa: N802
        self, requests: AsyncIterator[pb.HeartbeatRequest], context: Context
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        """Renew the lease of a worker with every heartbeat."""
        async for request in requests:
            event = await _valid(context, functools.partial(_beat, request))
            reply = await _accepted(context, self._runner.step(event), BeatReply)
            yield pb.HeartbeatResponse(status=_STATUSES[reply])

    async def WatchPeers(  # noqa: N802
        self, request: pb.WatchPeersRequest, context: Context
    ) -> AsyncIterator[pb.PeersUpdate]:
        """Send all workers, then every change."""
        namespace = await _valid(context, lambda: _namespace(request.namespace))
        try:
            async with aclosing(self._feed.watch(namespace)) as updates:
                async for messages in updates:
                    for message in messages:
                        yield message
        except ConfigError as exc:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(exc))

    async def StartCheckpoint(  # noqa: N802
        self, request: pb.StartCheckpointRequest, context: Context
    ) -> pb.CheckpointState:
        """Begin a checkpoint."""
        event = await _valid(context, lambda: _start_checkpoint(request))
        reply = self._runner.step(event)
        checkpoint = await _accepted(context, reply, records.Checkpoint)
        return self._checkpoint_state(event.namespace, checkpoint)

    async def EndCheckpoint(  # noqa: N802
        self, request: pb.EndCheckpointRequest, context: Context
    ) -> pb.CheckpointState:
        """Note that a worker has written its part."""
        event = await _valid(context, lambda: _end_checkpoint(request))
        reply = self._runner.step(event)
        checkpoint = await _accepted(context, reply, records.Checkpoint)
        return self._checkpoint_state(event.namespace, checkpoint)

    async def GetCheckpoints(  # noqa: N802
        self, request: pb.GetCheckpointsRequest, context: Context
    ) -> pb.GetCheckpointsResponse:
        """Return one checkpoint, or the latest ones."""
        namespace = await _valid(context, lambda: _namespace(request.namespace))
        found = self._registry.checkpoints(namespace)
        if request.HasField("step"):
            found = [each for each in found if each.step == request.step]
        states = [self._checkpoint_state(namespace, each) for each in found]
        return pb.GetCheckpointsResponse(checkpoints=states)

    def _checkpoint_state(
        self, namespace: Namespace, checkpoint: records.Checkpoint
    ) -> pb.CheckpointState:
        by_rank = sorted(checkpoint.participants.items(), key=lambda each: each[1])
        participants = [
            pb.CheckpointState.Participant(
                rank=rank,
                worker_id=worker_id,
                is_done=worker_id in checkpoint.done,
                is_registered=self._registry.is_registered(namespace, worker_id),
            )
            for worker_id, rank in by_rank
        ]
        return pb.CheckpointState(
            step=checkpoint.step,
            path=checkpoint.path,
            participants=participants,
            is_complete=checkpoint.is_complete,
            started_at_s=checkpoint.started_at_s,
            completed_at_s=checkpoint.completed_at_s,
        )


def render(changes: records.PeerChanges) -> list[pb.PeersUpdate]:
    """Return the messages that tell a watcher of changes, each of limited size."""
    joined = [
        pb.Worker(
            rank=each.rank,
            worker_id=each.worker_id,
            incarnation=each.incarnation,
            addresses=each.addresses,
        )
        for each in changes.joined
    ]
    departed = [
        pb.Departure(
            rank=each.rank, worker_id=each.worker_id, reason=_REASONS[each.reason]
        )
        for each in changes.departed
    ]
    size = limits.WORKERS_PER_MESSAGE
    parts = [joined[i : i + size] for i in range(0, len(joined), size)] or [[]]
    messages = [
        pb.PeersUpdate(version=changes.version, joined=part, continues=True)
        for part in parts
    ]
    messages[0].is_snapshot = changes.is_snapshot
    messages[0].departed.extend(departed)
    messages[-1].continues = False
    return messages


async def _valid(context: Context, build: Callable[[], T]) -> T:
    """Return what ``build`` makes of a request, or end the call."""
    try:
        return build()
    except ConfigError as exc:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))


async def _accepted(context: Context, reply: object, kind: type[T]) -> T:
    """Return the reply of the registry, or end the call if it refused."""
    if isinstance(reply, Refusal):
        await context.abort(_CODES[reply.kind], reply.text)
    assert isinstance(reply, kind)
    return reply


def _namespace(found: pb.Namespace) -> Namespace:
    key = limits.check_key(found.key)
    return Namespace(hashlib.sha256(key).digest(), limits.check_job(found.job))


def _who(
    request: pb.RegisterWorkerRequest
    | pb.UnregisterWorkerRequest
    | pb.HeartbeatRequest,
) -> tuple[Namespace, str, str]:
    return (
        _namespace(request.namespace),
        limits.check_id("worker_id", request.worker_id),
        limits.check_id("incarnation", request.incarnation),
    )


def _register(request: pb.RegisterWorkerRequest) -> events.Register:
    return events.Register(*_who(request), limits.check_addresses(request.addresses))


def _beat(request: pb.HeartbeatRequest) -> events.Beat:
    return events.Beat(*_who(request))


def _start_checkpoint(request: pb.StartCheckpointRequest) -> events.StartCheckpoint:
    return events.StartCheckpoint(
        _namespace(request.namespace),
        limits.check_id("worker_id", request.worker_id),
        limits.check_step(request.step),
        limits.check_path(request.path),
        time.time(),
    )


def _end_checkpoint(request: pb.EndCheckpointRequest) -> events.EndCheckpoint:
    return events.EndCheckpoint(
        _namespace(request.namespace),
        limits.check_id("worker_id", request.worker_id),
        limits.check_step(request.step),
        time.time(),
    )
