"""Clocks of other nodes are compared when their hello arrives."""

from __future__ import annotations

import time

import pytest

from ringleader.ids import Incarnation, NodeId
from ringleader.node.agent.peer_clocks import PeerClocks
from ringleader.node.protocol.hello import PROTOCOL, AgentHello

NODE = NodeId("a" * 52)


def test_a_clock_that_is_ahead_has_a_positive_difference() -> None:
    hello = AgentHello(
        protocol=PROTOCOL,
        version="",
        purpose="control",
        node=NODE,
        incarnation=Incarnation("0" * 16),
        started_ms=0,
        name="",
        port=0,
        clock_s=time.time() - 300,
        monotonic_s=time.monotonic() + 1000,
    )
    clocks = PeerClocks()
    clocks.on_link(hello)
    assert clocks.monotonic[NODE] == pytest.approx(1000, abs=100)
    assert clocks.wall[NODE] == pytest.approx(-300, abs=100)
