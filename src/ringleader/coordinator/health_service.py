"""The standard gRPC health service of a worker; its answers come from probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ringleader.errors import ConfigError
from ringleader.grpc_server import new_server

WATCH_EVERY_S = 1.0
STOP_S = 1.0
MAX_CALLS = 32
MAX_REQUEST_BYTES = 4096

Ask = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns what is wrong, by name; empty if nothing is."""

_Status = health_pb2.HealthCheckResponse


class _HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # untyped
    def __init__(self, services: Mapping[str, Ask]) -> None:
        self._services = services

    async def Check(  # noqa: N802 - the name in the protocol
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext,
    ) -> health_pb2.HealthCheckResponse:
        status = await self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            names = ", ".join(name for name in self._services if name)
            text = f"no service {request.service[:80]!r}; there are {names}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return _Status(status=status)

    async def Watch(  # noqa: N802 - the name in the protocol
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Send the status, and again when it changes, until the caller hangs up."""
        last = None
        while True:
            status = await self._status(request.service)
            if status != last:
                last = status
                yield _Status(status=status)
            await asyncio.sleep(WATCH_EVERY_S)

    async def _status(
        self, service: str
    ) -> health_pb2.HealthCheckResponse.ServingStatus:
        ask = self._services.get(service)
        if ask is None:
            return _Status.SERVICE_UNKNOWN
        return _Status.NOT_SERVING if await ask() else _Status.SERVING


async def serve_health(
    host: str, port: int, services: Mapping[str, Ask]
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Serve on ``port``, 0 for any; return the port and what stops the service."""
    server = new_server(
        (
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ),
        max_calls=MAX_CALLS,
    )
    health_pb2_grpc.add_HealthServicer_to_server(_HealthServicer(services), server)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(where)
    except RuntimeError as exc:
        await server.stop(None)
        raise ConfigError(f"cannot listen on {where} for gRPC health: {exc}") from exc
    await server.start()

    async def stop() -> None:
        await server.stop(STOP_S)

    return bound, stop
