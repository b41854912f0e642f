"""Members: a team of several machines, whose views change while it works."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ringleader.deadline import Deadline
from ringleader.errors import (
    InternalError,
    PeerError,
    RingleaderError,
    RunError,
    StateLost,
)
from ringleader.groups.caller_observer import phase
from ringleader.groups.group import Group, handle_of
from ringleader.training.bucket_reducer import Sidebands
from ringleader.training.contribution import Contribution
from ringleader.training.control.run_environment import tell_end
from ringleader.training.data.balance import Flag
from ringleader.training.data.loader import Loader
from ringleader.training.data.progress import table_after_loss, table_of
from ringleader.training.data_order import DataOrder
from ringleader.training.following import Following
from ringleader.training.installed_view import FORM_S, InstalledView, ViewChanged
from ringleader.training.kill_points import reach
from ringleader.training.machine_events import MachineEvents
from ringleader.training.next_view import next_view, wait_for_others
from ringleader.training.options import Options
from ringleader.training.plan_execution import PlanExecution
from ringleader.training.residuals import Residuals
from ringleader.training.run_news import RunNews
from ringleader.training.sideband import Entry, Totals
from ringleader.training.state import second_copy
from ringleader.training.state.run_checkpoints import History
from ringleader.training.state.state_agreement import StateAgreement
from ringleader.training.step_attempts import StepAttempts
from ringleader.training.team import Team
from ringleader.training.view_session import ViewSession

_log = logging.getLogger(__name__)

MAX_FAILURES: Final = 30
"""After more failed views in a row than this, the last error is raised."""

END_S: Final = 30.0
"""How long a finished member serves the others."""


class Members(Team):
    """A run with a control plane. All methods are for the user's thread."""

    def __init__(
        self,
        data: DataOrder,
        contribution: Contribution,
        loader: Loader,
        following: Following,
        session: ViewSession,
        options: Options,
    ) -> None:
        events = MachineEvents(session.work_watch)
        super().__init__(data, contribution, loader, session.step.me.node, events)
        self._session = session
        self._options = options
        buffers = contribution.update.buffers
        sidebands = self._sidebands = Sidebands(self.layout)
        residuals = self._residuals = Residuals(buffers, options.sent_codec)
        self._following = following
        self._execution = PlanExecution(session, buffers, sidebands, following)
        self._entered: InstalledView | None = None
        self._group: Group | None = None
        pace = following.pace
        self._attempts = StepAttempts(session, contribution, sidebands, residuals, pace)
        self._agreement = StateAgreement(following.state, options.watch_every)
        self._news = RunNews(data.spec, options.traffic(buffers.num_bytes))
        self._num_applied = 0
        self._failures = 0

    def start(self) -> None:
        """Wait for the others, and take the state of the run if it has one."""
        self.events.start()
        self._following.follow()
        with phase("meet the others", holds_up=True):
            is_there = wait_for_others(self._session)
        if not is_there:
            self._news.came_too_late()
            raise SystemExit(0)  # what follows the loop expects a trained model
        try:
            self._enter_next(None)
        except StateLost:
            peers = self._session.peers
            if peers is None or not (peers.is_joiner and peers.is_over):
                raise
            self._news.came_too_late()
            raise SystemExit(0) from None
        self._following.serve()

    def follow(self) -> None:
        """Enter the view that was installed since, if there is one."""
        installed = self._session.current()
        if installed is not self._entered and not self._session.is_frozen:
            self._enter_next(self._entered)

    def complete_step(self) -> bool:
        """Deliver and apply the step; False if quanta are to be computed first."""
        before = self._num_applied
        self.follow()
        while self._num_applied == before:
            if self.contribution.step.pending or self.is_over:
                return False
            if not self._attempt():
                self._enter_next(self._entered)
        if self._entered is not None:
            self._entered.step_done()
        self._following.wait_for_learners(self._must_go_on)
        return True

    def _must_go_on(self) -> bool:
        """Whether newcomers that follow the run have to wait: a view is to come, or
        this member is about to leave."""
        is_leaving = Flag.LEAVING in self.events.flags()
        return self._session.is_awaited or is_leaving or self.is_over

    # -- one attempt -----------------------------------------------------------------

    def start_reduction(self) -> None:
        """Start to send buckets while the last quantum runs backward."""
        if self._entered is not None and self._group is not None:
            self._attempts.start_early(self._entered, self._group)

    def _attempt(self) -> bool:
        """Reduce the step and apply it; False if that failed, or a view follows."""
        assert self._entered is not None
        self.contribution.seal()
        if self._group is None:
            return self._attempt_alone(self._entered)
        if not self._attempts.start(self._entered, self._group):
            return False
        try:
            with phase("reduction"):
                self._attempts.finish(self.own_entry())
        except RingleaderError as exc:
            self._note_failure(exc, self._entered)
            return False
        if not self._deliver(self._entered):
            return False
        self._agree(self._group)
        if self.rank == 0:
            self._news.plan(self.progress.balance, handle_of(self._group).network)
        self.begin_step()
        return True

    def _agree(self, group: Group) -> None:
        """Let the members notice and mend states that differ."""
        try:
            self._agreement.align(group, self.version)
        except RingleaderError as exc:
            self._note_failure(exc, self._entered)

    def _attempt_alone(self, entered: InstalledView) -> bool:
        totals = self.own_totals()
        if not self._attempts.hold_alone(entered):
            return False
        reach("held")
        if not self._session.deliver(entered, self.samples(totals), is_kept=False):
            return False
        self.apply(totals, None)
        self.begin_step()
        return True

    def own_entry(self) -> Entry:
        """Return what this member tells the others, a digest of its state included."""
        entry = super().own_entry()
        if self._group is None:
            return entry
        self.contribution.update.restore_delivered()
        return replace(entry, digest=self._agreement.to_tell(self.version))

    def _deliver(self, entered: InstalledView) -> bool:
        """Deliver and apply the result that is held; False if a view follows."""
        version = self.version + 1
        entries = self._sidebands.entries(version)
        totals = self.layout.totals(entries, self.num_quanta)
        before = self.history_to_save(totals)
        reach("held")
        if not self._session.deliver(entered, self.samples(totals), is_kept=True):
            return False
        self._residuals.deliver(self._session.last_attempt)
        self._agreement.note(entry.digest for entry in entries)
        if self.checkpoints is not None and before is not None:
            self.checkpoints.stage(before)
        self.apply(totals, version)
        return True

    def apply(self, totals: Totals, result: int | None) -> None:
        """Apply a delivered step."""
        super().apply(totals, result)
        self._following.applied(self.version)
        self._num_applied += 1
        if self._num_applied == 1 and not second_copy.fits(self._following.state):
            num_bytes = self._following.state.num_bytes
            has_folder = self.checkpoints is not None
            text = second_copy.warning(num_bytes, has_folder=has_folder)
            self._news.show(text)
        self._failures = 0
        self._news.delivered(self.version, self.contributors)

    @property
    def stable_version(self) -> int:
        """The last version that all members have delivered."""
        return self._session.step.stable_version

    def history(self) -> History:
        """Return where the run stands, by the step protocol."""
        with self._session.lock:
            return History.of(self._session.step)

    def begin_step(self) -> None:
        """Take this member's quanta of a step that begins; none if a view follows."""
        table = table_of(self.data.spec, self.progress, self.nodes)
        with self._session.lock:
            if self._session.step.is_frozen:
                return
            self._session.step.assign(table.quanta[self.node])
        self.take(table)

    # -- view changes ----------------------------------------------------------------

    def _enter_next(self, before: InstalledView | None) -> None:
        """Wait for a view after ``before``, and do what its plan says."""
        with phase("view change", holds_up=True):
            self._session.is_stepping = False
            self._session.freeze_planned()
            while True:
                installed = next_view(
                    self._session, before, self._options, self._recover
                )
                try:
                    self._enter(installed)
                except (RingleaderError, ViewChanged) as exc:
                    self._note_failure(exc, installed)
                    before = installed
                else:
                    self._session.is_stepping = True
                    return

    def _enter(self, installed: InstalledView) -> None:
        """Execute the plan of a view; raises if another view has to come first."""
        self._attempts.give_up()
        plan = installed.plan
        if plan.is_paused:
            raise ViewChanged
        installed.check_layouts()
        group = installed.group(Deadline.after(FORM_S))
        is_held = self._execution.gather(installed, group)
        if is_held and not self._deliver(installed):
            raise ViewChanged
        self.contribution.update.restore_delivered()
        if self._execution.adopt(installed, group):
            self._adopted(installed)
        if self.version != plan.version:
            raise InternalError(f"elastic: {self.version} after {plan.version}'s plan")
        self._enter_table(installed, group)

    def _enter_table(self, installed: InstalledView, group: Group | None) -> None:
        kept = {m.node: quanta for m, quanta in installed.plan.quanta.items()}
        spec, on_loss = self.data.spec, self._options.on_loss
        table = table_after_loss(spec, self.progress, installed.nodes, kept, on_loss)
        with self._session.lock:
            is_current = self._session.current() is installed
            if self._session.step.is_frozen or not is_current:
                raise ViewChanged
            self._session.step.assign(table.quanta[self.node])
        if self._entered is not None and self._entered is not installed:
            self._entered.close()
        self._entered, self._group = installed, group
        self.nodes, self.rank = tuple(installed.nodes), installed.rank
        names = installed.names
        self._agreement.enter(names, is_exact=installed.is_exact)
        self._news.entered(dict(zip(self.nodes, names, strict=True)), self.version)
        leader = installed.view.id.leader
        if self._options.partition == "majority" and len(names) == 2:
            self._news.no_witness(leader if leader in self.nodes else self.nodes[0])
        self.take(table)

    def _adopted(self, installed: InstalledView) -> None:
        self._drop_work()
        self.version = installed.plan.version
        if self.checkpoints is not None:
            self.checkpoints.adopted()

    def _drop_work(self) -> None:
        """Forget what was computed for a state that was replaced."""
        self._residuals.clear()
        self.contribution.drop()

    def _recover(self) -> bool:
        """Load the newest checkpoint, where no member has a complete state."""
        history = None if self.checkpoints is None else self.checkpoints.restore()
        if history is None or history.last is None:
            return False
        self._drop_work()
        self.version = history.version
        with self._session.lock:
            if self._session.step.is_frozen:
                return True  # it has told that it lacks a state; the next view decides
            self._session.step.restore(
                history.version,
                history.chain,
                history.chain_before,
                history.last,
                history.samples,
            )
        self._news.recovered(history.version)
        return True

    def _note_failure(self, error: Exception, where: InstalledView | None) -> None:
        """Let the membership find out what happened, in a view that may be over.

        Raises what users have to act on.
        """
        self._attempts.give_up()
        self._failures += 1
        if self._failures > MAX_FAILURES or isinstance(error, RunError):
            raise error
        rank = error.peer if isinstance(error, PeerError) else None
        if isinstance(rank, int) and where is not None:
            self._session.suspect(where, rank, str(error))
        _log.info("view given up: %r", error)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Wait until all members have the last result, then leave."""
        try:
            if self.is_over:
                tell_end(self._session.step.lineage)
                self._wait_until_stable(Deadline.after(END_S))
        finally:
            self._following.close()
            self._session.close()
            if self._entered is not None:
                self._entered.close()
            super().close()

    def _wait_until_stable(self, deadline: Deadline) -> None:
        # The group stays: others may still be receiving the last step over it.
        self._session.freeze_planned(aborts=False)
        while self._group is not None and not deadline.is_over():
            try:
                self._group.barrier(timeout_s=max(0.1, deadline.left_s()))
            except RingleaderError as exc:
                self._note_failure(exc, self._entered)
                self._enter_next(self._entered)
            else:
                return
