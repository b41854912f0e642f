"""Relays between two calls: the packets of one become those of the other."""

from __future__ import annotations

import asyncio

import grpc

from ringleader.transport.star.pump import LOST, PacketStream, data_of, reason_of
from ringleader.transport.star.v1 import star_pb2 as messages


class ServerStream:
    """The packets of a call on its server's side. Only one write is under way.

    gRPC takes the next packet only when the last one has left, even if the task that
    wrote it has been cancelled.
    """

    def __init__(self, context: PacketStream) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self.is_over = asyncio.Event()
        """Set when the call shall end, or has ended."""

    async def read(self) -> object:
        """See PacketStream."""
        return await self._context.read()

    async def write(self, packet: messages.Packet) -> None:
        """See PacketStream."""
        writing = asyncio.ensure_future(self._write(packet))
        writing.add_done_callback(_note_error)
        await asyncio.shield(writing)

    async def _write(self, packet: messages.Packet) -> None:
        async with self._lock:
            await self._context.write(packet)

    async def settle(self) -> None:
        """Wait for a write that is under way; a call cannot end before."""
        async with self._lock:
            pass

    async def end(self, reason: str) -> None:
        """End the call, after its last packet, with a reason."""
        try:
            if not self.is_over.is_set():
                await self.write(messages.Packet(end=messages.End(reason=reason)))
        except grpc.aio.BaseError:
            pass  # the other side has ended the call
        finally:
            self.is_over.set()


def _note_error(task: asyncio.Future[None]) -> None:
    """Keep asyncio from reporting the error of a write that nobody waits for."""
    if not task.cancelled():
        task.exception()


async def splice(source: ServerStream, other: ServerStream) -> tuple[str, str]:
    """Relay until one side ends; return the reasons to give to source and other."""
    there = asyncio.ensure_future(_forward(source, other))
    back = asyncio.ensure_future(_forward(other, source))
    gone = asyncio.ensure_future(other.is_over.wait())
    try:
        await asyncio.wait({there, back, gone}, return_when=asyncio.FIRST_COMPLETED)
        return _result(back), _result(there)
    finally:
        for task in (there, back, gone):
            task.cancel()
        await asyncio.gather(there, back, gone, return_exceptions=True)


async def _forward(source: PacketStream, to: PacketStream) -> str:
    """Write every packet of ``source`` to ``to``; return the reason of its end."""
    while True:
        packet = await source.read()
        if data_of(packet) is None:
            return reason_of(packet)
        assert isinstance(packet, messages.Packet)
        await to.write(packet)


def _result(task: asyncio.Future[str]) -> str:
    """Return the reason that a finished relay has read; LOST if it was cut off."""
    return LOST if not task.done() or task.exception() else task.result()
