"""ViewHooks and PeerSource: the interfaces that the control thread of a run calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Protocol

from ringleader.errors import RingleaderError
from ringleader.membership.member import Member, View, ViewId
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol.run_peers import RunPeers

ServeState = Callable[[PeerConnection], Coroutine[None, None, None]]
"""Serves a process that follows the run; raises nothing."""


class ViewHooks(Protocol):
    """Receives the views of a run. Called on its control thread; returns at once.

    An exception in a hook ends the control thread as any failure does.
    """

    def freeze(self, view_id: ViewId, members: tuple[Member, ...]) -> None:
        """This member has promised a view: deliver nothing of an older one, and call
        ``RunMembership.answer(view_id, status)`` soon, from any thread."""

    def install(self, view: View) -> None:
        """A view is in force, with the statuses of all members as payloads."""

    def ended(self, member: Member, promised: ViewId | None) -> None:
        """The process of a member is proven to have ended; may be called twice.

        ``promised`` is the latest view that it had promised; None if it may have
        promised one that is not known here.
        """

    def expelled(self, why: str) -> None:
        """This machine was asleep, and the others have gone on without it.

        Its links are cut and are being dialled again; the group of the view in force
        is of no use any more. A freeze follows when the others are met.
        """

    def failed(self, error: RingleaderError) -> None:
        """The control thread has ended without ``close()``; no hook follows."""


class PeerSource(Protocol):
    """Tells who else is in the run."""

    def follow(self, me: Member, port: int) -> AsyncIterator[RunPeers]:
        """Iterate over the other workers of the run: at once, and at every change.

        ``port`` is that of our own control listener, for the others.
        """
