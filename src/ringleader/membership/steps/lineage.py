"""Decides whether a view keeps the name of its lineage, or is a fork of it.

A lineage is one line of history. It must never be continued by two views that do not
know of each other, so a view keeps the name only if no other view can have it:

* The newest view of the lineage that any member has installed, and every view promised
  after it that any member reports, may be in force elsewhere. The new view must contain
  a majority of each of them (at exactly half: its leader).
* A member counts for such a view only if it remembers the promise: it has installed the
  view, or reports it as promised. A member that went on in a fork has forgotten.
* A promised view is out of the question if one of its members never promised it: a view
  comes into force only with the promises of all.
* A life that is proven to have ended counts as present if it had promised nothing after
  the newest view. Otherwise it may have helped to form a view that nobody here knows.

Two views that follow one view of the lineage therefore have a member in common, and the
later one of them knows the earlier one from that member's report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringleader.membership.member import Member
from ringleader.membership.steps.status import Ended, Promise, StepStatus

Statuses = Mapping[Member, StepStatus]


def keeps_lineage(statuses: Statuses, lineage: str, newest: Promise) -> bool:
    """Return True if the members of ``statuses`` may continue ``lineage``.

    ``newest`` is the newest view of the lineage that one of them has installed.
    """
    ended = {e.member: e for s in statuses.values() for e in s.ended}
    return all(
        _has_majority(view, _counted(view, statuses, ended.values(), newest))
        for view in _possible_views(statuses, lineage, newest, ended)
    )


def _possible_views(
    statuses: Statuses, lineage: str, newest: Promise, ended: Mapping[Member, Ended]
) -> Iterable[Promise]:
    """Return ``newest`` and all later views that may be in force in this lineage."""
    later = {
        promise.id: promise
        for status in statuses.values()
        for promise in status.promised
        if promise.id > newest.id
    }
    possible = (
        promise
        for promise in later.values()
        if not _is_void(promise, statuses, lineage, ended)
    )
    return (newest, *possible)


def _is_void(
    promise: Promise, statuses: Statuses, lineage: str, ended: Mapping[Member, Ended]
) -> bool:
    """Return True if a promised view cannot be in force in this lineage."""
    for member in promise.members:
        status = statuses.get(member)
        if status is None:
            if member in ended and ended[member].promised < promise.id:
                return True
        elif _rules_out(status, promise, lineage):
            return True
    return False


def _rules_out(status: StepStatus, promise: Promise, lineage: str) -> bool:
    """Return True if this member installed the view in another lineage, or never
    promised it."""
    if status.view == promise.id:
        return status.lineage not in ("", lineage)
    return _never_promised(status, promise)


def _never_promised(status: StepStatus, promise: Promise) -> bool:
    return (
        status.view < promise.id
        and not status.has_forgotten
        and not _remembers(status, promise)
    )


def _remembers(status: StepStatus, view: Promise) -> bool:
    return status.view == view.id or any(p.id == view.id for p in status.promised)


def _counted(
    view: Promise, statuses: Statuses, ended: Iterable[Ended], newest: Promise
) -> set[Member]:
    """Return the members of ``view`` that can support no other successor of it."""
    counted = {
        member
        for member, status in statuses.items()
        if member in view.members and _remembers(status, view)
    }
    if view.id == newest.id:
        counted |= {e.member for e in ended if e.promised == view.id}
    return counted.intersection(view.members)


def _has_majority(view: Promise, counted: set[Member]) -> bool:
    if 2 * len(counted) == len(view.members):
        return any(view.id[1:] == (m.node, m.incarnation) for m in counted)
    return 2 * len(counted) > len(view.members)
