"""Waits for the next view, or for the next one in which the run can go on."""

from __future__ import annotations

import logging
from typing import Final

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, TooFewMembers
from ringleader.training.installed_view import InstalledView
from ringleader.training.options import Options
from ringleader.training.view_session import ViewSession

_log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""How long a member whose group broke waits for a view before it asks for one."""

NO_VIEW_S: Final = 60.0
"""Limit for any view. The control thread installs one within seconds, at least of this
member alone."""


def next_view(
    session: ViewSession, before: InstalledView | None, options: Options
) -> InstalledView:
    """Return a view after ``before`` with enough members and a plan that is not paused.

    Raises TooFewMembers after ``min_members_wait_s`` with fewer members.
    """
    limit = Deadline.after(options.min_members_wait_s)
    while True:
        found = view_after(session, before)
        num_members = len(found.view.members)
        if found.plan.is_paused:
            _log.warning("waiting: %s", found.plan.pause_reason)
            _leave_pause(session, found)
            limit = Deadline.after(options.min_members_wait_s)
        elif num_members >= options.min_members:
            return found
        else:
            text = f"{num_members} of at least {options.min_members} members"
            _log.warning("waiting: %s", text)
            if not _comes_within(session, found, limit):
                text = f"elastic: {text} after {limit.after_s:g} s"
                raise TooFewMembers(f"{text}; start more machines")
        before = found


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


def _leave_pause(session: ViewSession, paused: InstalledView) -> None:
    """Wait for the view after a paused one; an old status needs a new one."""
    is_late = any(s.answers != paused.view.id for s in paused.statuses.values())
    if is_late and not _comes_within(session, paused, Deadline.after(REFRESH_S)):
        session.refresh()
    while not _comes_within(session, paused, Deadline.after(NO_VIEW_S)):
        _log.warning("still waiting: %s", paused.plan.pause_reason)


def _comes_within(
    session: ViewSession, before: InstalledView | None, deadline: Deadline
) -> bool:
    try:
        session.wait_view(lambda view: view is not before, deadline)
    except DeadlineExceeded:
        return False
    return True
