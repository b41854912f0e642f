"""CoordinatorServer: the gRPC server with all its services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ringleader.coordinator.grpc_tls import TlsSource, server_credentials
from ringleader.coordinator.registry.limits import MAX_REQUEST_BYTES
from ringleader.coordinator.registry.state_machine import Registry
from ringleader.coordinator.server.listen_address import ListenAddress
from ringleader.coordinator.server.peer_feed import PeerFeed
from ringleader.coordinator.server.registry_runner import RegistryRunner
from ringleader.coordinator.server.service import CoordinatorService, render
from ringleader.coordinator.server.state_file import StateFile
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.coordinator.v1.coordinator_pb2_grpc import (
    add_CoordinatorServicer_to_server,
)
from ringleader.errors import ConfigError
from ringleader.grpc_server import new_server
from ringleader.identity.certificates.pem import PemCredentials

MIN_TIMEOUT_S = 0.1
MAX_TIMEOUT_S = 3600.0

_SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"].full_name
_STOP_S = 1.0
_ROTATION_CHECK_S = 1.0
_CHANNEL_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second coordinator on the port is an error
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.server_handshake_timeout_ms", 5000),
    # Certificates are verified again at least every hour.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
    # A watcher that vanished without a word is noticed after 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Clients may ask as often as that whether we are alive, also between calls.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the command line says."""

    listen: ListenAddress
    heartbeat_timeout_s: float = 10.0
    state: Path | None = None
    """None keeps the state in memory only."""
    tls: TlsSource | None = None
    """None is plaintext; the caller has checked that this is allowed."""

    def __post_init__(self) -> None:
        if not MIN_TIMEOUT_S <= self.heartbeat_timeout_s <= MAX_TIMEOUT_S:
            text = f"--heartbeat-timeout is {self.heartbeat_timeout_s:g} s"
            text = f"{text}; use {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g}"
            raise ConfigError(text)


def _ignore(_: str) -> None:
    pass


class CoordinatorServer:
    """A coordinator on one asyncio loop: ``start``, then ``stop``."""

    def __init__(
        self, options: ServerOptions, report: Callable[[str], None] = _ignore
    ) -> None:
        self._options = options
        self._report = report
        self.port = options.listen.port
        """The port that it listens on, after ``start``."""
        self.num_restored = 0
        """Workers that were registered before the restart."""
        self._state: StateFile | None = None
        self._service: CoordinatorService | None = None
        self._server: grpc.aio.Server | None = None
        self._pem: PemCredentials | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the state and listen; ConfigError says why that is impossible."""
        registry = self._load()
        feed: PeerFeed[Sequence[pb.PeersUpdate]] = PeerFeed(registry, render)
        runner = RegistryRunner(registry, feed.notify, self._state)
        self._service = CoordinatorService(registry, runner, feed)
        try:
            await self._listen()
        except ConfigError:
            await self.stop()
            raise
        self._tasks.append(asyncio.create_task(runner.tick_forever()))
        if self._options.tls is not None:
            watch = self._watch_certificates(self._options.tls)
            self._tasks.append(asyncio.create_task(watch))

    async def serve_until(self, end: asyncio.Event) -> None:
        """Wait for ``end``, or raise what ended a part of the server: without it
        nobody would be evicted, or certificates would not be renewed."""
        ending = asyncio.create_task(end.wait())
        done, _ = await asyncio.wait(
            [ending, *self._tasks], return_when=asyncio.FIRST_COMPLETED
        )
        ending.cancel()
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop serving; may be called at any time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(_STOP_S)
        if self._state is not None:
            self._state.close()

    def _load(self) -> Registry:
        timeout_s, path = self._options.heartbeat_timeout_s, self._options.state
        if path is None:
            return Registry(timeout_s)
        self._state, registry = StateFile.open(
            path,
            lambda saved: Registry.restored(timeout_s, saved, time.monotonic()),
            self._report,
        )
        self.num_restored = sum(len(job.leases) for job in registry.jobs.values())
        return registry

    async def _listen(self) -> None:
        address = ListenAddress(self._options.listen.host, self.port)
        if reason := address.why_not():  # gRPC would neither say it nor clean up
            raise ConfigError(f"cannot listen on {address}: {reason}")
        server = new_server(_CHANNEL_OPTIONS)
        add_CoordinatorServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        names = (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        for name in ("", _SERVICE):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.port = self._bind(server, address)
        await server.start()
        self._server = server

    def _bind(self, server: grpc.aio.Server, address: ListenAddress) -> int:
        try:
            if self._options.tls is None:
                return int(server.add_insecure_port(str(address)))
            self._pem = self._options.tls()
            credentials = server_credentials(self._pem)
            return int(server.add_secure_port(str(address), credentials))
        except RuntimeError as exc:  # gRPC's only error here
            raise ConfigError(f"cannot listen on {address}: {exc}") from None

    async def _watch_certificates(self, tls: TlsSource) -> None:
        """Listen anew when the certificates change.

        That disconnects all clients, and should: a connection would outlive the
        authority that vouched for it. Workers connect again within seconds.
        """
        while True:
            await asyncio.sleep(_ROTATION_CHECK_S)
            if tls() is self._pem:
                continue
            assert self._server is not None
            await self._server.stop(None)
            while True:
                try:
                    await self._listen()
                except ConfigError as exc:
                    self._report(f"{exc}; trying again")
                    await asyncio.sleep(_ROTATION_CHECK_S)
                else:
                    break
