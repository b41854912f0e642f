"""The membership machine at work: its events come from links and time, its actions go
to links and to whoever wants to know of views.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ringleader.errors import ConfigError, PeerError, ProtocolError
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
from ringleader.node.peering.connect import dial
from ringleader.node.peering.control_links import ControlLink, Links
from ringleader.node.peering.peer_connection import Greeting, Guest

CONTROL = "control"
REDIALS = 5
REDIAL_S = 0.1
PROFILES = {
    "lan": MembershipConfig.for_lan,
    "wifi": MembershipConfig.for_wifi,
    "wan": MembershipConfig.for_wan,
    "loopback": MembershipConfig.for_loopback,
}


def profile(name: str) -> MembershipConfig:
    """The times that suit a kind of network."""
    if name not in PROFILES:
        raise ConfigError(f"profile {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]()


class Watcher(Protocol):
    """Who wants to know what becomes of the cluster."""

    def on_view(self, view: View) -> None:
        """A view has come into force."""

    def on_change(self, change: HealthChanged) -> None:
        """A peer is in another state of health."""

    def on_link(self, link: ControlLink) -> None:
        """A link to a member has opened."""

    def on_link_lost(self, member: Member) -> None:
        """A link has ended."""

    def on_clone(self, clone: KeyCloned) -> None:
        """Two machines use one key."""


class Cluster:
    """This node's membership. Lives on the loop of the agent."""

    def __init__(
        self,
        me: Member,
        greeting: Greeting,
        watcher: Watcher,
        config: MembershipConfig,
        order: Order,
    ) -> None:
        self.me = me
        self.machine = MembershipMachine(me, config, order=order)
        self.links = Links(self)
        self._greeting = greeting
        self._watcher = watcher
        self._timer: asyncio.TimerHandle | None = None
        self._redials: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self, payload: bytes) -> None:
        """Begin, alone at first."""
        self._step(SetPayload(payload))
        self._step(Tick())

    def note(self, payload: bytes) -> None:
        """Have something new to tell when the next view is made."""
        self._step(SetPayload(payload))

    def say(self, payload: bytes) -> None:
        """Tell everybody something new about us: a new view carries it."""
        self._step(SetPayload(payload))
        self._step(RefreshView())

    def welcome(self, guest: Guest, *, dialled_by_us: bool) -> None:
        """A control connection was opened, by us or by the other side."""
        if guest.hello.incarnation == self.me.incarnation:
            guest.close()  # we have met ourselves: one of our addresses was named
            return
        dialler = self.me.node if dialled_by_us else guest.node
        self.links.add(guest, dialled_by=dialler)

    async def leave(self) -> None:
        """Say goodbye to everybody and stop."""
        self._step(LeaveCluster())
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._redials:
            task.cancel()
        await self.links.close()

    # -- what the links say --------------------------------------------------------

    def up(self, link: ControlLink) -> None:
        """See links.Listener."""
        self._watcher.on_link(link)
        self._step(LinkUp(link.member))

    def heard(self, link: ControlLink, body: bytes) -> None:
        """See links.Listener."""
        try:
            message = messages.decode(body, link.member)
        except ProtocolError:
            self.links.drop(link.member)
            self._step(LinkDown(link.member, gone=False))
            return
        self._step(MessageReceived(link.member, message))

    def down(self, link: ControlLink, reason: str) -> None:
        """See links.Listener. A host that refuses a new link says the old one ended."""
        if self._is_closed:
            return
        self._watcher.on_link_lost(link.member)
        self._step(LinkDown(link.member, gone=False))
        task = asyncio.create_task(self._dial_again(link))
        self._redials.add(task)
        task.add_done_callback(self._redials.discard)

    async def _dial_again(self, link: ControlLink) -> None:
        where, node = [link.guest.address], link.guest.node
        for _ in range(REDIALS):
            try:
                guest = await dial(self._greeting, where, CONTROL, expect=node)
            except PeerError as exc:
                if isinstance(exc.__cause__, ConnectionResetError):
                    # A process that is being killed loses its links before its door.
                    await asyncio.sleep(REDIAL_S)
                    continue
                if isinstance(exc.__cause__, ConnectionRefusedError):
                    self._step(LinkDown(link.member, gone=True))
                return
            self._take_again(guest, link)
            return

    def _take_again(self, guest: Guest, link: ControlLink) -> None:
        if guest.hello.incarnation != link.member.incarnation:
            self._step(LinkDown(link.member, gone=True))
        self.welcome(guest, dialled_by_us=True)

    # -- the machine ---------------------------------------------------------------

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
                self._watcher.on_view(view)
            case HealthChanged():
                self._watcher.on_change(action)
            case PeerForgotten(peer=peer):
                self.links.drop(peer)
            case KeyCloned():
                self._watcher.on_clone(action)
            case Split():
                pass  # both sides go on; one view follows by itself
