"""Decides whether a view keeps the name of its lineage, or is a fork of it.

A lineage is one line of history. It must never be continued by two views that do not
know of each other, so a view keeps the name only if no other view can have it:

* The newest view of the lineage that any member has installed, and every view promised
  after it that any member reports, may be in force elsewhere. The new view must contain
  a majority of each of them (at exactly half: its leader).
* A member counts for such a view only if it remembers the promise: it has installed the
  view, or reports it as promised. One that went on in another history counts if it
  still remembers the view and everything it has promised since (``left``, used with
  ``partition="majority"`` only); those promises have to be considered then, too.
* A promised view is ruled out if one of its members never promised it (a view comes
  into force only with the promises of all), or knows that its plan was to pause.
* A life that is proven to have ended leaves the newest view, and the majority is one of
  the remaining members. That is safe only if it had promised nothing after that view:
  otherwise it may have helped to form a view that nobody here knows.

Two views that follow one view of the lineage therefore have a member in common, and the
later one of them knows the earlier one from that member's report.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ringleader.membership.member import Member, ViewId
from ringleader.membership.steps.status import Promise, StepStatus

Statuses = Mapping[Member, StepStatus]
LastPromises = Mapping[Member, ViewId]
"""The last promise of each life that is proven to have ended."""


def keeps_lineage(statuses: Statuses, lineage: str, newest: Promise) -> bool:
    """Return True if the members of ``statuses`` may continue ``lineage``.

    ``newest`` is the newest view of the lineage that one of them has installed.
    """
    recalled = {m: _recalled(s) for m, s in statuses.items()}
    return any(_may_continue(s, lineage, newest) for s in (statuses, recalled))


def _recalled(status: StepStatus) -> StepStatus:
    """Return a status with all that the member remembers as promised."""
    if not status.left:
        return status
    view = Promise(status.view, status.view_members)
    return replace(status, promised=(*status.left, view, *status.promised))


def _may_continue(statuses: Statuses, lineage: str, newest: Promise) -> bool:
    ended = _last_promises(statuses)
    remaining = tuple(m for m in newest.members if ended.get(m) != newest.id)
    views = [Promise(newest.id, remaining)]
    views += (
        promise
        for promise in _promises(statuses).values()
        if promise.id > newest.id and not _is_void(promise, statuses, lineage, ended)
    )
    return all(_has_majority(view, statuses) for view in views)


def ruled_out(statuses: Statuses) -> frozenset[ViewId]:
    """Return the promised views that are in force nowhere: they may be forgotten."""
    ended = _last_promises(statuses)
    paused = frozenset(view_id for s in statuses.values() for view_id in s.paused)
    return paused | frozenset(
        promise.id
        for promise in _promises(statuses).values()
        if any(_never_promised(m, promise, statuses, ended) for m in promise.members)
    )


def _promises(statuses: Statuses) -> dict[ViewId, Promise]:
    """Return the promised views, without those that are known to have paused."""
    paused = {view_id for s in statuses.values() for view_id in s.paused}
    promised = (p for s in statuses.values() for p in s.promised)
    return {p.id: p for p in promised if p.id not in paused}


def _last_promises(statuses: Statuses) -> dict[Member, ViewId]:
    """Return the lives that have ended. A member that is here has not, whatever others
    report."""
    ended: dict[Member, ViewId] = {}
    for status in statuses.values():
        for member, promised in status.ended:
            if member not in statuses:
                ended[member] = max(promised, ended.get(member, promised))
    return ended


def _is_void(
    promise: Promise, statuses: Statuses, lineage: str, ended: LastPromises
) -> bool:
    """Return True if a promised view cannot be in force in this lineage."""
    return any(
        _never_promised(member, promise, statuses, ended)
        or _is_elsewhere(statuses.get(member), promise, lineage)
        for member in promise.members
    )


def _is_elsewhere(status: StepStatus | None, promise: Promise, lineage: str) -> bool:
    """Return True if a member has installed the view in another lineage."""
    if status is None or status.view != promise.id:
        return False
    return status.lineage not in ("", lineage)


def _never_promised(
    member: Member, promise: Promise, statuses: Statuses, ended: LastPromises
) -> bool:
    status = statuses.get(member)
    if status is None:
        return member in ended and ended[member] < promise.id
    return promise.id > status.since and not _remembers(_recalled(status), promise)


def _remembers(status: StepStatus, view: Promise) -> bool:
    """Return True if a member has promised a view, and knows what it promised since."""
    if status.view == view.id:
        return status.since <= view.id
    return any(p.id == view.id for p in status.promised)


def _has_majority(view: Promise, statuses: Statuses) -> bool:
    """Return True if more than half of a view is here, or half with its leader.

    If the leader has ended, the first one that remains takes its place.
    """
    counted = [
        m for m in view.members if m in statuses and _remembers(statuses[m], view)
    ]
    if 2 * len(counted) != len(view.members):
        return 2 * len(counted) > len(view.members)
    leaders = (m for m in view.members if view.id[1:] == (m.node, m.incarnation))
    return next(leaders, view.members[0]) in counted
