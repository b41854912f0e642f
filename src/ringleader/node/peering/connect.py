"""``connect``: opens a connection to a node by the first of its addresses that works.

Addresses are tried with a stagger, as in Happy Eyeballs (RFC 8305).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from ringleader.errors import (
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.ids import NodeId
from ringleader.node.peering.peer_authentication import (
    authenticate,
    check_hello_owner,
)
from ringleader.node.peering.peer_connection import (
    HANDSHAKE_S,
    TLS_SHUTDOWN_S,
    Address,
    HandshakeContext,
    PeerConnection,
    connection_error,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import AgentHello, read_hello

STAGGER_S = 0.25
"""How long an address may stay silent before the next is tried beside it."""


async def connect(
    handshake: HandshakeContext,
    addresses: Sequence[Address],
    purpose: str,
    *,
    subject: str = "",
    expect: NodeId | None = None,
) -> PeerConnection:
    """Connect to a node by the first of its addresses that works.

    Each address gets a head start over the next. If all fail, the most informative
    error is raised: a refusal says more than an unreachable address. It names the
    others, too: the refusal may come from a stranger that has the same private address.
    """
    todo, pending = list(addresses), set[asyncio.Task[PeerConnection]]()
    found: list[PeerConnection] = []
    errors: list[BaseException] = []
    try:
        while not found and (todo or pending):
            if todo:
                one = _connect_one(handshake, todo.pop(0), purpose, subject, expect)
                pending.add(asyncio.create_task(one))
            done, pending = await asyncio.wait(
                pending,
                timeout=STAGGER_S if todo else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            errors += [error for task in done if (error := task.exception())]
            found += [task.result() for task in done if task.exception() is None]
    finally:
        await _keep_first(found, pending)
    if not found:
        raise _most_informative(errors, expect)
    return found[0]


async def connect_control(
    handshake: HandshakeContext,
    addresses: Sequence[Address],
    expect: NodeId | None = None,
) -> PeerConnection:
    """Connect to a node for a control link."""
    return await connect(
        handshake,
        addresses,
        handshake.link_purpose,
        subject=handshake.link_subject,
        expect=expect,
    )


async def _keep_first(
    found: list[PeerConnection], pending: set[asyncio.Task[PeerConnection]]
) -> None:
    """End the attempts that are under way, and close all connections but the first."""
    for task in pending:
        task.cancel()
    try:
        rest = await asyncio.gather(*pending, return_exceptions=True)
    except asyncio.CancelledError:
        for connection in found:
            connection.abort()
        raise
    late = [each for each in rest if isinstance(each, PeerConnection)]
    for connection in [*found[1:], *late]:
        connection.close()


def _most_informative(
    errors: list[BaseException], expect: NodeId | None
) -> BaseException:
    order = (PeerRefused, PeerUntrusted, ProtocolError, PeerError, BaseException)
    if not errors:
        return PeerUnreachable(expect or "peer", "has no address that can be dialled")
    best = min(
        errors, key=lambda e: next(i for i, t in enumerate(order) if isinstance(e, t))
    )
    others = [e for e in errors if isinstance(e, PeerError) and e is not best]
    if not isinstance(best, PeerError) or not others:
        return best
    text = "; ".join([best.text, *map(str, others)])
    return type(best)(best.peer, text).with_traceback(best.__traceback__)


async def _connect_one(
    handshake: HandshakeContext,
    address: Address,
    purpose: str,
    subject: str,
    expect: NodeId | None,
) -> PeerConnection:
    who = f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(
                *address,
                limit=framing.MAX_BYTES,
                ssl=handshake.credentials.client,
                server_hostname=handshake.credentials.server_name(host=address[0]),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
            try:
                node = authenticate(handshake.credentials, writer, expect, who)
                hello_frame = framing.pack(handshake.hello(purpose, subject))
                framing.write(writer, hello_frame)
                hello = await _read_reply(reader, who, node)
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError as exc:
        raise PeerUnreachable(who, f"did not answer within {HANDSHAKE_S:g} s") from exc
    except OSError as exc:
        raise connection_error(who, exc) from exc
    return PeerConnection(node, hello, reader, writer, address)


async def _read_reply(
    reader: asyncio.StreamReader, who: str, node: NodeId
) -> AgentHello:
    try:
        hello = await read_hello(reader, who)
    except PeerLost as exc:
        if isinstance(exc.__cause__, ssl.SSLError):  # it refuses our certificate
            raise connection_error(who, exc.__cause__) from exc
        raise
    if hello.refusal:
        raise PeerRefused(who, hello.refusal)
    check_hello_owner(hello, node, who)
    return hello
