"""The control links of an agent: one to every other member, whoever dialled."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from ringleader.errors import PeerError
from ringleader.ids import NodeId
from ringleader.membership.member import Member
from ringleader.node.peering.peer_connection import Guest
from ringleader.node.protocol import framing

MAX_LINKS = 64
MAX_UNSENT_BYTES = 8 << 20
"""A node that reads so little is not heard from either: the link is cut."""
FRESH_S = 1.5
"""A link on which something came so lately is alive."""


class Listener(Protocol):
    """Who wants to know what happens on the links."""

    def up(self, link: ControlLink) -> None:
        """A link is open."""

    def heard(self, link: ControlLink, body: bytes) -> None:
        """A message has come."""

    def down(self, link: ControlLink, reason: str) -> None:
        """The link is gone, and no other has taken its place."""


@dataclass(slots=True, eq=False)
class ControlLink:
    """A link to one life of one node."""

    guest: Guest
    dialled_by: NodeId
    last_heard_s: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None

    @property
    def member(self) -> Member:
        """Who is at the other end."""
        hello = self.guest.hello
        return Member(hello.started_ms, self.guest.node, hello.incarnation)


class Links:
    """All control links. Lives on the loop of the agent."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._links: dict[Member, ControlLink] = {}

    def get(self, member: Member) -> ControlLink | None:
        """The link to ``member``."""
        return self._links.get(member)

    def to_node(self, node: NodeId) -> ControlLink | None:
        """A link to any life of ``node``."""
        found = (link for who, link in self._links.items() if who.node == node)
        return next(found, None)

    def add(self, guest: Guest, *, dialled_by: NodeId) -> bool:
        """Take a new link, unless the one we have is as good.

        When both sides dial at once there are two links; both sides keep the one that
        the smaller id dialled. Another life of the same node has a link of its own: it
        is not for us to tell a restart from a copied key.
        """
        link = ControlLink(guest, dialled_by)
        old = self._links.get(link.member)
        if old is not None and self._is_better(old, link):
            guest.close()
            return False
        if old is None and len(self._links) >= MAX_LINKS:
            guest.close()
            return False
        if old is not None:
            self._cut(old)
        self._links[link.member] = link
        self._listener.up(link)
        link.task = asyncio.create_task(self._hear(link))
        return True

    def _is_better(self, old: ControlLink, new: ControlLink) -> bool:
        is_fresh = time.monotonic() - old.last_heard_s < FRESH_S
        return is_fresh and old.dialled_by <= new.dialled_by

    async def _hear(self, link: ControlLink) -> None:
        try:
            while True:
                body = await framing.read(link.guest.reader, str(link.member))
                link.last_heard_s = time.monotonic()
                self._listener.heard(link, body)
        except PeerError as exc:
            self._lose(link, exc.text)
        except Exception as exc:
            self._lose(link, f"we failed at what it sent: {exc!r}")
            raise

    def send(self, to: Member, body: bytes) -> None:
        """Send a message if there is a link; a link that is clogged is cut."""
        link = self._links.get(to)
        if link is None:
            return
        transport = link.guest.writer.transport
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._lose(link, "does not read what we send")
        elif not transport.is_closing():
            link.guest.writer.write(framing.frame(body))

    def _lose(self, link: ControlLink, reason: str) -> None:
        self._cut(link)
        if self._links.get(link.member) is link:
            del self._links[link.member]
            self._listener.down(link, reason)

    def _cut(self, link: ControlLink) -> None:
        link.guest.abort()
        if link.task is not None and link.task is not asyncio.current_task():
            link.task.cancel()

    def drop(self, member: Member) -> None:
        """Cut the link to a member; nobody is told."""
        link = self._links.pop(member, None)
        if link is not None:
            self._cut(link)

    async def close(self) -> None:
        """Hang up on everybody, after what was written has gone out."""
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            if link.task is not None:
                link.task.cancel()
            link.guest.close()
        await asyncio.sleep(0)
