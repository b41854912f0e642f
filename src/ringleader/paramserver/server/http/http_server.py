"""Serves a training run over HTTP until it is over."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import uvicorn

from ringleader.errors import ConfigError, RingleaderError
from ringleader.log_limit import limited_logs
from ringleader.paramserver.server.http.app import App
from ringleader.paramserver.server.http.connection_limits import (
    ConnectionAcceptor,
    LimitedProtocol,
)
from ringleader.paramserver.server.http.request_limits import (
    MAX_HEAD_BYTES,
    RequestLimits,
)
from ringleader.paramserver.server.http.server_metrics import RequestCounter
from ringleader.paramserver.server.training import TICK_S, Training

LINGER_S = 30.0
"""Time that a finished server waits for workers that do not know it yet."""
KEEP_ALIVE_S = 75
"""Time between two requests on a connection: longer than most steps take."""
_GRACEFUL_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address that the server listens on."""

    host: str = "0.0.0.0"
    port: int = 8000

    def listen(self) -> socket.socket:
        """Open the listening socket; ConfigError if the port is in use."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server(
                (self.host, self.port), family=family, backlog=512
            )
        except (OSError, OverflowError) as exc:
            text = f"cannot listen on {self.host} port {self.port}: {exc}"
            raise ConfigError(f"{text}; choose another --port or --host") from exc

    def check(self, *, is_open: bool) -> None:
        """Raise ConfigError if an open server would accept workers from elsewhere."""
        if is_open and not self.is_private:
            raise ConfigError(
                "--open accepts every worker that can connect, so it listens on "
                f"127.0.0.1 only, not on {self.host}"
            )

    @property
    def is_private(self) -> bool:
        """True if only programs on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class HttpServer:
    """Serves one application: ``run`` in the main thread, or ``serve`` in a loop."""

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        context: ssl.SSLContext | Callable[[], ssl.SSLContext] | None,
    ) -> None:
        """``context`` is for TLS; a function is called for each connection."""
        self._app = app
        self._training: Training = app.training
        self._listener = listener
        self._context = context
        self._config = uvicorn.Config(
            RequestCounter(RequestLimits(app.starlette()), app.metrics.registry),
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # logs of malformed requests would fill a disk
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACEFUL_S,
        )
        self._server = _Server(self._config, self._training.stop)
        self.on_version: Callable[[], None] = lambda: None
        """Called in the loop after each tick, to show progress."""
        self.linger_s = LINGER_S

    def run(self) -> None:
        """Serve until training is over or Ctrl-C; raise the error that ended it."""
        # Windows has another loop by default, which cannot wait for a first byte.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self.serve())

    async def serve(self) -> None:
        """Like ``run``, in a running event loop."""
        self._config.load()
        context = self._context
        source = (lambda: context) if isinstance(context, ssl.SSLContext) else context
        acceptor = ConnectionAcceptor(self._listener, self._protocol, source)
        self._acceptor = acceptor
        accepting = asyncio.create_task(acceptor.accept())
        ticking = asyncio.create_task(self._tick())
        try:
            with limited_logs("asyncio", "uvicorn.error"):
                await self._server.serve(sockets=[])
        finally:
            self._training.stop()
            for task in (accepting, ticking):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await acceptor.close()
            await self._training.drain()
            self._listener.close()
        if self._training.failure is not None:
            raise self._training.failure

    def stop(self) -> None:
        """Make ``serve`` return soon. Any thread may call this."""
        self._server.should_exit = True

    def _protocol(self) -> LimitedProtocol:
        state: dict[str, LimitedProtocol] = {}
        protocol = LimitedProtocol(self._config, self._server.server_state, state)
        protocol.acceptor = self._acceptor
        state["connection"] = protocol  # for mark_worker, as request.state.connection
        return protocol

    async def _tick(self) -> None:
        training = self._training
        finished_s: float | None = None
        while training.failure is None:
            await asyncio.sleep(TICK_S)
            with suppress(RingleaderError):  # it is training.failure now
                await training.tick()
            self._app.updates.sweep()
            self.on_version()
            if training.scheduler.is_finished:
                now_s = time.monotonic()
                finished_s = now_s if finished_s is None else finished_s
                # A worker that knows that training is over leaves, but the response
                # that says so may have been lost.
                is_alone = not training.scheduler.workers.connected(now_s)
                if is_alone or now_s - finished_s > self.linger_s:
                    break
        self.stop()


class _Server(uvicorn.Server):
    """Ends long polls before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, end_polls: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_polls = end_polls

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the long polls, then shut down as uvicorn does."""
        self._end_polls()
        await super().shutdown(sockets)
