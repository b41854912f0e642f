"""``MembershipRunner``: runs the membership state machine over control links.

Links and time give it events; its actions go to links and to a ``MembershipListener``.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ringleader.errors import PeerError, ProtocolError
from ringleader.membership import messages
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    Event,
    HealthChanged,
    InstallView,
    KeyCloned,
    LeaveCluster,
    LinkDown,
    LinkUp,
    MessageReceived,
    PeerForgotten,
    RefreshView,
    Send,
    SetPayload,
    Split,
    Tick,
)
from ringleader.membership.member import Member, Order, View
from ringleader.membership.state_machine import MembershipMachine
from ringleader.node.peering.connect import connect
from ringleader.node.peering.control_links import ControlLink, ControlLinks
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection
from ringleader.node.protocol.hello import Purpose

REDIALS = 5
REDIAL_S = 0.1


class MembershipListener(Protocol):
    """Receives what happens to the membership."""

    def on_view(self, view: View) -> None:
        """A view was installed."""

    def on_change(self, change: HealthChanged) -> None:
        """The health of a peer changed."""

    def on_link(self, link: ControlLink) -> None:
        """A link to a member opened."""

    def on_link_lost(self, member: Member) -> None:
        """A link ended."""

    def on_clone(self, clone: KeyCloned) -> None:
        """Two machines use one key."""

    def on_split(self, split: Split) -> None:
        """Another part of the cluster with its own leader was found."""


class MembershipRunner:
    """The membership of this node. Lives on the event loop of the agent."""

    def __init__(
        self,
        me: Member,
        handshake: HandshakeContext,
        listener: MembershipListener,
        config: MembershipConfig,
        order: Order,
    ) -> None:
        self.me = me
        self.machine = MembershipMachine(me, config, order=order)
        self.links = ControlLinks(self)
        self._handshake = handshake
        self._listener = listener
        self._timer: asyncio.TimerHandle | None = None
        self._redials: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self, payload: bytes) -> None:
        """Start the state machine, with this node as the only member."""
        self._step(SetPayload(payload))
        self._step(Tick())

    def set_payload(self, payload: bytes) -> None:
        """Set our payload for the next view, whenever it is made."""
        self._step(SetPayload(payload))

    def publish(self, payload: bytes) -> None:
        """Set our payload and ask for a new view that carries it to all members."""
        self._step(SetPayload(payload))
        self._step(RefreshView())

    def add(self, connection: PeerConnection, *, dialled_by_us: bool) -> None:
        """Use a new control connection as a link."""
        if connection.hello.incarnation == self.me.incarnation:
            connection.close()  # one of our own addresses was dialled
            return
        dialler = self.me.node if dialled_by_us else connection.node
        self.links.add(connection, dialled_by=dialler)

    async def leave(self) -> None:
        """Tell all members that this node leaves, and stop."""
        self._step(LeaveCluster())
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._redials:
            task.cancel()
        await self.links.close()

    # -- ControlLinkListener ---------------------------------------------------------

    def up(self, link: ControlLink) -> None:
        """Tell the state machine that a link has opened."""
        self._step(LinkUp(link.member))
        if self.links.get(link.member) is link:  # else that member has left
            self._listener.on_link(link)

    def heard(self, link: ControlLink, body: bytes) -> None:
        """Pass a message to the state machine; an invalid one cuts the link."""
        try:
            message = messages.decode(body, link.member)
        except ProtocolError:
            self.links.drop(link.member)
            self._step(LinkDown(link.member, gone=False))
            return
        self._step(MessageReceived(link.member, message))

    def down(self, link: ControlLink, reason: str) -> None:
        """Tell the state machine that a link has ended, and dial once more.

        If the host refuses the new connection, the process is gone.
        """
        if self._is_closed:
            return
        self._listener.on_link_lost(link.member)
        self._step(LinkDown(link.member, gone=False))
        task = asyncio.create_task(self._redial(link))
        self._redials.add(task)
        task.add_done_callback(self._redials.discard)

    async def _redial(self, link: ControlLink) -> None:
        addresses, node = [link.connection.address], link.connection.node
        for _ in range(REDIALS):
            try:
                connection = await connect(
                    self._handshake, addresses, Purpose.CONTROL, expect=node
                )
            except PeerError as exc:
                if isinstance(exc.__cause__, ConnectionResetError):
                    # A process that is being killed loses its links before its
                    # listening socket.
                    await asyncio.sleep(REDIAL_S)
                    continue
                if isinstance(exc.__cause__, ConnectionRefusedError):
                    self._step(LinkDown(link.member, gone=True))
                return
            self._replace(link, connection)
            return

    def _replace(self, link: ControlLink, connection: PeerConnection) -> None:
        if connection.hello.incarnation != link.member.incarnation:
            self._step(LinkDown(link.member, gone=True))
        self.add(connection, dialled_by_us=True)

    # -- state machine ---------------------------------------------------------------

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        try:
            for action in self.machine.step(event, time.monotonic()):
                self._perform(action)
        finally:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, self.machine.wake_at_s - time.monotonic())
        self._timer = loop.call_later(wait_s, self._step, Tick())

    def _perform(self, action: object) -> None:
        match action:
            case Send(to=to, message=message):
                self.links.send(to, messages.encode(message))
            case InstallView(view=view):
                self._listener.on_view(view)
            case HealthChanged():
                self._listener.on_change(action)
            case PeerForgotten(peer=peer):
                self.links.drop(peer)
            case KeyCloned():
                self._listener.on_clone(action)
            case Split():
                self._listener.on_split(action)
