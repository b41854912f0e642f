"""``Monitoring``: the services of an agent for the dashboard and its page."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import msgspec

from ringleader.dashboard.access import CODE_S, LINK_S, Access
from ringleader.dashboard.server import DashboardServer, Sources
from ringleader.decoding import from_msgpack
from ringleader.errors import ConfigError, PeerLost
from ringleader.monitoring.cluster_monitor import ClusterMonitor
from ringleader.monitoring.machine_feed import send_feed
from ringleader.monitoring.messages import DashboardOpened, OpenDashboard
from ringleader.monitoring.shared_page import SharedPage
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.transport.listening_socket import listen

LOOPBACK = "127.0.0.1"
REQUEST_S = 10.0
MAX_REQUEST_BYTES = 4096
IDLE_S = 60.0


class Monitoring:
    """Everything that an agent does for the dashboard, made when it is first used."""

    def __init__(self, core: AgentCore) -> None:
        self._home = Path(core.config.home)
        self._monitor = ClusterMonitor(core)
        self._host = DashboardHost(core, self._monitor)

    async def serve_machine(self, stream: ServiceStream) -> None:
        """Tell another member, or a process of this user, the load of this machine."""
        await send_feed(stream, self._home)

    async def serve_dashboard(self, stream: ServiceStream) -> None:
        """Open the dashboard for a command of this user and tell it the link."""
        await self._host.serve(stream)

    async def serve_page(self, stream: ServiceStream) -> None:
        """Answer each message with the state of the page, as JSON."""
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    await stream.read(MAX_REQUEST_BYTES)
            except TimeoutError as exc:
                raise PeerLost(stream.who, f"asked nothing for {IDLE_S:g} s") from exc
            state = await self._monitor.state()
            await stream.send_body(json.dumps(state, allow_nan=False).encode())

    async def stop(self) -> None:
        """Close the web servers, and stop to follow the other members."""
        await self._host.stop()
        await self._monitor.stop()


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
            request = from_msgpack(body, OpenDashboard)
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
