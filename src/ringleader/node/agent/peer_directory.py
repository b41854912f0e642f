"""``PeerDirectory``: where other nodes can be dialled, for us and for our peers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from ringleader.errors import PeerUnreachable
from ringleader.ids import NodeId
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering.connect import connect
from ringleader.node.peering.membership_runner import MembershipRunner
from ringleader.node.peering.peer_connection import (
    HANDSHAKE_S,
    Address,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import Purpose
from ringleader.node.protocol.node_addresses import (
    MAX_ADDRESSES,
    MAX_REPLY_BYTES,
    NodeAddresses,
    decode_addresses,
    dialable,
)


@dataclass(slots=True)
class PeerDirectory:
    """Addresses of linked nodes and of members. Lives on the agent's event loop."""

    mine: NodeId
    handshake: HandshakeContext
    membership: MembershipRunner
    view_state: ViewState | None = None

    def is_linked(self, node: NodeId) -> bool:
        """Return whether there is a control link to ``node``, or it is this one.

        A silent link does not count, so that a new one takes its place: that to a
        machine which has changed its address is silent for ever, and nobody is told.
        """
        if node == self.mine:
            return True
        within_s = self.membership.machine.config.dead_after_s
        return self.membership.links.hears(node, within_s)

    def members(self) -> dict[NodeId, list[Address]]:
        """Return the addresses of the nodes in the view, as they announced them."""
        return self.view_state.addresses() if self.view_state else {}

    def unheard(self) -> dict[NodeId, list[NodeId]]:
        """Return the nodes without a link to us that peers hear, with those peers."""
        heard = self.membership.machine.heard_by_peers()
        return {n: peers for n, peers in heard.items() if not self.is_linked(n)}

    async def dial(
        self, node: NodeId, purpose: str, subject: str = ""
    ) -> PeerConnection:
        """Connect to a member, by the address of its control link first."""
        addresses = list(dict.fromkeys(self._known(node)))
        return await connect(
            self.handshake, addresses, purpose, subject=subject, expect=node
        )

    async def ask(self, peer: NodeId, wanted: NodeId) -> list[Address]:
        """Return the addresses of ``wanted`` as ``peer``, which hears it, knows them.

        Raises ``PeerError``.
        """
        connection = await self.dial(peer, Purpose.ADDRESSES, wanted)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                body = await framing.read(connection.reader, peer, MAX_REPLY_BYTES)
        except TimeoutError as exc:
            text = f"told no address within {HANDSHAKE_S:g} s"
            raise PeerUnreachable(peer, text) from exc
        finally:
            connection.abort()
        told = decode_addresses(body, peer).addresses
        return dialable(told, told_by=connection.address[0])

    def answer(self, connection: PeerConnection) -> None:
        """Tell a peer the addresses of the node that it asks for, and hang up."""
        known = list(dict.fromkeys(self._known(NodeId(connection.hello.subject))))
        told = NodeAddresses(known[:MAX_ADDRESSES])
        framing.write(connection.writer, framing.pack(told))
        connection.close()

    def _known(self, node: NodeId) -> Iterator[Address]:
        """Yield the address that works for us, then those that the node announced."""
        link = self.membership.links.to_node(node)
        if link is not None:
            yield link.connection.address
            hello = link.connection.hello
            yield from ((host, hello.port) for host in hello.addresses)
        yield from self.members().get(node, ())
