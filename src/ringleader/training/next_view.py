"""Waits for the next view, or for the next one in which the run can go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, Expelled, StateLost, TooFewMembers
from ringleader.training.installed_view import InstalledView
from ringleader.training.options import Options
from ringleader.training.run_news import tell
from ringleader.training.view_session import ViewSession

_log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""How long a member whose group broke waits for a view before it asks for one."""

MEET_S: Final = 30.0
"""How long the first step waits for machines that are expected."""

JOIN_S: Final = 120.0
"""How long a process that joins a run waits for a member of it."""

TELL_S: Final = 10.0
"""How often it is told that nobody has answered."""

POLL_S: Final = 0.2

LOST_S = 60.0
"""How long members without a complete state wait for one that has it, before they load
a checkpoint or give up: it may be cut off, or slow, and a checkpoint is another
history."""

OTHERS_S: Final = 20.0
"""How long one without a checkpoint waits then for another one that loads its own."""

NO_VIEW_S: Final = 60.0
"""Limit for any view. The control thread installs one within seconds, at least of this
member alone."""


Recover = Callable[[], bool]
"""Loads the newest checkpoint; False if there is none."""


def next_view(
    session: ViewSession,
    before: InstalledView | None,
    options: Options,
    recover: Recover,
) -> InstalledView:
    """Return a view after ``before`` with enough members and a plan that is not paused.

    Raises TooFewMembers after ``min_members_wait_s`` with fewer members, and StateLost
    if no member has a complete state, or a checkpoint.
    """
    lost = Deadline.after(LOST_S)
    limit = Deadline.after(options.min_members_wait_s)
    while True:
        found = view_after(session, before)
        num_members = len(found.view.members)
        if found.plan.is_paused:
            if found.plan.lacks_state:
                _find_state(session, found, lost, recover)
            else:
                lost = Deadline.after(LOST_S)
                _log.warning("ringleader: waiting: %s", found.plan.pause_reason)
                leave_pause(session, found)
            limit = Deadline.after(options.min_members_wait_s)
        elif num_members >= options.min_members:
            return found
        else:
            text = f"{num_members} of at least {options.min_members} members"
            _log.warning("ringleader: waiting: %s", text)
            if not _comes_within(session, found, limit):
                text = f"elastic: {text} after {limit.after_s:g} s"
                raise TooFewMembers(f"{text}; start more machines")
        before = found


def wait_for_others(session: ViewSession) -> bool:
    """Wait for the machines that a run begins with, for half a minute at most.

    A process that joins a run never begins one: it waits for a member. Returns False if
    the others have finished the run; raises DeadlineExceeded if none answers.
    """

    def has_met(found: InstalledView) -> bool:
        peers = session.peers
        if peers is None:
            return False
        least = 2 if peers.is_joiner else 1
        return len(found.view.members) >= max(peers.expected, least)

    meet, join = Deadline.after(MEET_S), Deadline.after(JOIN_S)
    told = Deadline.after(TELL_S)
    while not _is_there(session, has_met, Deadline.after(POLL_S)):
        peers = session.peers
        if peers is None or peers.is_joiner:
            if peers is not None and peers.is_over:
                return False
            if told.is_over():
                told = Deadline.after(TELL_S)
                left_s = join.left_s()
                tell(
                    f"joining: no machine of the run has answered; {left_s:.0f} s left"
                )
            if join.is_over():
                text = f"no member of the run answered within {JOIN_S:g} s; if it has"
                text = f"{text} not ended, start this machine again"
                raise DeadlineExceeded("other members", text)
        elif meet.is_over():
            _log.warning(
                "ringleader: not all machines came in time; beginning without them"
            )
            break
    return True


def view_after(session: ViewSession, before: InstalledView | None) -> InstalledView:
    """Return a view after ``before``, whatever its plan; asks for one if it is late.

    Raises DeadlineExceeded if none comes.
    """
    limit = Deadline.after(NO_VIEW_S)
    while True:
        wait = limit if limit.left_s() <= REFRESH_S else Deadline.after(REFRESH_S)
        try:
            return session.wait_view(lambda view: view is not before, wait)
        except DeadlineExceeded:
            if wait is limit:
                raise
            session.refresh()


def leave_pause(session: ViewSession, paused: InstalledView) -> None:
    """Wait for the view after a paused one; an old status needs a new one.

    Raises Expelled if the others finish the run meanwhile: none would come.
    """
    is_late = any(s.answers != paused.view.id for s in paused.statuses.values())
    if is_late and not _comes_within(session, paused, Deadline.after(REFRESH_S)):
        session.refresh()
    told = Deadline.after(NO_VIEW_S)
    while not _comes_within(session, paused, Deadline.after(POLL_S)):
        peers = session.peers
        if peers is not None and peers.is_over:
            raise Expelled("the others have finished the run while this process waited")
        if told.is_over():
            _log.warning("ringleader: still waiting: %s", paused.plan.pause_reason)
            told = Deadline.after(NO_VIEW_S)


def _find_state(
    session: ViewSession, paused: InstalledView, lost: Deadline, recover: Recover
) -> None:
    """Wait for a view with a complete state, or load that of the newest checkpoint.

    Raises StateLost if there is none, or if the others have finished the run.
    """
    names = ", ".join(paused.names)
    text = f"the machines that are here ({names}) have no complete state of the run"
    _log.warning(
        "ringleader: waiting: %s; loading the newest checkpoint, or giving up, "
        "in %.0f s",
        text,
        lost.left_s(),
    )
    has_tried = False
    others_s = OTHERS_S if len(paused.names) > 1 else 0.0
    limit = Deadline.after(lost.left_s() + others_s)
    while not _comes_within(session, paused, Deadline.after(POLL_S)):
        peers = session.peers
        if peers is not None and peers.is_over:
            raise StateLost(f"elastic: {text}, and the others have finished it")
        if lost.is_over() and not has_tried:
            has_tried = True
            if recover():
                session.refresh()
                return
        if limit.is_over():
            raise StateLost(
                f"elastic: {text}, and no checkpoint is on this one; no other machine "
                f"came within {lost.after_s:g} s. Start the run again"
            )


def _comes_within(
    session: ViewSession, before: InstalledView | None, deadline: Deadline
) -> bool:
    return _is_there(session, lambda view: view is not before, deadline)


def _is_there(
    session: ViewSession, is_enough: Callable[[InstalledView], bool], deadline: Deadline
) -> bool:
    try:
        session.wait_view(is_enough, deadline)
    except DeadlineExceeded:
        return False
    return True
