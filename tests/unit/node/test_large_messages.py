"""Large control messages are written one per turn of the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.control_links import (
    LARGE_BYTES,
    ControlLink,
    ControlLinkListener,
    ControlLinks,
)
from ringleader.node.peering.peer_connection import PeerConnection

MEMBERS = [
    Member(number, NodeId(letter * 52), Incarnation("1" * 16))
    for number, letter in enumerate("abc")
]
LARGE = b"x" * (LARGE_BYTES + 1)
Written = list[tuple[int, int]]
"""Number of the member, and bytes of the message."""


def make_links(written: Written) -> ControlLinks:
    """Links to three members whose connections note what is written."""
    links = ControlLinks(cast("ControlLinkListener", None))
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: 0, is_closing=lambda: False
    )
    for number, member in enumerate(MEMBERS):

        def write(data: bytes, number: int = number) -> None:
            written.append((number, len(data)))

        connection = SimpleNamespace(
            node=member.node,
            hello=SimpleNamespace(started_ms=number, incarnation=member.incarnation),
            writer=SimpleNamespace(transport=transport, write=write),
            abort=lambda: None,
        )
        link = ControlLink(cast("PeerConnection", connection), member.node)
        links._links[member] = link
    return links


def test_other_work_goes_on_between_large_messages() -> None:
    written: Written = []
    seen_at: list[int] = []

    async def send_all() -> None:
        links = make_links(written)
        for member in MEMBERS:
            links.send(member, LARGE)
        links.send(MEMBERS[2], b"short")
        assert [number for number, _ in written] == [2], "a short one goes at once"
        for _ in range(len(MEMBERS) + 1):
            await asyncio.sleep(0)
            seen_at.append(len(written))
        links.send(MEMBERS[0], LARGE)
        await asyncio.sleep(0)

    asyncio.run(send_all())
    assert [number for number, _ in written] == [2, 0, 1, 2, 0]
    assert seen_at == [2, 3, 4, 4], "one per turn"


def test_a_large_message_to_a_link_that_was_cut_is_dropped() -> None:
    written: Written = []

    async def send_all() -> None:
        links = make_links(written)
        for member in MEMBERS:
            links.send(member, LARGE)
        links.drop(MEMBERS[1])
        for _ in range(len(MEMBERS)):
            await asyncio.sleep(0)

    asyncio.run(send_all())
    assert [number for number, _ in written] == [0, 2]
