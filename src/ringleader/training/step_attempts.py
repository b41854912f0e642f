"""StepAttempts: starts the reduction of a step in a view, and gives it up."""

from __future__ import annotations

from ringleader.errors import RingleaderError
from ringleader.groups.group import Group
from ringleader.membership.steps.attempt import Attempt
from ringleader.training.bucket_reducer import BucketReducer, Sidebands
from ringleader.training.contribution import Contribution
from ringleader.training.installed_view import InstalledView
from ringleader.training.join.upload_pace import UploadPace, sent_bytes
from ringleader.training.reduction import Reduction
from ringleader.training.residuals import Residuals
from ringleader.training.sideband import Entry
from ringleader.training.view_session import ViewSession


class StepAttempts:
    """At most one attempt at a time. User's thread only."""

    def __init__(
        self,
        session: ViewSession,
        contribution: Contribution,
        sidebands: Sidebands,
        residuals: Residuals,
        pace: UploadPace,
    ) -> None:
        self._session = session
        self._contribution = contribution
        self._sidebands = sidebands
        self._residuals = residuals
        self._pace = pace
        self._sent_bytes = 0.0
        """What this member sends in the running attempt."""
        self._running: Reduction | None = None

    def start(self, entered: InstalledView, group: Group) -> bool:
        """Start an attempt unless one runs; False if a view was promised."""
        if self._running is not None:
            return True
        attempt = self._begin(entered)
        if attempt is None:
            return False
        buffers = self._contribution.update.buffers
        reducer = BucketReducer(
            group,
            attempt.version,
            buffers,
            self._sidebands,
            self._residuals,
            self._pace.begin,
        )
        self._residuals.begin(attempt)

        def on_done(bit: int) -> None:
            self._residuals.written(attempt, bit - 1)
            self._session.bucket_done(attempt, bit)

        leaves = [bucket.leaves for bucket in buffers.buckets]
        self._running = Reduction(reducer, leaves, on_done)
        size = sum(flat.nbytes for flat in buffers.contribution.values())
        is_coded = self._residuals.is_coded
        self._sent_bytes = sent_bytes(size, group.size, is_coded=is_coded)
        return True

    def start_early(self, entered: InstalledView, group: Group) -> None:
        """Start an attempt whose buckets leave while the last quantum runs backward."""
        if self.start(entered, group) and self._running is not None:
            self._contribution.on_ready = self._running.parameter_ready

    def finish(self, entry: Entry) -> None:
        """Return when the whole result is held. Raises the error of the group."""
        assert self._running is not None
        try:
            self._running.finish(self._sidebands.layout.encode(entry))
        except RingleaderError:
            self.give_up()
            raise
        self._running = None
        self._pace.end(self._sent_bytes)

    def hold_alone(self, entered: InstalledView) -> bool:
        """Hold the result of a view of one member; False if a view was promised."""
        attempt = self._begin(entered)
        if attempt is None:
            return False
        for bit in range(self._num_buckets):
            self._session.bucket_done(attempt, bit)
        return True

    def give_up(self) -> None:
        """End the running attempt, if any; its buffers may be used again then."""
        if self._running is not None:
            self._running.settle()
            self._running = None
            self._pace.end(0)

    @property
    def _num_buckets(self) -> int:
        return 1 + len(self._contribution.update.buffers.buckets)

    def _begin(self, entered: InstalledView) -> Attempt | None:
        with self._session.lock:
            self._session.freeze_planned()
            step = self._session.step
            if step.is_frozen or self._session.current() is not entered:
                return None
            attempt = step.next_attempt
            return attempt if step.begin(attempt, self._num_buckets) else None
