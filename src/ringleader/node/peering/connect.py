"""Going out: all known addresses of a node are tried, the first that works wins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ringleader.errors import (
    PeerError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.ids import NodeId
from ringleader.node.peering.peer_connection import (
    GOODBYE_S,
    GREETING_S,
    Address,
    Greeting,
    Guest,
    check_owner,
    explain,
    prove,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.framing import Hello

STAGGER_S = 0.25
"""How long an address may stay silent before the next is tried beside it."""


async def dial(
    greeting: Greeting,
    addresses: Sequence[Address],
    purpose: str,
    *,
    subject: str = "",
    expect: NodeId | None = None,
) -> Guest:
    """Reach one node by the first of its addresses that works.

    Each address is given a head start over the next. The error of the address that came
    furthest is raised: being refused says more than not being reached.
    """
    todo, pending = list(addresses), set[asyncio.Task[Guest]]()
    found: list[Guest] = []
    errors: list[BaseException] = []
    try:
        while not found and (todo or pending):
            if todo:
                one = _dial_one(greeting, todo.pop(0), purpose, subject, expect)
                pending.add(asyncio.create_task(one))
            done, pending = await asyncio.wait(
                pending,
                timeout=STAGGER_S if todo else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            errors += [error for task in done if (error := task.exception())]
            found += [task.result() for task in done if task.exception() is None]
    finally:
        for task in pending:
            task.cancel()
        rest = await asyncio.gather(*pending, return_exceptions=True)
        for guest in [*found[1:], *(each for each in rest if isinstance(each, Guest))]:
            guest.close()
    if not found:
        raise _furthest(errors, expect)
    return found[0]


def _furthest(errors: list[BaseException], expect: NodeId | None) -> BaseException:
    """The most telling of several failures: being refused says more than silence."""
    rank = (PeerRefused, PeerUntrusted, ProtocolError, PeerError, BaseException)
    if not errors:
        return PeerUnreachable(expect or "peer", "has no address that we can dial")
    return min(
        errors, key=lambda e: next(i for i, t in enumerate(rank) if isinstance(e, t))
    )


async def _dial_one(
    greeting: Greeting,
    address: Address,
    purpose: str,
    subject: str,
    expect: NodeId | None,
) -> Guest:
    who = f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(GREETING_S):
            reader, writer = await asyncio.open_connection(
                *address,
                limit=framing.MAX_BYTES,
                ssl=greeting.credentials.client,
                server_hostname=greeting.credentials.server_name(),
                ssl_handshake_timeout=GREETING_S,
                ssl_shutdown_timeout=GOODBYE_S,
            )
            try:
                node = prove(greeting.credentials, writer, expect)
                writer.write(framing.pack(greeting.hello(purpose, subject)))
                hello = await _answer(reader, who, node)
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError as exc:
        raise PeerUnreachable(who, f"silent for {GREETING_S:g} s") from exc
    except OSError as exc:
        raise explain(who, exc) from exc
    return Guest(node, hello, reader, writer, address)


async def _answer(reader: asyncio.StreamReader, who: str, node: NodeId) -> Hello:
    hello = await framing.read_hello(reader, who)
    if hello.refusal:
        raise PeerRefused(who, hello.refusal)
    check_owner(hello, node, who)
    return hello
