"""Measuring a link the way tensors will use it: a fresh port, TLS, blocking sockets.

The two agents agree on a port over their door, then a thread on each side measures. A
node takes part in one probe at a time. Only the smaller id asks, so nobody waits for
somebody who waits for them.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import PeerError, PeerUnreachable
from ringleader.identity.credentials import Credentials
from ringleader.ids import NodeId
from ringleader.node.peering.peer_connection import Guest, explain
from ringleader.node.protocol import framing
from ringleader.topology import link_speed
from ringleader.topology.interfaces import kind_of_peer, list_interfaces
from ringleader.topology.link_profile import LinkProfile
from ringleader.transport import tcp

LIMIT_S = 4.0
"""For one link, waiting for its turn included."""

HOST = LinkProfile(1e-6, 5e9, 5e9)
"""Between nodes that share memory: faster than any network, and not worth a probe."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the other side waits for the probe."""

    port: Annotated[int, msgspec.Meta(ge=1024, le=65535)]


_PLACE = msgspec.msgpack.Decoder(Place)


@dataclass(slots=True)
class Prober:
    """The probes of one node. Lives on the loop of the agent."""

    credentials: Credentials
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, guest: Guest) -> LinkProfile:
        """Measure with a node that we dialled for it."""
        try:
            async with asyncio.timeout(LIMIT_S), self._busy:
                body = await framing.read(
                    guest.reader, guest.node, framing.MAX_HELLO_BYTES
                )
                port = _PLACE.decode(body).port
                where = (guest.address[0], port)
                return await asyncio.to_thread(self._dial, where, guest.node)
        except (TimeoutError, msgspec.DecodeError) as exc:
            text = f"the link could not be measured ({str(exc) or 'no answer in time'})"
            raise PeerUnreachable(guest.node, text) from exc
        finally:
            guest.close()

    async def answer(self, guest: Guest) -> LinkProfile:
        """Measure with a node that asks for it."""
        try:
            async with asyncio.timeout(LIMIT_S), self._busy:
                listening = tcp.listen("", 0)
                port: int = listening.getsockname()[1]
                guest.writer.write(framing.pack(Place(port)))
                return await asyncio.to_thread(self._accept, listening, guest.node)
        except TimeoutError as exc:
            raise PeerUnreachable(guest.node, "the link could not be measured") from exc
        finally:
            guest.close()

    def _dial(self, where: tuple[str, int], node: NodeId) -> LinkProfile:
        deadline = Deadline.after(LIMIT_S)
        try:
            raw = socket.create_connection(where, deadline.left_s())
        except OSError as exc:
            raise explain(f"{where[0]}:{where[1]}", exc) from exc
        return self._measure(raw, node, deadline, is_server=False)

    def _accept(self, listening: socket.socket, node: NodeId) -> LinkProfile:
        deadline = Deadline.after(LIMIT_S)
        with listening:
            listening.settimeout(deadline.left_s())
            try:
                raw, _ = listening.accept()
            except OSError as exc:
                text = "did not come to the port of the probe; is it blocked?"
                raise PeerUnreachable(node, text) from exc
        return self._measure(raw, node, deadline, is_server=True)

    def _measure(
        self, raw: socket.socket, node: NodeId, deadline: Deadline, *, is_server: bool
    ) -> LinkProfile:
        ours = self.credentials
        context = ours.server if is_server else ours.client
        name = None if is_server else ours.server_name()
        try:
            raw.settimeout(deadline.left_s())
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with context.wrap_socket(
                raw, server_side=is_server, server_hostname=name
            ) as sock:
                ours.check_alpn(sock)
                ours.verify(sock.getpeercert(True), expect=node)
                kind = kind_of_peer(sock.getpeername()[0], list_interfaces())
                work = (
                    link_speed.measure_receiving
                    if is_server
                    else link_speed.measure_sending
                )
                return work(sock, deadline, peer=node, kind=kind)
        except PeerError:
            raise
        except OSError as exc:
            raise explain(str(node), exc) from exc
        finally:
            raw.close()
