"""Survivors: runs the collectives of an unmodified script among the living members.

Every collective is one step of the step protocol. Its inputs are retained and its
results go to other memory, so an attempt that loses a member is repeated by the others.
If one of them has the result already, the others get exactly that one. The tensors of
the script are written when the step is delivered, and not before.

Such a script cannot hand over its state. So no machine can join, and a process that
fell behind ends with Expelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from torch import Tensor

from ringleader.backend.living_collectives import Collective
from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    Expelled,
    GroupAborted,
    PeerError,
    RingleaderError,
    RunError,
)
from ringleader.groups.group import Group
from ringleader.membership.member import Member
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.plan import Gather
from ringleader.training.collective_attempt import CollectiveAttempt
from ringleader.training.control.run_environment import tell_end
from ringleader.training.installed_view import FORM_S, InstalledView, ViewChanged
from ringleader.training.kill_points import reach
from ringleader.training.next_view import leave_pause, view_after
from ringleader.training.result_memory import ResultMemory
from ringleader.training.view_session import ViewSession

_log = logging.getLogger(__name__)

MAX_FAILURES: Final = 30
"""After more failed views in a row than this, the last error is raised."""


class Survivors:
    """Runs the collectives of one script among the members that are alive."""

    def __init__(self, session: ViewSession, members: Sequence[Member]) -> None:
        self._session = session
        self._members = list(members)
        """By their rank in torch, which never changes."""
        self._memory = ResultMemory()
        self._lock = threading.RLock()
        self._entered: InstalledView | None = None
        self._group: Group | None = None
        self._version = 0
        self._history = ""
        self.is_ending = False
        """The script has ended: those that go now have ended, too."""
        self._failures = 0
        self._early: CollectiveAttempt | None = None
        self._tried: CollectiveAttempt | None = None
        """The attempt that began last."""
        self.contributors: Sequence[int] = self.live
        """The ranks that took part in the collective that was completed last."""

    @property
    def live(self) -> list[int]:
        """The ranks in torch of the members of the view that was entered last."""
        if self._entered is None:
            return list(range(len(self._members)))
        return self._ranks_of(self._entered)

    def lost(self) -> list[int]:
        """The ranks that are not in the view in force."""
        installed = self._session.current() or self._entered
        members = self._members if installed is None else installed.view.members
        return [r for r, m in enumerate(self._members) if m not in members]

    def run(
        self, collective: Collective, early: CollectiveAttempt | None = None
    ) -> list[Tensor]:
        """Complete a collective among the living, and return its results.

        ``early`` is an attempt that ``open`` began and in which all parts of the
        collective were started. The results are valid until the next collective.
        """
        with self._lock:
            if self._early is not early:
                text = "a collective during backward, between the buckets of a model"
                raise ConfigError(f"--survive: {text}, is not supported")
            self._early = None
            version = self._version + 1
            if early is not None:
                if not self._settle(early):
                    self._enter_next(collective)
            else:
                self._follow(collective)
            while self._version < version:
                tried = self._begin()
                if tried is not None:
                    tried.start(collective, self._memory.like(collective.results))
                if tried is None or not self._settle(tried):
                    self._enter_next(collective)
            self._failures = 0
            if self._entered is not None:
                self._entered.step_done()
            return self._memory.results

    def open(self) -> CollectiveAttempt | None:
        """Begin the next attempt, whose parts follow; None if a view follows."""
        with self._lock:
            self._early = self._begin()
            return self._early

    def start_part(self, early: CollectiveAttempt | None, part: Collective) -> None:
        """Start a part of a collective in an attempt that ``open`` began."""
        if early is not None:
            early.start(part, self._memory.like(part.results))

    def _begin(self) -> CollectiveAttempt | None:
        with self._session.lock:
            step = self._session.step
            is_current = self._session.current() is self._entered
            if self._entered is None or step.is_frozen or not is_current:
                return None
            attempt = step.next_attempt
            if not step.begin(attempt, 1):
                return None
        reach("rs:0")
        self._tried = CollectiveAttempt(attempt, self._group, self.live)
        return self._tried

    def _settle(self, tried: CollectiveAttempt) -> bool:
        """Wait for an attempt and deliver it; False if that failed."""
        tried.settle()
        if tried.error is not None:
            self._memory.free(tried.outs)
            self._note_failure(tried.error, self._entered)
            return False
        reach("ag:0")
        assert self._entered is not None
        return self._deliver(self._entered, tried.attempt, tried.outs)

    def _deliver(
        self, where: InstalledView, attempt: Attempt, outs: list[Tensor]
    ) -> bool:
        with self._session.lock:
            if not self._session.step.bucket_done(attempt, 0):
                return False  # another view was promised, or installed, meanwhile
            reach("held")
            if not self._session.deliver(where, 1, is_kept=True):
                return False
        self._memory.keep(outs)
        self._version += 1
        self._note_history()
        assert self._tried is not None
        # A result of others, too, is that of the attempt in which this rank had a part.
        self.contributors = self._tried.live
        reach("applying")
        return True

    # -- view changes ------------------------------------------------------------------

    def _follow(self, collective: Collective) -> None:
        """Enter the view that was installed since, if there is one."""
        installed = self._session.current()
        if installed is not self._entered and not self._session.is_frozen:
            self._enter_next(collective)

    def _enter_next(self, collective: Collective) -> None:
        """Wait for a view after the one entered last, and do what its plan says.

        Returns also when the collective was delivered, though the view was not entered:
        the next collective does that.
        """
        before, version = self._entered, self._version
        while self._version == version:
            installed = view_after(self._session, before)
            if installed.plan.is_paused:
                _log.warning("ringleader: waiting: %s", installed.plan.pause_reason)
                leave_pause(self._session, installed)
                before = installed
                continue
            try:
                self._enter(installed, collective)
            except RunError:
                raise
            except (RingleaderError, ViewChanged) as exc:
                self._note_failure(exc, installed)
                before = installed
            else:
                return

    def _enter(self, installed: InstalledView, collective: Collective) -> None:
        plan = installed.plan
        group = installed.group(Deadline.after(FORM_S))
        if isinstance(plan.action, Gather):
            self._gather(installed, group, plan.action, collective)
        if self._session.step.me in plan.adopt:
            self._adopt(installed)
        if self._version != plan.version:
            raise ViewChanged  # frozen meanwhile
        self._announce(installed)
        if self._entered is not None:
            self._entered.close()
        self._entered, self._group = installed, group

    def _adopt(self, installed: InstalledView) -> None:
        """Enter the history of the others; possible before the first collective."""
        step = self._session.step
        with self._session.lock:
            self._require_current(installed)
            if installed.plan.version or self._version:
                raise Expelled(
                    "the others have gone on without this process, and a script of "
                    "torch cannot take their state; start it again from a checkpoint, "
                    "or use ringleader.elastic, which does"
                )
            name = installed.view.id
            if not (step.begin_adopt(name) and step.adopt(name, 0)):
                raise ViewChanged

    def _require_current(self, installed: InstalledView) -> None:
        """Raise ViewChanged if another view was installed meanwhile."""
        if self._session.current() is not installed:
            raise ViewChanged

    def _gather(
        self,
        installed: InstalledView,
        group: Group | None,
        action: Gather,
        collective: Collective,
    ) -> None:
        """Give the result of an attempt to those that have not delivered it."""
        attempt = action.attempt
        is_late = self._version < attempt.version
        with self._session.lock:
            self._require_current(installed)
            if is_late and not self._session.begin(attempt, 1):
                raise ViewChanged
        reach("gather:0")
        src = installed.rank_of(action.holders[0])
        given = collective.results if is_late else self._memory.results
        outs = self._memory.like(given)
        for out, kept in zip(outs, given, strict=True):
            if group is not None:
                out.copy_(kept if installed.rank == src else out)
                group.broadcast(out, src)
        if not is_late:
            self._memory.free(outs)
            self._note_history()
        elif not self._deliver(installed, attempt, outs):
            raise ViewChanged

    def _note_history(self) -> None:
        """Note the name of the history that the script has taken part in.

        What happens when it has ended, and others leave, does not count.
        """
        if not self.is_ending:
            self._history = self._session.step.lineage

    def _announce(self, installed: InstalledView) -> None:
        gone = sorted(set(self.live) - set(self._ranks_of(installed)))
        if gone and not self.is_ending:
            ranks = ", ".join(map(str, gone))
            were = "ranks %s were" if len(gone) > 1 else "rank %s was"
            count, size = len(installed.view.members), len(self._members)
            text = f"ringleader: {were} lost; going on with %d of %d ranks"
            _log.warning(text, ranks, count, size)

    def _ranks_of(self, installed: InstalledView) -> list[int]:
        return [self._members.index(m) for m in installed.view.members]

    def _note_failure(self, error: Exception, where: InstalledView | None) -> None:
        """Let the membership find out what happened in the group of a view."""
        _log.info("view given up: %r", error)
        self._failures += 1
        if self._failures > MAX_FAILURES:
            raise error
        if where is None or self._session.is_frozen or isinstance(error, GroupAborted):
            return
        if isinstance(error, PeerError) and isinstance(error.peer, int):
            self._session.suspect(where, error.peer, str(error))

    def close(self, *, is_failed: bool = False) -> None:
        """Leave the run."""
        if not is_failed:
            tell_end(self._history)
        self._session.close()
        if self._entered is not None:
            self._entered.close()
