"""CollectiveAttempt: one attempt at a collective of a script."""

from __future__ import annotations

from torch import Tensor

from ringleader.backend.living_collectives import Collective
from ringleader.errors import RingleaderError
from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.membership.steps.attempt import Attempt


class CollectiveAttempt:
    """One attempt at a collective, in the group of one view."""

    def __init__(self, attempt: Attempt, group: Group | None, live: list[int]) -> None:
        self.attempt = attempt
        self.live = live
        """The ranks in torch of those that take part."""
        self.outs: list[Tensor] = []
        self.error: RingleaderError | None = None
        self._group = group
        self._works: list[Work] = []

    def start(self, collective: Collective, outs: list[Tensor]) -> None:
        """Start a collective, or a part of one, unless another part has failed."""
        self.outs += outs
        if self._group is None:
            collective.copy(self.live[0], outs)
        elif self.error is None:
            try:
                self._works += collective.start(self._group, self.live, outs)
            except RingleaderError as exc:
                self.error = exc

    def settle(self) -> None:
        """Return when all has ended; sets ``error`` if a part failed."""
        for work in self._works:
            try:
                work.wait()
            except RingleaderError as exc:
                self.error = self.error or exc
        self._works.clear()
