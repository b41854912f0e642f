"""Spoke is a worker's side of a star: one channel to rank 0 for all its connections.

Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerRefused, PeerUnreachable, PeerUntrusted
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.transport.dialer import SILENCE_S
from ringleader.transport.star.channel import open_channel
from ringleader.transport.star.member import VERSION, Member
from ringleader.transport.star.pump import LOST, pump, receive_some
from ringleader.transport.star.stream_listener import StreamListener
from ringleader.transport.star.stream_socket import (
    StreamSocket,
    hang_up,
    stream_socket_pair,
)
from ringleader.transport.star.v1 import star_pb2 as messages
from ringleader.transport.star.v1 import star_pb2_grpc as stubs
from ringleader.transport.tcp_socket import Address, format_addresses, retry_pauses
from ringleader.wire import hello as wire

FLUSH_S = 2.0
"""Time to send what closed connections still hold."""
Target = tuple[Address, PemCredentials | None]
"""An address of rank 0, and the certificates to dial it."""
_REFUSALS = (
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
)
"""Codes with which a hub ends a connection; after any other one, rank 0 is lost."""
_ABSENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
"""Codes after which another attempt may succeed: rank 0 may not have started yet, or it
closes the star of the group before, which cancels calls that it has not answered."""


class Spoke:
    """The connections of one worker."""

    def __init__(self, member: Member, listener: StreamListener) -> None:
        self._member = member
        self._listener = listener
        self._where = "the root of the star"
        self._channel: Any = None
        self._stub: Any = None
        self._token = b""
        self._watch: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- rank 0 --------------------------------------------------------------------

    async def attach(self, targets: Sequence[Target], deadline: Deadline) -> Address:
        """Enter the star and return the address of rank 0 that answered.

        While rank 0 is not there, all addresses are tried until ``deadline``.
        """
        pauses = retry_pauses()
        for target in itertools.cycle(targets):
            limit_s = SILENCE_S if len(targets) > 1 else deadline.left_s()
            try:
                attachment = await self._try(target, min(limit_s, deadline.left_s()))
            except grpc.aio.AioRpcError as exc:
                await self._channel.close()
                if exc.code() not in _ABSENT or _is_untrusted(exc):
                    raise self._refused(exc) from exc
                if deadline.is_over():
                    raise self._unreachable(exc, deadline) from exc
            else:
                self._watch = asyncio.ensure_future(self._watch_notices(attachment))
                return target[0]
            await asyncio.sleep(min(next(pauses), deadline.left_s()))
        raise ConfigError("the root of the star has no address")

    async def _try(self, target: Target, within_s: float) -> Any:  # noqa: ANN401
        """Return a call of Attach that rank 0 has welcomed."""
        address, pem = target
        self._where = f"the root of the star at {format_addresses([address])}"
        self._channel = open_channel(address, pem)
        self._stub = stubs.StarStub(self._channel)  # type: ignore[no-untyped-call]
        request = messages.AttachRequest(
            version=VERSION,
            world=self._member.world,
            rank=self._member.rank,
            size=self._member.size,
            namespace=self._member.namespace,
        )
        attachment = self._stub.Attach(request)
        try:
            async with asyncio.timeout(max(0.05, within_s)):
                notice = await attachment.read()
        except TimeoutError:
            raise _silence(within_s) from None
        if notice is grpc.aio.EOF:
            raise PeerRefused(0, f"{self._where} ended the call at once")
        self._token = notice.welcome.token
        return attachment

    def _refused(self, exc: grpc.aio.AioRpcError) -> PeerRefused | PeerUntrusted:
        if _is_untrusted(exc):
            return PeerUntrusted(0, f"{self._where}: {exc.details()}")
        return PeerRefused(0, f"{self._where} refused us: {exc.details()}")

    def _unreachable(
        self, exc: grpc.aio.AioRpcError, deadline: Deadline
    ) -> PeerUnreachable:
        text = (
            f"{self._where} did not answer within {deadline.after_s:.1f} s "
            f"({exc.details()}); is it started, and is the port open in its firewall?"
        )
        return PeerUnreachable(0, text)

    async def _watch_notices(self, attachment: Any) -> None:  # noqa: ANN401
        """Accept connections until rank 0 ends the attachment."""
        why = "it closed the star"
        try:
            while (notice := await attachment.read()) is not grpc.aio.EOF:
                number = notice.incoming.connection
                self._start(self._accept(number, notice.incoming.from_rank))
        except grpc.aio.AioRpcError as exc:
            why = str(exc.details())
        self._listener.lose(f"{self._where}, which carries all links, was lost ({why})")

    # -- connections ---------------------------------------------------------------

    def open(self, to: int, rank_end: StreamSocket, sock: socket.socket) -> None:
        """Open a connection to rank ``to``; ``sock`` is the end of the pump."""
        self._start(self._open(to, rank_end, sock))

    async def _open(self, to: int, rank_end: StreamSocket, sock: socket.socket) -> None:
        try:
            hello = await receive_some(sock, wire.HELLO_BYTES)
            first = messages.Open(token=self._token, to_rank=to, hello=hello)
            await self._carry(messages.Packet(open=first), to, rank_end, sock)
        finally:
            hang_up(sock)

    async def _accept(self, number: int, source: int) -> None:
        rank_end, sock = stream_socket_pair()
        try:
            self._listener.hand(rank_end, source)
            first = messages.Accept(token=self._token, connection=number)
            await self._carry(messages.Packet(accept=first), source, rank_end, sock)
        finally:
            hang_up(sock)

    async def _carry(
        self,
        first: messages.Packet,
        other: int,
        rank_end: StreamSocket,
        sock: socket.socket,
    ) -> None:
        """Make the call that carries a connection, and move its bytes."""
        rank_end.reason = LOST
        try:
            call = self._stub.Connect()
            await call.write(first)
            rank_end.reason = await pump(sock, call, call.done_writing)
        except grpc.aio.AioRpcError as exc:
            rank_end.reason = str(exc.details())
            if exc.code() not in _REFUSALS or other == 0:
                rank_end.is_root_lost = True
                where = f"{self._where}, which carries this link, was lost"
                rank_end.reason = f"{where} ({exc.details()})"

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self, within_s: float) -> None:
        """Wait until what the closed connections still hold is sent."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def leave(self, linger_s: float) -> None:
        """Send what is left, then leave the star."""
        await self.flush(min(linger_s, FLUSH_S))
        tasks = [*self._tasks, *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()


def _silence(within_s: float) -> grpc.aio.AioRpcError:
    """Return the error of a call that rank 0 has not answered."""
    return grpc.aio.AioRpcError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(),
        details=f"silent for {within_s:.1f} s",
    )


def _is_untrusted(exc: grpc.aio.AioRpcError) -> bool:
    """Return whether the TLS handshake failed because of a certificate."""
    details = str(exc.details()).lower()
    return "certificate" in details or "tsi_" in details
