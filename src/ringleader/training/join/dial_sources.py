"""Dials the members of a run that a learner can follow."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
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
GRACE_S = 0.5
"""How long others may take to answer after the first one has."""
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
                found = await _answers([_dial(contacts, each) for each in targets])
                errors = [str(e) for e in found if isinstance(e, PeerError)]
                met = [e for e in found if isinstance(e, PeerConnection)]
                if chosen := _choose(met, contacts.me.node):
                    return chosen
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        why = "; ".join(errors) or "none is known"
        text = f"did not answer within {MEET_S:g} s ({why})"
        raise PeerUnreachable("the members of the run", text) from None


async def _answers(
    tries: Sequence[Coroutine[None, None, PeerConnection]],
) -> list[PeerConnection | BaseException]:
    """Return connections and errors; a silent machine does not hold up the others."""
    tasks = {asyncio.create_task(each) for each in tries}
    pending, is_met = tasks, False
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending,
                timeout=GRACE_S if is_met else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            is_met = is_met or any(task.exception() is None for task in done)
            if not done:
                break
    finally:
        for task in pending:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    return found


def _choose(met: Sequence[PeerConnection], me: str) -> list[PeerConnection]:
    """Return one connection to each of the first members, and close the others."""
    by_node = {each.node: each for each in met if each.node != me}
    chosen = [by_node[node] for node in sorted(by_node)][:MAX_SOURCES]
    for each in met:
        if each not in chosen:
            each.close()
    return chosen


async def _dial(contacts: Contacts, addresses: Sequence[Address]) -> PeerConnection:
    handshake = contacts.handshake
    subject = handshake.link_subject
    return await connect(handshake, addresses, Purpose.STATE, subject=subject)
