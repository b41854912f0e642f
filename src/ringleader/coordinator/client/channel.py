"""CoordinatorChannel: single calls to a coordinator, with deadlines and our errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc

from ringleader.coordinator.client import unavailable
from ringleader.coordinator.grpc_tls import TlsSource, channel_credentials
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.coordinator.v1.coordinator_pb2_grpc import CoordinatorStub
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.tls_probe import speaks_tls, why_refused
from ringleader.identity.secret_value import Secret

MAX_UPDATE_BYTES = 4 << 20
"""Largest message that a coordinator may send us; its own limit is a third of it."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_UPDATE_BYTES),
    # A coordinator that restarts is found within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Time for one attempt to connect: when all workers come back at once, the last
    # handshakes wait for seconds, and giving up would make them begin again.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A coordinator that vanished without a word is noticed after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each channel has a connection of its own, with its own certificate.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class JobNamespace:
    """The job in which a worker registers."""

    key: Secret[bytes]
    """``ClusterSecret.coordinator_key()``."""
    job: str = ""

    def message(self) -> pb.Namespace:
        """Return it as a message."""
        return pb.Namespace(key=self.key.reveal(), job=self.job)


class CoordinatorChannel:
    """A connection to a coordinator. Use it from one asyncio loop.

    Certificates that have changed are used for the next call.
    """

    def __init__(self, address: str, tls: TlsSource | None) -> None:
        self.address = address
        self._tls = tls
        self._pem: PemCredentials | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._beats: Any = None

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:  # noqa: ANN401 # any message
        """Make one call; RingleaderError says why it failed."""
        stub = await self._connected()
        try:
            return await getattr(stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as exc:
            raise await self._error(exc, method) from None
        except asyncio.CancelledError:
            self._check_not_closed(method)
            raise

    async def beat(
        self, request: pb.HeartbeatRequest, timeout_s: float
    ) -> pb.HeartbeatResponse:
        """Send a heartbeat on a stream that stays open, and return the answer."""
        stub = await self._connected()
        if self._beats is None or self._beats.done():
            self._beats = stub.Heartbeat()
        stream = self._beats
        try:
            async with asyncio.timeout(timeout_s):
                await stream.write(request)
                reply = await stream.read()
        except grpc.aio.AioRpcError as exc:
            raise await self._error(exc, "Heartbeat") from None
        except (TimeoutError, asyncio.CancelledError) as exc:
            stream.cancel()  # its answer would be taken for that of the next one
            if isinstance(exc, TimeoutError):
                text = f"Heartbeat: did not answer within {timeout_s:g} s"
                raise DeadlineExceeded(self._name, text) from None
            self._check_not_closed("Heartbeat")
            raise
        if not isinstance(reply, pb.HeartbeatResponse):
            raise PeerUnreachable(self._name, "ended the heartbeats")
        return reply

    async def watch(
        self, request: pb.WatchPeersRequest
    ) -> AsyncGenerator[pb.PeersUpdate]:
        """Yield updates until the connection breaks, which is an error.

        There is no deadline: keepalive notices a coordinator that vanished.
        """
        stub = await self._connected()
        stream = stub.WatchPeers(request)
        try:
            async for update in stream:
                yield update
        except grpc.aio.AioRpcError as exc:
            raise await self._error(exc, "WatchPeers") from None
        except asyncio.CancelledError:
            self._check_not_closed("WatchPeers")
            raise
        finally:
            stream.cancel()
        raise PeerUnreachable(self._name, "ended the list of peers")

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        self._stub = self._beats = None
        if channel is not None:
            await channel.close()

    def _check_not_closed(self, method: str) -> None:
        """Raise PeerUnreachable if not our task was cancelled, but the call alone.

        That is what gRPC does to the calls of a channel that is closed, as is the one
        with the former certificates.
        """
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise PeerUnreachable(self._name, f"{method}: the connection was replaced")

    async def _why_refused(self, details: str) -> str:
        """Return why certificates do not fit, if that may be it; else nothing."""
        is_about_trust = unavailable.is_about_trust(details)
        broke = unavailable.reason(details) == unavailable.BROKE
        if self._pem is None or not (is_about_trust or broke):
            return ""
        return await asyncio.to_thread(why_refused, *self._where, self._pem)

    async def _is_tls_refused(self) -> bool:
        """Return whether we come without TLS to a coordinator that uses it."""
        if self._pem is not None:
            return False
        return await asyncio.to_thread(speaks_tls, *self._where)

    @property
    def _where(self) -> tuple[str, int]:
        parts = urlsplit(f"//{self.address}")
        return parts.hostname or "", parts.port or 0

    @property
    def _name(self) -> str:
        return f"coordinator {self.address}"

    async def _connected(self) -> Any:  # noqa: ANN401 # the stub is generated, untyped
        pem = self._tls() if self._tls is not None else None
        if self._channel is not None and pem is not self._pem:
            await self.close()
        if self._channel is None:
            self._pem = pem
            self._channel = _open(self.address, pem)
            self._stub = CoordinatorStub(self._channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def _error(self, exc: grpc.aio.AioRpcError, method: str) -> RingleaderError:
        text = f"{method}: {exc.details()}"
        if exc.code() == grpc.StatusCode.INVALID_ARGUMENT:
            return ConfigError(f"{self._name}: {text}")
        if exc.code() == grpc.StatusCode.UNAVAILABLE:
            details = exc.details() or ""
            if why := await self._why_refused(details):
                return PeerUntrusted(self._name, why)
            if unavailable.is_about_trust(details):
                return PeerUntrusted(self._name, unavailable.NOT_TRUSTED)
            reason = unavailable.reason(details)
            if reason == unavailable.BROKE and await self._is_tls_refused():
                reason = f"{reason}: it uses TLS; leave out --plaintext"
            return PeerUnreachable(self._name, reason)
        kind = _ERRORS.get(exc.code(), PeerRefused)
        return kind(self._name, text)


_ERRORS: dict[grpc.StatusCode, Callable[[str, str], PeerError]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: PeerUntrusted,
    grpc.StatusCode.CANCELLED: PeerUnreachable,
}


def _open(address: str, pem: PemCredentials | None) -> grpc.aio.Channel:
    if pem is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    if pem.host_name:
        options.append(("grpc.ssl_target_name_override", pem.host_name))
    credentials = channel_credentials(pem)
    return grpc.aio.secure_channel(address, credentials, options=options)
