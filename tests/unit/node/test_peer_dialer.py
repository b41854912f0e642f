"""Nodes that peers tell of are dialled, within bounds, and only at IP addresses."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ringleader.discovery.static_peers import StaticPeers
from ringleader.errors import PeerUnreachable, ProtocolError
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import NodeId
from ringleader.node.peering import peer_dialer
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.peering.peer_dialer import MAX_ASKS, PeerDialer
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import AgentHello
from ringleader.node.protocol.node_addresses import (
    NodeAddresses,
    decode_addresses,
    dialable,
)

PEER = NodeId("p" * 52)


def test_only_ip_addresses_of_other_machines_are_dialled() -> None:
    told = [
        ("10.0.0.2", 1),
        ("fd00::2", 2),
        ("router.lan", 3),
        ("127.0.0.1", 4),
        ("::1", 5),
        ("224.0.0.251", 6),
        ("0.0.0.0", 7),
        ("", 8),
    ]
    assert dialable(told, told_by="10.0.0.9") == told[:2]
    assert dialable(told, told_by="127.0.0.1") == [*told[:2], *told[3:5]], "one machine"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        framing.pack(NodeAddresses([("10.0.0.2", 1)] * 17))[4:],
        framing.pack(NodeAddresses([("x" * 65, 1)]))[4:],
        framing.pack(NodeAddresses([("10.0.0.2", 0)]))[4:],
    ],
    ids=["empty", "garbage", "too many", "too long", "no port"],
)
def test_invalid_addresses_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_addresses(body, "a peer")


@dataclass(slots=True)
class LyingPeer:
    """A directory in which a peer claims to hear other nodes every time."""

    num_asking: int = 0
    most_asking: int = 0
    asked: list[NodeId] = field(default_factory=list)

    def is_linked(self, node: NodeId) -> bool:
        return False

    def members(self) -> Mapping[NodeId, Sequence[Address]]:
        return {}

    def unheard(self) -> Mapping[NodeId, Sequence[NodeId]]:
        return {NodeId(secrets.token_hex(26)): [PEER] for _ in range(64)}

    async def ask(self, peer: NodeId, wanted: NodeId) -> Sequence[Address]:
        self.num_asking += 1
        self.most_asking = max(self.most_asking, self.num_asking)
        self.asked.append(wanted)
        await asyncio.sleep(0.01)
        self.num_asking -= 1
        raise PeerUnreachable(peer, "told no address")


def handshake() -> HandshakeContext:
    cluster = ClusterSecret(root=Secret(bytes(32)), name="test")
    credentials = Credentials.issue(cluster, NodeKey.ephemeral())

    def hello(purpose: str, subject: str) -> AgentHello:
        raise AssertionError("nobody is dialled")

    return HandshakeContext(credentials, hello)


def test_a_peer_that_names_ever_new_nodes_costs_no_more_than_a_few_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_dialer, "ASK_AFTER_S", 0.0)
    monkeypatch.setattr(peer_dialer, "EVERY_S", 0.001)
    peer = LyingPeer()
    dialer = PeerDialer(handshake(), None, StaticPeers([]), lambda _: None, peer)

    async def dial() -> None:
        running = asyncio.create_task(dialer.run())
        while len(peer.asked) < 10:
            await asyncio.sleep(0.005)
            assert len(dialer._unheard) <= 64
        running.cancel()

    asyncio.run(asyncio.wait_for(dial(), 120))
    assert peer.most_asking <= MAX_ASKS
    assert len(dialer.troubles) <= MAX_ASKS, "they go with the node that is not there"


def test_workers_at_the_coordinator_are_dialled_as_the_nodes_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_dialer, "EVERY_S", 0.001)
    dialled: list[tuple[Sequence[Address], NodeId | None]] = []

    async def connect(
        _: HandshakeContext,
        addresses: Sequence[Address],
        expect: NodeId | None = None,
    ) -> PeerConnection:
        dialled.append((addresses, expect))
        raise PeerUnreachable("peer", "is not there")

    monkeypatch.setattr(peer_dialer, "connect_control", connect)
    key = NodeKey.ephemeral().node_id
    registered: dict[str, Sequence[Address]] = {
        key: [("10.0.0.2", 1)],
        "trainer-3": [("10.0.0.3", 1)],
        "no-address": [],
    }
    peer = LyingPeer()
    dialer = PeerDialer(
        handshake(), None, StaticPeers([]), lambda _: None, peer, lambda: registered
    )

    async def dial() -> None:
        running = asyncio.create_task(dialer.run())
        while len(dialled) < 2:  # noqa: ASYNC110 - the dialer reports nothing
            await asyncio.sleep(0.005)
        registered.clear()
        while any(name.startswith("worker") for name in dialer._targets):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        running.cancel()

    asyncio.run(asyncio.wait_for(dial(), 120))
    assert sorted(dialled[:2], key=str) == sorted(
        [([("10.0.0.2", 1)], key), ([("10.0.0.3", 1)], None)], key=str
    )
