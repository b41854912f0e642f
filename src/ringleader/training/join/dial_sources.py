"""Dials the members of a run that a learner can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from ringleader.errors import PeerError, PeerUnreachable
from ringleader.membership.member import Member
from ringleader.node.peering.connect import connect
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.protocol.hello import Purpose

MAX_SOURCES = 4
MEET_S = 10.0
_RETRY_S = 0.2


class Contacts(Protocol):
    """What the control thread of a run knows about its members."""

    me: Member

    @property
    def handshake(self) -> HandshakeContext:
        """For connections to members."""
        ...

    def addresses(self) -> Mapping[str, Sequence[Address]]:
        """Return where the other workers can be dialled."""
        ...


async def dial_sources(
    contacts: Contacts, known: Sequence[Sequence[Address]] = ()
) -> list[PeerConnection]:
    """Return connections to up to four members.

    ``known`` are addresses beside those of ``contacts``. Raises PeerUnreachable if no
    member answers within ten seconds.
    """
    errors: list[str] = []
    try:
        async with asyncio.timeout(MEET_S):
            while True:
                targets = [*known, *contacts.addresses().values()][: 4 * MAX_SOURCES]
                tries = [_dial(contacts, addresses) for addresses in targets]
                found = await asyncio.gather(*tries, return_exceptions=True)
                errors = [str(e) for e in found if isinstance(e, PeerError)]
                met = {e.node: e for e in found if isinstance(e, PeerConnection)}
                for each in found:
                    if isinstance(each, PeerConnection) and met[each.node] is not each:
                        each.close()
                met.pop(contacts.me.node, None)
                chosen = [met[node] for node in sorted(met)]
                for each in chosen[MAX_SOURCES:]:
                    each.close()
                if chosen:
                    return chosen[:MAX_SOURCES]
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        why = "; ".join(errors) or "none is known"
        text = f"did not answer within {MEET_S:g} s ({why})"
        raise PeerUnreachable("the members of the run", text) from None


async def _dial(contacts: Contacts, addresses: Sequence[Address]) -> PeerConnection:
    handshake = contacts.handshake
    subject = handshake.link_subject
    return await connect(handshake, addresses, Purpose.STATE, subject=subject)
