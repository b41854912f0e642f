"""Hub is rank 0's side of a star: it accepts workers and relays between them.

A connection of a worker to rank 0 ends in a socket of this process. One between two
workers is two calls, and each packet of one is written to the other before the next is
read. So a reader that does not read stops its sender, and the hub holds a few packets
per connection. Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, ProtocolError
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.transport.star.channel import open_server
from ringleader.transport.star.member import Member
from ringleader.transport.star.pump import LOST, pump, receive_some
from ringleader.transport.star.relay import ServerStream, splice
from ringleader.transport.star.stream_listener import StreamListener
from ringleader.transport.star.stream_socket import (
    StreamSocket,
    hang_up,
    stream_socket_pair,
)
from ringleader.transport.star.v1 import star_pb2 as messages
from ringleader.transport.star.v1 import star_pb2_grpc as stubs
from ringleader.transport.star.workers import Workers
from ringleader.transport.tcp_socket import retry_pauses
from ringleader.wire import hello as wire

FIRST_PACKET_S = 5.0
"""Time for the first packet of a call, which says what it is for."""
Key = tuple[int, bytes, int, int, int, int]
"""Group, incarnation of its mesh, from, to, purpose and stripe of a connection."""


class Hub:
    """The gRPC service of one star."""

    def __init__(
        self,
        member: Member,
        listener: StreamListener,
        accepts: Callable[[str], bool] | None,
    ) -> None:
        self._size = member.size
        self._listener = listener
        self._server: Any = None
        self._workers = Workers(member, accepts)
        self._open_keys: set[Key] = set()
        self._awaited: dict[int, tuple[int, asyncio.Future[ServerStream]]] = {}
        self._num_connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(
        self, host: str, ports: range, pem: PemCredentials | None, deadline: Deadline
    ) -> int:
        """Start to serve on the first free port, and return it.

        Waits for a port: an earlier star may still carry the links of its workers.
        """
        pauses, port = retry_pauses(), 0
        while self._server is None:
            try:
                self._server, port = open_server(host, ports, pem)
            except ConfigError:
                if deadline.is_over():
                    raise
                await asyncio.sleep(min(next(pauses), deadline.left_s()))
        stubs.add_StarServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        await self._server.start()
        return port

    async def Attach(self, request: messages.AttachRequest, context: Any) -> None:  # noqa: ANN401, N802
        """Serve one worker until it leaves."""
        await self._workers.attach(request, context)

    # -- connections ---------------------------------------------------------------

    async def Connect(self, _: object, context: Any) -> None:  # noqa: ANN401, N802
        """Serve one connection of a worker."""
        try:
            await self._serve(context)
        except TimeoutError:
            text = f"no packet came within {FIRST_PACKET_S} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:
            pass  # the worker has ended the call; gRPC would print a traceback

    async def _serve(self, context: Any) -> None:  # noqa: ANN401
        first = await asyncio.wait_for(context.read(), FIRST_PACKET_S)
        kind = None
        if isinstance(first, messages.Packet):
            kind = first.WhichOneof("kind")
        if kind == "open":
            await self._serve_open(first.open, context)
        elif kind == "accept":
            await self._serve_accept(first.accept, context)
        else:
            text = "the first packet is neither Open nor Accept"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)

    async def _serve_open(self, request: messages.Open, context: Any) -> None:  # noqa: ANN401
        source = (await self._workers.find(request.token, context)).rank
        try:
            key = self._key(request.hello, source, request.to_rank)
        except ProtocolError as exc:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
            raise
        if key in self._open_keys:
            text = f"rank {source} has this connection to rank {request.to_rank} open"
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, text)
        self._open_keys.add(key)
        try:
            if request.to_rank == 0:
                await self._track(self._serve_local(source, request.hello, context))
            else:
                await self._relay(source, request, context)
        finally:
            self._open_keys.discard(key)

    def _key(self, hello: bytes, source: int, to: int) -> Key:
        found = wire.decode_hello(hello, f"rank {source}")
        if to >= self._size or to == source:
            raise ProtocolError(f"rank {source}", f"there is no rank {to} to connect")
        return (
            found.group,
            found.incarnation,
            source,
            to,
            found.purpose,
            found.stripe,
        )

    async def _serve_local(self, source: int, hello: bytes, context: Any) -> None:  # noqa: ANN401
        rank_end, sock = stream_socket_pair()
        rank_end.reason = LOST
        try:
            sock.send(hello)  # it is empty and has room
            self._listener.hand(rank_end, source)
            stream = ServerStream(context)
            rank_end.reason = await pump(sock, stream)
        finally:
            hang_up(sock)
        await stream.settle()

    async def _relay(self, source: int, request: messages.Open, context: Any) -> None:  # noqa: ANN401
        stream = ServerStream(context)
        other = await self._call(source, request.to_rank)
        to_source, to_other = LOST, LOST
        try:
            await other.write(messages.Packet(data=request.hello))
            to_source, to_other = await splice(stream, other)
        finally:
            self._start(other.end(to_other))
        await stream.end(to_source)

    async def _serve_accept(self, request: messages.Accept, context: Any) -> None:  # noqa: ANN401
        worker = await self._workers.find(request.token, context)
        to, future = self._awaited.get(request.connection, (-1, None))
        if to != worker.rank or future is None or future.done():
            text = f"connection {request.connection} is gone"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
            return
        stream = ServerStream(context)
        future.set_result(stream)
        try:
            await stream.is_over.wait()
        finally:
            stream.is_over.set()

    async def _call(self, source: int, to: int) -> ServerStream:
        """Ask worker ``to``, once it is there, to accept a connection of ``source``."""
        worker = await self._workers.wait_for(to)
        self._num_connections += 1
        number = self._num_connections
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ServerStream] = loop.create_future()
        self._awaited[number] = to, future
        incoming = messages.Incoming(connection=number, from_rank=source)
        worker.notices.put_nowait(messages.Notice(incoming=incoming))
        try:
            return await future
        finally:
            del self._awaited[number]

    def open(self, to: int, rank_end: StreamSocket, sock: socket.socket) -> None:
        """Connect rank 0 itself to worker ``to``; ``sock`` is the end of the pump."""
        self._start(self._open(to, rank_end, sock))

    async def _open(self, to: int, rank_end: StreamSocket, sock: socket.socket) -> None:
        rank_end.reason = LOST
        try:
            hello = await receive_some(sock, wire.HELLO_BYTES)
            other = await self._call(0, to)
            try:
                await other.write(messages.Packet(data=hello))
                rank_end.reason = await pump(sock, other)
                hang_up(sock)
                await other.settle()
            finally:
                other.is_over.set()
        finally:
            hang_up(sock)

    # -- the end -------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _track(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a part of a call so that ``flush`` waits for it."""
        await self._start(coroutine)

    async def flush(self, within_s: float) -> None:
        """Wait until the connections that rank 0 has closed are sent."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def leave(self, linger_s: float) -> None:
        """Carry the links of others until they leave, too, then stop to listen."""
        await self._workers.wait_until_gone(linger_s)
        await self._server.stop(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
