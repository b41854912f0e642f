"""pump moves the bytes of one connection between a socket and a gRPC stream.

Both directions have back-pressure: a chunk is read from one side only when the other
side has taken the one before. So a connection holds a few chunks, however slow a reader
is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from ringleader.transport.star.v1 import star_pb2 as messages

CHUNK_BYTES = 256 << 10
"""Bytes read from a socket for one packet; a socketpair holds about as many."""
MAX_DATA_BYTES = 1 << 20
"""Limit of the data in a packet that we accept."""
MAX_REASON = 500
LOST = "its connection to rank 0, which carries this link, ended; was it killed?"


class PacketStream(Protocol):
    """The packets of a call, on its client's or its server's side."""

    async def read(self) -> object:
        """Return the next packet, or something else at the end."""
        ...

    async def write(self, packet: messages.Packet) -> None:
        """Send a packet; returns when there is room for the next."""
        ...


async def pump(
    sock: socket.socket,
    stream: PacketStream,
    finish: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Move bytes until one side closes; return why it was lost, or nothing.

    What was sent before a close arrives. Errors of the stream are raised. A client
    passes ``finish``, which ends its half of the call: a call that it cancelled would
    lose bytes that the server has not read yet.
    """
    sending = asyncio.ensure_future(_send(sock, stream))
    receiving = asyncio.ensure_future(_receive(sock, stream))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        has_closed = sending.done() and sending.exception() is None
        if has_closed and finish is None:
            return ""
        if has_closed and finish is not None:
            await finish()
        return await receiving
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)


async def _send(sock: socket.socket, stream: PacketStream) -> None:
    while data := await receive_some(sock, CHUNK_BYTES):
        await stream.write(messages.Packet(data=data))
    await stream.write(messages.Packet(end=messages.End()))


async def _receive(sock: socket.socket, stream: PacketStream) -> str:
    loop = asyncio.get_running_loop()
    while True:
        packet = await stream.read()
        data = data_of(packet)
        if data is None:
            return reason_of(packet)
        with contextlib.suppress(OSError):  # the rank has closed: nobody reads it
            await loop.sock_sendall(sock, data)


async def receive_some(sock: socket.socket, num_bytes: int) -> bytes:
    """Return up to ``num_bytes`` from the rank; nothing once it has closed."""
    with contextlib.suppress(OSError):
        return await asyncio.get_running_loop().sock_recv(sock, num_bytes)
    return b""


def data_of(packet: object) -> bytes | None:
    """Return the data of a packet; None for any other packet and at the end."""
    if not isinstance(packet, messages.Packet) or packet.WhichOneof("kind") != "data":
        return None
    return packet.data if len(packet.data) <= MAX_DATA_BYTES else None


def reason_of(packet: object) -> str:
    """Return why a stream was lost whose last packet is ``packet``, or that has
    none."""
    if isinstance(packet, messages.Packet) and packet.WhichOneof("kind") == "end":
        return packet.end.reason[:MAX_REASON]
    return LOST
