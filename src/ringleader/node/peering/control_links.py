"""``ControlLinks``: one connection per other member for membership messages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from ringleader.errors import PeerError
from ringleader.ids import NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.node.protocol.node_addresses import can_dial, is_loopback

MAX_LINKS = 64
MAX_UNSENT_BYTES = 8 << 20
"""A link with more unread data than this is cut: the peer has stopped reading."""
LARGE_BYTES = 64 << 10
"""Longer messages are views of many members. To encrypt one takes a millisecond, and
the leader of fifty members sends as many at once: each waits for a turn of the event
loop, so that other work goes on in between. A shorter message may overtake them, as the
protocol allows."""
FRESH_S = 1.5
"""A link on which something arrived this recently is alive."""


class ControlLinkListener(Protocol):
    """Receives the events of the control links."""

    def up(self, link: ControlLink) -> None:
        """A link has opened."""

    def heard(self, link: ControlLink, body: bytes) -> None:
        """A message has arrived."""

    def down(self, link: ControlLink, reason: str) -> None:
        """A link has ended, and no other has replaced it."""


@dataclass(slots=True, eq=False)
class ControlLink:
    """A link to one incarnation of one node."""

    connection: PeerConnection
    dialled_by: NodeId
    last_heard_s: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None
    is_cut: bool = False

    @property
    def member(self) -> Member:
        """The member at the other end."""
        hello = self.connection.hello
        return Member(hello.started_ms, self.connection.node, hello.incarnation)


class ControlLinks:
    """All control links. Lives on the event loop of the agent."""

    def __init__(self, listener: ControlLinkListener) -> None:
        self._listener = listener
        self._links: dict[Member, ControlLink] = {}
        self._is_closed = False
        self._large: deque[tuple[ControlLink, bytes]] = deque()
        """Messages that wait for their turn."""
        self.num_opened = self.num_lost = 0
        self.sent_bytes = self.received_bytes = 0
        """Messages with their lengths, before encryption."""

    def get(self, member: Member) -> ControlLink | None:
        """Return the link to ``member``."""
        return self._links.get(member)

    def members(self) -> list[Member]:
        """Return the members that there is a link to."""
        return list(self._links)

    def to_node(self, node: NodeId) -> ControlLink | None:
        """Return a link to any incarnation of ``node``."""
        found = (link for who, link in self._links.items() if who.node == node)
        return next(found, None)

    def paths(self) -> dict[NodeId, str]:
        """Return per linked node our address at which it reaches us.

        A node on this machine may use one of loopback, which is left out.
        """
        ends = {
            each.connection.node: each.connection.own_host
            for each in self._links.values()
        }
        return {
            n: own for n, own in ends.items() if can_dial(own) and not is_loopback(own)
        }

    def hears(self, node: NodeId, within_s: float) -> bool:
        """Return whether something has come from ``node`` in the last time."""
        since_s = time.monotonic() - within_s
        return any(
            who.node == node and link.last_heard_s > since_s
            for who, link in self._links.items()
        )

    def add(self, connection: PeerConnection, *, dialled_by: NodeId) -> bool:
        """Use a new connection as a link; return whether it is used.

        If both sides dial at once there are two connections; both sides keep the one
        that the smaller id dialled. Another incarnation of the same node has a link of
        its own: it may be a restart or a copied key, which membership decides.
        """
        if self._is_closed:  # it was dialled before
            connection.abort()
            return False
        link = ControlLink(connection, dialled_by)
        old = self._links.get(link.member)
        if old is not None and self._is_better(old, link):
            connection.close()
            return False
        if old is None and len(self._links) >= MAX_LINKS:
            connection.close()
            return False
        if old is not None:
            self._cut(old)
        self._links[link.member] = link
        self.num_opened += 1
        self._listener.up(link)
        link.task = asyncio.create_task(self._receive(link))
        return True

    def _is_better(self, old: ControlLink, new: ControlLink) -> bool:
        is_fresh = time.monotonic() - old.last_heard_s < FRESH_S
        return is_fresh and old.dialled_by <= new.dialled_by

    async def _receive(self, link: ControlLink) -> None:
        try:
            while not link.is_cut:  # the handler of a message may cut its own link
                body = await framing.read(link.connection.reader, str(link.member))
                link.last_heard_s = time.monotonic()
                self.received_bytes += framing.PREFIX_BYTES + len(body)
                self._listener.heard(link, body)
        except PeerError as exc:
            self._lose(link, exc.text)
        except Exception as exc:
            self._lose(link, f"its message could not be handled: {exc!r}")
            raise

    def send(self, to: Member, body: bytes) -> None:
        """Send a message if there is a link; a clogged link is cut."""
        link = self._links.get(to)
        if link is None:
            return
        if len(body) <= LARGE_BYTES:
            self._write(link, body)
            return
        self._large.append((link, body))
        if len(self._large) == 1:
            asyncio.get_running_loop().call_soon(self._write_large)

    def _write_large(self) -> None:
        """Write the first of the large messages, and the next one a turn later."""
        link, body = self._large[0]
        if self._links.get(link.member) is link:
            self._write(link, body)
        self._large.popleft()
        if self._large:
            asyncio.get_running_loop().call_soon(self._write_large)

    def _write(self, link: ControlLink, body: bytes) -> None:
        transport = link.connection.writer.transport
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._lose(link, "does not read what we send")
        elif not transport.is_closing():
            link.connection.writer.write(framing.frame(body))
            self.sent_bytes += framing.PREFIX_BYTES + len(body)

    def _lose(self, link: ControlLink, reason: str) -> None:
        self._cut(link)
        if self._links.get(link.member) is link:
            del self._links[link.member]
            self.num_lost += 1
            self._listener.down(link, reason)

    def _cut(self, link: ControlLink) -> None:
        link.is_cut = True
        link.connection.abort()
        if link.task is not None and link.task is not asyncio.current_task():
            link.task.cancel()

    def drop(self, member: Member) -> None:
        """Cut the link to a member without telling the listener."""
        link = self._links.pop(member, None)
        if link is not None:
            self._cut(link)

    async def close(self) -> None:
        """Close all links after sending what is buffered; no link is added then."""
        self._is_closed = True
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            if link.task is not None:
                link.task.cancel()
            link.connection.close()
        await asyncio.sleep(0)
