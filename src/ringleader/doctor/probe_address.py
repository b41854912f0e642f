"""``probe_address``: dials one address as agents do and reports how far it gets.

The doctor needs the step at which a connection fails: no route, no answer, another
secret, another version. It also tries small packets where large ones get lost, which
only an attempt with both can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from dataclasses import dataclass, replace

from ringleader.deadline import Deadline
from ringleader.doctor.facts import Address, DialOutcome, DialResult, format_address
from ringleader.errors import PeerError, PeerLost, PeerUntrusted, ProtocolError
from ringleader.node.peering.peer_authentication import authenticate
from ringleader.node.peering.peer_connection import (
    TLS_SHUTDOWN_S,
    HandshakeContext,
    PeerConnection,
    connection_error,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import (
    MAX_HELLO_BYTES,
    PROTOCOL,
    AgentHello,
    Purpose,
    decode_hello,
)
from ringleader.node.protocol.local_requests import decode_reply
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.node_profile import clean

CONNECT_S = 3.6
"""Linux needs three seconds to find out that no host has an address."""
HANDSHAKE_S = 2.5
"""TLS and hello take milliseconds; a busy machine may need longer."""
SMALL_SEGMENT_BYTES = 536
"""TCP segments of this size pass every network."""

_OUTCOMES = {
    errno.ECONNREFUSED: DialOutcome.REFUSED,
    errno.ECONNRESET: DialOutcome.REFUSED,
    errno.ETIMEDOUT: DialOutcome.SILENT,
    errno.EHOSTUNREACH: DialOutcome.NO_HOST,
    getattr(errno, "EHOSTDOWN", -1): DialOutcome.NO_HOST,
    errno.EMFILE: DialOutcome.NO_DESCRIPTOR,
    errno.ENFILE: DialOutcome.NO_DESCRIPTOR,
}


@dataclass(slots=True)
class DialFailed(Exception):
    """A connection failed: how far it came, and the hello if one was read."""

    outcome: DialOutcome
    text: str
    hello: AgentHello | None = None


async def probe_address(
    handshake: HandshakeContext, address: Address, deadline: Deadline
) -> DialResult:
    """Connect to an address, ask for the status there, and return how far that went."""
    found = await _probe(handshake, address, deadline, small_segments=False)
    if found.outcome is not DialOutcome.STALLED or deadline.is_over():
        return found
    # Either large packets are lost or the machine is very busy; a second try tells.
    small, again = await asyncio.gather(
        _probe(handshake, address, deadline, small_segments=True),
        _probe(handshake, address, deadline, small_segments=False),
    )
    is_lost = small.outcome is DialOutcome.REACHED is not again.outcome
    return replace(small, needs_small_segments=True) if is_lost else again


async def _probe(
    handshake: HandshakeContext,
    address: Address,
    deadline: Deadline,
    *,
    small_segments: bool,
) -> DialResult:
    asked_s = time.time()
    try:
        connection = await open_connection(
            handshake, address, Purpose.STATUS, deadline, small_segments=small_segments
        )
    except DialFailed as exc:
        return _result(address, exc.outcome, exc.hello, text=exc.text)
    ahead_s = clock_ahead_s(connection.hello.clock_s, asked_s, time.time())
    try:
        snapshot = await _read_snapshot(connection, deadline)
    finally:
        connection.abort()
    found = _result(address, DialOutcome.REACHED, connection.hello)
    return replace(
        found, node=connection.node, clock_ahead_s=ahead_s, snapshot=snapshot
    )


def clock_ahead_s(read_s: float, asked_s: float, answered_s: float) -> float:
    """Return by how much another clock is ahead at least.

    ``read_s`` is what it showed at some time between ``asked_s`` and ``answered_s``.
    """
    if read_s > answered_s:
        return read_s - answered_s
    return min(0.0, read_s - asked_s)


def _result(
    address: Address, outcome: DialOutcome, hello: AgentHello | None, *, text: str = ""
) -> DialResult:
    if hello is None:
        return DialResult(address=address, outcome=outcome, text=text)
    return DialResult(
        address=address,
        outcome=outcome,
        text=text,
        node=hello.node,
        incarnation=hello.incarnation,
        name=clean(hello.name) or "?",
        version=clean(hello.version),
        protocol=hello.protocol,
    )


async def _read_snapshot(
    connection: PeerConnection, deadline: Deadline
) -> Snapshot | None:
    """Return what the node knows of the cluster; None if it does not arrive."""
    try:
        async with asyncio.timeout(min(HANDSHAKE_S, deadline.left_s())):
            body = await framing.read(connection.reader, connection.node)
        reply = decode_reply(body)
    except (PeerError, TimeoutError):
        return None
    return reply if isinstance(reply, Snapshot) else None


async def open_connection(
    handshake: HandshakeContext,
    address: Address,
    purpose: str,
    deadline: Deadline,
    *,
    small_segments: bool = False,
) -> PeerConnection:
    """Connect to the node at ``address``; raises ``DialFailed``."""
    sock = await _connect(address, deadline, small_segments=small_segments)
    try:
        async with asyncio.timeout(min(HANDSHAKE_S, deadline.left_s())):
            return await _shake_hands(handshake, sock, address, purpose)
    except TimeoutError as exc:
        raise DialFailed(DialOutcome.STALLED, str(DialOutcome.STALLED)) from exc
    except ProtocolError as exc:
        raise DialFailed(DialOutcome.OTHER_VERSION, exc.text) from exc
    except PeerUntrusted as exc:
        raise DialFailed(DialOutcome.FOREIGN, exc.text) from exc
    except PeerLost as exc:
        raise DialFailed(DialOutcome.HUNG_UP, exc.text) from exc
    except OSError as exc:
        error = connection_error(format_address(address), exc)
        raise DialFailed(_handshake_outcome(exc, error), error.text) from exc


def _handshake_outcome(exc: OSError, error: PeerError) -> DialOutcome:
    """Tell a ringleader node with another secret from any other kind of server."""
    if isinstance(exc, ConnectionError) or isinstance(error, PeerLost):
        return DialOutcome.HUNG_UP
    is_foreign = isinstance(error, PeerUntrusted)
    return DialOutcome.FOREIGN if is_foreign else DialOutcome.STRANGE


async def _shake_hands(
    handshake: HandshakeContext, sock: socket.socket, address: Address, purpose: str
) -> PeerConnection:
    ours = handshake.credentials
    reader, writer = await asyncio.open_connection(
        sock=sock,
        limit=framing.MAX_BYTES,
        ssl=ours.client,
        server_hostname=ours.server_name(host=address[0]),
        ssl_shutdown_timeout=TLS_SHUTDOWN_S,
    )
    try:
        node = authenticate(ours, writer, None, format_address(address))
        writer.write(framing.pack(handshake.hello(purpose, "")))
        hello = await _read_reply(reader, format_address(address))
    except BaseException:
        writer.transport.abort()
        raise
    return PeerConnection(node, hello, reader, writer, address)


async def _read_reply(reader: asyncio.StreamReader, who: str) -> AgentHello:
    """Read the reply to our hello, keeping one of another version for the report."""
    hello = decode_hello(await framing.read(reader, who, MAX_HELLO_BYTES), who)
    if hello.protocol != PROTOCOL or hello.refusal:
        text = clean(hello.refusal) or f"speaks protocol {hello.protocol}"
        raise DialFailed(DialOutcome.OTHER_VERSION, text, hello)
    return hello


async def _connect(
    address: Address, deadline: Deadline, *, small_segments: bool
) -> socket.socket:
    if deadline.left_s() < 0.1:
        raise DialFailed(DialOutcome.NO_TIME, str(DialOutcome.NO_TIME))
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        if small_segments:
            limit_segments(sock)
        async with asyncio.timeout(min(CONNECT_S, deadline.left_s())):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except TimeoutError as exc:
        _close(sock)
        raise DialFailed(DialOutcome.SILENT, str(DialOutcome.SILENT)) from exc
    except OSError as exc:
        _close(sock)
        outcome = _OUTCOMES.get(exc.errno or 0, DialOutcome.NO_ROUTE)
        raise DialFailed(outcome, exc.strerror or str(exc)) from exc
    return sock


def limit_segments(sock: socket.socket) -> None:
    """Make both ends send small packets, on systems that can limit them."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
