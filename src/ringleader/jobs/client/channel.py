"""``Channel``: one conversation with the jobs service of a machine.

All go through the resident agent of this machine, which proves to the others who we
are.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError, DeadlineExceeded, PeerLost
from ringleader.jobs.protocol.job_spec import JobMachine
from ringleader.jobs.protocol.messages import (
    MAX_MESSAGE_BYTES,
    PURPOSE,
    JobReply,
    JobRequest,
    decode_job_reply,
)
from ringleader.node.launch.resident_agent import (
    ask_snapshot,
    connect_to_resident,
    find_resident,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_config import run_directory
from ringleader.node.protocol.local_requests import (
    RequestFailed,
    UseService,
    decode_reply,
)
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.node.protocol.socket_path import short_path

CONNECT_S = 15.0
"""Limit for reaching a machine through our agent."""
AGENT = "the agent of this machine"


@dataclass(frozen=True, slots=True)
class ResidentAgent:
    """The agent that ``ringleader up`` started on this machine."""

    path: Path
    """Its Unix socket."""
    snapshot: Snapshot


def find_agent(home: Path) -> ResidentAgent | None:
    """Return the resident agent of this machine; None if none is up."""
    record = find_resident(home)
    client = connect_to_resident(home, record) if record is not None else None
    if record is None or client is None:
        return None
    try:
        return ResidentAgent(run_directory(home) / record.socket, ask_snapshot(client))
    finally:
        client.close()


def require_agent(home: Path) -> ResidentAgent:
    """Return the resident agent; raises ``ConfigError`` if none is up."""
    found = find_agent(home)
    if found is None:
        raise ConfigError("no agent runs on this machine; start it with: ringleader up")
    return found


@dataclass(slots=True)
class Channel:
    """Requests to one machine, and its replies."""

    machine: JobMachine
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, path: Path, machine: JobMachine) -> Channel:
        """Open a conversation with a machine; raises ``PeerError``."""
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await _connect(path)
                made = cls(machine, reader, writer)
                try:
                    await made._begin()
                except BaseException:
                    made.close()
                    raise
        except TimeoutError as exc:
            text = f"did not answer within {CONNECT_S:g} s"
            raise DeadlineExceeded(machine.name, text) from exc
        return made

    async def _begin(self) -> None:
        await self._write(UseService(PURPOSE, self.machine.node))
        body = await framing.read(self.reader, AGENT, MAX_MESSAGE_BYTES)
        reply = decode_reply(body)
        if isinstance(reply, RequestFailed):
            raise reply.to_error()

    async def send(self, request: JobRequest) -> None:
        """Send one message."""
        await self._write(request)

    async def _write(self, message: object) -> None:
        try:
            self.writer.write(framing.pack(message))
            await self.writer.drain()
        except OSError as exc:
            raise PeerLost(self.machine.name, "closed the connection") from exc

    async def receive(self, within_s: float | None) -> JobReply:
        """Return the next reply; raises ``PeerError``, also for a reported error."""
        name = self.machine.name
        try:
            async with asyncio.timeout(within_s):
                body = await framing.read(self.reader, name, MAX_MESSAGE_BYTES)
        except TimeoutError as exc:
            raise DeadlineExceeded(name, f"said nothing for {within_s:g} s") from exc
        return decode_job_reply(body, name)

    async def ask(self, request: JobRequest, within_s: float) -> JobReply:
        """Send a request and return the first reply."""
        await self.send(request)
        return await self.receive(within_s)

    def close(self) -> None:
        """Close the conversation."""
        with contextlib.suppress(RuntimeError, OSError):
            self.writer.close()


async def _connect(
    path: Path,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        with short_path(path) as address:
            await asyncio.get_running_loop().sock_connect(sock, address)
        return await asyncio.open_connection(sock=sock, limit=1 << 20)
    except OSError as exc:
        sock.close()
        text = "is gone; start it again with: ringleader up"
        raise PeerLost(AGENT, text) from exc
