"""Promises: which views a member has promised, as far as it has to remember them.

A view may continue a history only with the votes of members that can name every view
they have promised since (see ``lineage.py``). So promises are remembered until the
member goes on in a later view. With ``partition="majority"``, where a missing vote
would stop the run, some are remembered after that, too: the promised view may have come
into force in another history.
"""

from __future__ import annotations

from collections.abc import Collection

from ringleader.membership.member import NO_VIEW, ViewId
from ringleader.membership.steps.status import MAX_LEFT, MAX_PROMISES, Promise

_MAX_MEMBERS = 256
"""Members in all promises of a status together: 22 KB."""


class Promises:
    """The promises of one member, oldest first."""

    def __init__(self, *, keeps_left: bool) -> None:
        self._keeps_left = keeps_left
        self.open: list[Promise] = []
        """Promised after the view that the member speaks for."""
        self.left: list[Promise] = []
        """Installed or promised before that view, as far as it is remembered."""
        self.since = NO_VIEW
        """All promises after this view are remembered."""
        self.paused: list[ViewId] = []
        """Views whose plan was to pause, so that nobody must count them."""

    def add(self, promise: Promise) -> None:
        """Promise a view; the oldest are forgotten if there are too many."""
        self.open.append(promise)
        while self._is_too_much():
            self.since = (self.left or self.open).pop(0).id

    def _is_too_much(self) -> bool:
        promises = [*self.left, *self.open]
        if len(promises) == 1:
            return False  # the view that is being answered
        num_members = sum(len(p.members) for p in promises)
        num_open = max(0, len(self.open) - 1)
        return (
            len(self.left) > MAX_LEFT
            or num_open > MAX_PROMISES
            or num_members > _MAX_MEMBERS
        )

    def pause(self) -> None:
        """Take back the last promise: its view continues nothing."""
        self.paused = [*self.paused, self.open.pop().id][-MAX_LEFT:]

    def rule_out(self, views: Collection[ViewId]) -> None:
        """Forget views that are in force nowhere."""
        self.open = [p for p in self.open if p.id not in views]
        self.left = [p for p in self.left if p.id not in views]

    def enter(self, view: ViewId, before: Promise) -> None:
        """Go on in ``view``; ``before`` is the view that the member spoke for."""
        known = (*self.left, before, *self.open) if self._keeps_left else ()
        self.left = [p for p in known if self.since < p.id < view]
        self.since = self.since if self._keeps_left else view
        self.open = []
        while self._is_too_much():
            self.since = self.left.pop(0).id
