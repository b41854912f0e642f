"""Links that are silent, and links that come too late."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.config import MembershipConfig
from ringleader.membership.member import Member, by_seniority
from ringleader.node.agent.peer_directory import PeerDirectory
from ringleader.node.peering.control_links import (
    ControlLink,
    ControlLinkListener,
    ControlLinks,
)
from ringleader.node.peering.membership_runner import (
    MembershipListener,
    MembershipRunner,
)
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection

ME = Member(1, NodeId("a" * 52), Incarnation("1" * 16))
OTHER = Member(2, NodeId("b" * 52), Incarnation("2" * 16))
HOUR_S = 3600.0


def test_a_silent_link_does_not_count() -> None:
    """So a machine is back at once that has come with another address."""
    config = MembershipConfig(
        heartbeat_s=HOUR_S, suspect_after_s=2 * HOUR_S, dead_after_s=3 * HOUR_S
    )
    handshake = cast("HandshakeContext", None)
    listener = cast("MembershipListener", None)
    runner = MembershipRunner(ME, handshake, listener, config, by_seniority)
    directory = PeerDirectory(ME.node, handshake, runner)
    assert directory.is_linked(ME.node)
    assert not directory.is_linked(OTHER.node)
    hello = SimpleNamespace(started_ms=2, incarnation=OTHER.incarnation)
    connection = SimpleNamespace(node=OTHER.node, hello=hello)
    link = ControlLink(cast("PeerConnection", connection), ME.node)
    runner.links._links[OTHER] = link
    assert directory.is_linked(OTHER.node)
    link.last_heard_s = time.monotonic() - 4 * HOUR_S
    assert not directory.is_linked(OTHER.node)


def test_a_connection_that_comes_after_the_end_is_closed() -> None:
    """Was: a dial that ended while the agent left the cluster stayed open."""
    links = ControlLinks(cast("ControlLinkListener", None))
    asyncio.run(links.close())
    ends: list[str] = []
    connection = SimpleNamespace(abort=lambda: ends.append("aborted"))
    assert not links.add(cast("PeerConnection", connection), dialled_by=ME.node)
    assert ends == ["aborted"]
