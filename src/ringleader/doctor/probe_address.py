"""Dialling one address the way agents do, and noting how far it goes.

Agents only want to get through. The doctor wants to know at which step it fails: no way
there, no answer, another secret, another version. And whether small packets get through
where large ones do not, which nothing but trying both can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from dataclasses import dataclass, replace

import msgspec

from ringleader.deadline import Deadline
from ringleader.doctor.facts import Outcome, Place, Visit, spell
from ringleader.errors import PeerError, PeerLost, PeerUntrusted, ProtocolError
from ringleader.node.peering.peer_connection import (
    GOODBYE_S,
    Greeting,
    Guest,
    explain,
    prove,
)
from ringleader.node.protocol import framing, local_requests
from ringleader.node.protocol.framing import Hello
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.node_profile import clean

CONNECT_S = 3.6
"""Linux needs three seconds to find out that nobody has an address."""
GREETING_S = 2.5
"""TLS and hello take milliseconds; a machine that is busy may need longer."""
SMALL_SEGMENT_BYTES = 536
"""What every network carries."""
STATUS = "status"

_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ECONNRESET: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.SILENT,
    errno.EHOSTUNREACH: Outcome.NO_HOST,
    getattr(errno, "EHOSTDOWN", -1): Outcome.NO_HOST,
    errno.EMFILE: Outcome.NO_DESCRIPTOR,
    errno.ENFILE: Outcome.NO_DESCRIPTOR,
}


@dataclass(slots=True)
class Failed(Exception):
    """A dial that ended early: how far it came, and what was heard until then."""

    outcome: Outcome
    text: str
    hello: Hello | None = None


async def visit(greeting: Greeting, place: Place, deadline: Deadline) -> Visit:
    """Dial an address, ask for the status there, and say how far that went."""
    found = await _visit(greeting, place, deadline, is_small=False)
    if found.outcome is not Outcome.STALLED or deadline.is_over():
        return found
    # Large packets lost, or a machine that is very busy? The second try tells.
    small, again = await asyncio.gather(
        _visit(greeting, place, deadline, is_small=True),
        _visit(greeting, place, deadline, is_small=False),
    )
    is_lost = small.outcome is Outcome.REACHED is not again.outcome
    return replace(small, needs_small=True) if is_lost else again


async def _visit(
    greeting: Greeting, place: Place, deadline: Deadline, *, is_small: bool
) -> Visit:
    asked_s = time.time()
    try:
        guest = await introduce(greeting, place, STATUS, deadline, is_small=is_small)
    except Failed as exc:
        return _describe(place, exc.outcome, exc.hello, text=exc.text)
    ahead_s = clock_ahead_s(guest.hello.clock_s, asked_s, time.time())
    try:
        snapshot = await _status(guest, deadline)
    finally:
        guest.abort()
    found = _describe(place, Outcome.REACHED, guest.hello)
    return replace(found, node=guest.node, clock_ahead_s=ahead_s, snapshot=snapshot)


def clock_ahead_s(told_s: float, asked_s: float, heard_s: float) -> float:
    """How far another clock is ahead at least, if it was read in between."""
    if told_s > heard_s:
        return told_s - heard_s
    return min(0.0, told_s - asked_s)


def _describe(
    place: Place, outcome: Outcome, hello: Hello | None, *, text: str = ""
) -> Visit:
    if hello is None:
        return Visit(place=place, outcome=outcome, text=text)
    return Visit(
        place=place,
        outcome=outcome,
        text=text,
        node=hello.node,
        incarnation=hello.incarnation,
        name=clean(hello.name) or "?",
        version=clean(hello.version),
        protocol=hello.protocol,
    )


async def _status(guest: Guest, deadline: Deadline) -> Snapshot | None:
    """What it knows of the cluster; None when that does not come through."""
    try:
        async with asyncio.timeout(min(GREETING_S, deadline.left_s())):
            body = await framing.read(guest.reader, guest.node)
        reply = local_requests.decode_reply(body)
    except (PeerError, TimeoutError):
        return None
    return reply if isinstance(reply, Snapshot) else None


async def introduce(
    greeting: Greeting,
    place: Place,
    purpose: str,
    deadline: Deadline,
    *,
    is_small: bool = False,
) -> Guest:
    """A connection to the node at ``place``; raises Failed."""
    sock = await _connect(place, deadline, is_small=is_small)
    try:
        async with asyncio.timeout(min(GREETING_S, deadline.left_s())):
            return await _greet(greeting, sock, place, purpose)
    except TimeoutError as exc:
        raise Failed(Outcome.STALLED, str(Outcome.STALLED)) from exc
    except ProtocolError as exc:
        raise Failed(Outcome.OTHER_VERSION, exc.text) from exc
    except PeerUntrusted as exc:
        raise Failed(Outcome.FOREIGN, exc.text) from exc
    except PeerLost as exc:
        raise Failed(Outcome.HUNG_UP, exc.text) from exc
    except OSError as exc:
        error = explain(spell(place), exc)
        raise Failed(_outcome_of_handshake(exc, error), error.text) from exc


def _outcome_of_handshake(exc: OSError, error: PeerError) -> Outcome:
    """Who speaks TLS like us has another secret; who does not is something else."""
    if isinstance(exc, ConnectionError) or isinstance(error, PeerLost):
        return Outcome.HUNG_UP
    return Outcome.FOREIGN if isinstance(error, PeerUntrusted) else Outcome.STRANGE


async def _greet(
    greeting: Greeting, sock: socket.socket, place: Place, purpose: str
) -> Guest:
    ours = greeting.credentials
    reader, writer = await asyncio.open_connection(
        sock=sock,
        limit=framing.MAX_BYTES,
        ssl=ours.client,
        server_hostname=ours.server_name(),
        ssl_shutdown_timeout=GOODBYE_S,
    )
    try:
        node = prove(ours, writer, None)
        writer.write(framing.pack(greeting.hello(purpose, "")))
        hello = await _hear(reader, spell(place))
    except BaseException:
        writer.transport.abort()
        raise
    return Guest(node, hello, reader, writer, place)


async def _hear(reader: asyncio.StreamReader, who: str) -> Hello:
    """The answer to our hello, read with more patience for versions than agents do."""
    body = await framing.read(reader, who, framing.MAX_HELLO_BYTES)
    try:
        hello = framing.HELLO.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(who, f"says hello in words we do not know ({exc})") from exc
    if hello.protocol != framing.PROTOCOL or hello.refusal:
        text = clean(hello.refusal) or f"speaks protocol {hello.protocol}"
        raise Failed(Outcome.OTHER_VERSION, text, hello)
    return hello


async def _connect(
    place: Place, deadline: Deadline, *, is_small: bool
) -> socket.socket:
    if deadline.left_s() < 0.1:
        raise Failed(Outcome.NO_TIME, str(Outcome.NO_TIME))
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    sock = None
    try:
        sock = open_socket(family, is_small=is_small)
        async with asyncio.timeout(min(CONNECT_S, deadline.left_s())):
            await asyncio.get_running_loop().sock_connect(sock, place)
    except TimeoutError as exc:
        _close(sock)
        raise Failed(Outcome.SILENT, str(Outcome.SILENT)) from exc
    except OSError as exc:
        _close(sock)
        outcome = _OUTCOMES.get(exc.errno or 0, Outcome.NO_WAY)
        raise Failed(outcome, exc.strerror or str(exc)) from exc
    return sock


def open_socket(family: int, *, is_small: bool) -> socket.socket:
    """A socket that does not block; ``is_small``: with small packets both ways."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    if is_small:
        limit_segments(sock)
    return sock


def limit_segments(sock: socket.socket) -> None:
    """Have both ends send small packets; where the system cannot, they stay large."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
