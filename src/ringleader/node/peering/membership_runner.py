"""``MembershipRunner``: runs the membership state machine over control links.

Links and time give it events; its actions go to links and to a ``MembershipListener``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

from ringleader.errors import PeerError, PeerLost, PeerRefused, ProtocolError
from ringleader.membership import messages
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    Event,
    FreezeView,
    HealthChanged,
    InstallView,
    KeyCloned,
    LeaveCluster,
    LinkDown,
    LinkUp,
    MachineSlept,
    MessageReceived,
    PeerForgotten,
    RefreshView,
    Send,
    SetPayload,
    Split,
    SuspectPeer,
    Tick,
)
from ringleader.membership.member import Member, Order, View, ViewId
from ringleader.membership.state_machine import MembershipMachine
from ringleader.node.peering.connect import connect_control
from ringleader.node.peering.control_links import ControlLink, ControlLinks
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection

PROBE_S = 5.0
"""For the connection that shows whether the host of a suspect refuses it."""


@dataclass(frozen=True, slots=True)
class RedialPolicy:
    """How a peer whose link broke is dialled again to see whether its process ended.

    A process that is being killed loses its links before its listening socket, so an
    attempt that is cut is repeated.
    """

    num_tries: int = 5
    wait_s: float = 0.1


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What differs between the membership of agents and that of a training run."""

    redial: RedialPolicy = RedialPolicy()
    on_freeze: Callable[[FreezeView], None] = lambda _: None
    """Called when this node has promised a view; it stops its work."""
    before_step: Callable[[], None] = lambda: None
    """Called before each event is processed, so before anything is sent."""


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
        options: RunnerOptions | None = None,
    ) -> None:
        self.me = me
        self.machine = MembershipMachine(me, config, order=order)
        self.links = ControlLinks(self)
        self._encode = messages.SharedEncoder()
        self._handshake = handshake
        self._listener = listener
        self._options = options or RunnerOptions()
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

    def answer(self, view: ViewId, payload: bytes) -> None:
        """Set our payload for the proposed ``view``, if it is still that one."""
        self._step(SetPayload(payload, view))

    def refresh(self) -> None:
        """Ask for a new view of the same members."""
        self._step(RefreshView())

    def suspect(self, member: Member, why: str) -> None:
        """Ask a member for a sign of life, and dial it to see whether it ended."""
        self._step(SuspectPeer(member, why))
        link = self.links.get(member)
        if link is not None:
            self._run(self._probe(link))

    def ended(self, member: Member) -> None:
        """Drop a member whose process is known to have ended."""
        self.links.drop(member)
        self._step(LinkDown(member, gone=True))

    def drop_links(self) -> None:
        """Cut all links at once, sending nothing: this machine was asleep.

        Live peers are dialled again.
        """
        self._step(MachineSlept())
        for member in self.links.members():
            self.links.drop(member)
            self._listener.on_link_lost(member)
            self._step(LinkDown(member, gone=False))

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
        self._run(self._redial(link))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._redials.add(task)
        task.add_done_callback(self._redials.discard)

    async def _redial(self, link: ControlLink) -> None:
        addresses, node = [link.connection.address], link.connection.node
        policy = self._options.redial
        for _ in range(policy.num_tries):
            try:
                connection = await connect_control(self._handshake, addresses, node)
            except PeerError as exc:
                if _is_cut(exc):
                    await asyncio.sleep(policy.wait_s)
                    continue
                if _proves_end(exc) and self.links.get(link.member) is None:
                    self.ended(link.member)
                return
            self._replace(link, connection)
            return

    async def _probe(self, link: ControlLink) -> None:
        """Drop a member that is still linked if its host refuses a connection."""
        with contextlib.suppress(OSError, TimeoutError):
            try:
                async with asyncio.timeout(PROBE_S):
                    _, writer = await asyncio.open_connection(*link.connection.address)
                writer.close()
            except ConnectionRefusedError:
                if self.links.get(link.member) is link:
                    self._listener.on_link_lost(link.member)
                    self.ended(link.member)

    def _replace(self, link: ControlLink, connection: PeerConnection) -> None:
        if connection.hello.incarnation != link.member.incarnation:
            self._step(LinkDown(link.member, gone=True))
        self.add(connection, dialled_by_us=True)

    # -- state machine ---------------------------------------------------------------

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        self._options.before_step()
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
                self.links.send(to, self._encode(message))
            case FreezeView():
                self._options.on_freeze(action)
            case InstallView(view=view):
                self._listener.on_view(view)
            case PeerForgotten(peer=peer):
                self.links.drop(peer)
            case _:
                self._tell(action)

    def _tell(self, action: object) -> None:
        match action:
            case HealthChanged():
                self._listener.on_change(action)
            case KeyCloned():
                self._listener.on_clone(action)
            case Split():
                self._listener.on_split(action)


def _is_cut(error: PeerError) -> bool:
    """Return whether a connection ended while it was being made."""
    is_reset = isinstance(error.__cause__, ConnectionResetError)
    return is_reset or isinstance(error, PeerLost)


def _proves_end(error: PeerError) -> bool:
    """Return whether a failed dial proves that the process has ended.

    Its host refuses the connection, or another process of its node, which is no peer
    of ours, has the port now.
    """
    is_refused = isinstance(error.__cause__, ConnectionRefusedError)
    return is_refused or isinstance(error, PeerRefused)
