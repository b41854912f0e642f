"""What a member does when a reduction fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from ringleader.errors import PeerLost
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member, View, ViewId
from ringleader.training.installed_view import InstalledView
from ringleader.training.members import Members
from ringleader.training.step_attempts import StepAttempts
from ringleader.training.view_session import ViewSession

THREE = tuple(
    Member(i, NodeId(letter * 52), Incarnation(str(i) * 16))
    for i, letter in enumerate("abc")
)


def installed(counter: int, *members: Member) -> InstalledView:
    view = View(ViewId(counter, THREE[0].node, THREE[0].incarnation), members, ())
    return cast("InstalledView", SimpleNamespace(view=view))


def test_a_failure_is_of_a_rank_of_its_view_not_of_the_view_in_force() -> None:
    """The last of three was lost; when the error comes, a view of two is in force."""
    suspects: list[Member] = []
    session = ViewSession.__new__(ViewSession)
    session.current = lambda: installed(2, *THREE[:2])  # type: ignore[method-assign]
    session._membership = SimpleNamespace(suspect=lambda m, _: suspects.append(m))
    member = Members.__new__(Members)
    member._attempts = cast("StepAttempts", SimpleNamespace(give_up=lambda: None))
    member._session, member._failures = session, 0
    error = PeerLost(2, "connection lost")
    member._note_failure(error, installed(1, *THREE))
    assert suspects == [THREE[2]]
