"""The services ``dashboard`` and ``page`` of an agent, for commands of its user."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import msgspec

from ringleader.dashboard.access import CODE_S, LINK_S, Access
from ringleader.dashboard.server import DashboardServer, Sources
from ringleader.errors import ConfigError
from ringleader.monitoring.cluster_monitor import ClusterMonitor
from ringleader.monitoring.messages import DashboardOpened, OpenDashboard
from ringleader.monitoring.shared_page import SharedPage
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
    host = DashboardHost(core, monitor)

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

    def __init__(self, core: AgentCore, monitor: ClusterMonitor) -> None:
        watch = monitor.job_watch
        self._access = Access()
        self._sources = Sources(monitor.state, watch.log_tail, watch.stop_job)
        self._server: DashboardServer | None = None
        self._port = 0
        home = Path(core.config.home)
        self._shared = SharedPage(
            self._access, self._sources, home, lambda: core.local.addresses
        )

    async def serve(self, stream: ServiceStream) -> None:
        """Open the dashboard for a command of this user and tell it the link."""
        async with asyncio.timeout(REQUEST_S):
            body = await stream.read(MAX_REQUEST_BYTES)
        try:
            request = msgspec.msgpack.decode(body, type=OpenDashboard)
        except msgspec.DecodeError as exc:
            text = f"the request for the dashboard is invalid: {exc}"
            raise ConfigError(text) from exc
        if request.is_shared:
            await stream.send(await self._share(request.port))
        else:
            await stream.send(await self._open(request.port))

    async def stop(self) -> None:
        """Close the web servers."""
        if self._server is not None:
            await self._server.close()
        await self._shared.close()

    async def _open(self, port: int) -> DashboardOpened:
        if self._server is None:
            await self._listen(port)
        token = self._access.issue_link(time.monotonic())
        url = f"http://{LOOPBACK}:{self._port}/#token={token}"
        return DashboardOpened(url=url, valid_s=LINK_S)

    async def _share(self, port: int) -> DashboardOpened:
        code = self._access.issue_code(time.monotonic())
        await self._shared.open(port)
        urls = self._shared.urls
        if not urls:
            await self._shared.close()
            raise ConfigError("this machine is in no network that a phone could reach")
        return DashboardOpened(
            url=urls[0],
            valid_s=CODE_S,
            shared_urls=urls,
            code=code,
            fingerprint=self._shared.fingerprint,
        )

    async def _listen(self, port: int) -> None:
        sock: socket.socket = listen(LOOPBACK, port)
        self._port = sock.getsockname()[1]
        names = (LOOPBACK, "localhost")
        origins = frozenset(f"http://{name}:{self._port}" for name in names)
        server = DashboardServer(self._access, self._sources, lambda: origins)
        await server.listen(sock)
        self._server = server
