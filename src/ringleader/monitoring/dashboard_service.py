"""The services ``dashboard`` and ``page`` of an agent, for commands of its user."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import msgspec

from ringleader.dashboard.access import LINK_S, Access
from ringleader.dashboard.http_message import BadRequest
from ringleader.dashboard.server import DashboardServer, Sources
from ringleader.errors import ConfigError
from ringleader.monitoring.cluster_monitor import ClusterMonitor
from ringleader.monitoring.messages import DashboardOpened, OpenDashboard
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.transport.listening_socket import listen

DASHBOARD = "dashboard"
"""Opens the dashboard and returns its link."""
PAGE = "page"
"""Answers each message with the state of the page, as JSON."""
LOOPBACK = "127.0.0.1"
REQUEST_S = 10.0
MAX_REQUEST_BYTES = 4096
IDLE_S = 60.0


def install(core: AgentCore) -> None:
    """Register the services at an agent."""
    monitor = ClusterMonitor(core)
    host = DashboardHost(monitor)

    async def serve_page(stream: ServiceStream) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                await stream.read(MAX_REQUEST_BYTES)
            state = await monitor.state()
            await stream.send_body(json.dumps(state, allow_nan=False).encode())

    core.services.register(DASHBOARD, host.serve, for_peers=False)
    core.services.register(PAGE, serve_page, for_peers=False)
    core.services.on_stop(host.stop)


class DashboardHost:
    """Opens the web server when a user first asks for it."""

    def __init__(self, monitor: ClusterMonitor) -> None:
        self._monitor = monitor
        self._access = Access()
        self._server: DashboardServer | None = None
        self._port = 0

    async def serve(self, stream: ServiceStream) -> None:
        """Open the dashboard for a command of this user and tell it the link."""
        async with asyncio.timeout(REQUEST_S):
            body = await stream.read(MAX_REQUEST_BYTES)
        try:
            request = msgspec.msgpack.decode(body, type=OpenDashboard)
        except msgspec.DecodeError as exc:
            raise ConfigError(
                f"the request for the dashboard is invalid: {exc}"
            ) from exc
        if self._server is None:
            await self._listen(request.port)
        token = self._access.issue_link(time.monotonic())
        url = f"http://{LOOPBACK}:{self._port}/#token={token}"
        await stream.send(DashboardOpened(url=url, valid_s=LINK_S))

    async def stop(self) -> None:
        """Close the web server."""
        if self._server is not None:
            await self._server.close()

    async def _listen(self, port: int) -> None:
        sock: socket.socket = listen(LOOPBACK, port)
        self._port = sock.getsockname()[1]
        names = (LOOPBACK, "localhost")
        origins = frozenset(f"http://{name}:{self._port}" for name in names)
        sources = Sources(self._monitor.state, _no_log, _no_stop)
        self._server = DashboardServer(self._access, sources, origins)
        await self._server.listen(sock)


async def _no_log(job: str, rank: int) -> str:
    raise BadRequest(404, f"no log of rank {rank} of job {job[:40]!r} is kept")


async def _no_stop(job: str) -> str:
    raise BadRequest(404, f"stop job {job[:40]!r} where it was started")
