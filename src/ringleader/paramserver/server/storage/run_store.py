"""Keeps a run on disk: checkpoints, and a journal of all that happened since.

Writes and arithmetic take time in proportion to the model. While the run is served,
only one thread calls this, and it is not the event loop's.
"""

from __future__ import annotations

import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import msgspec

from ringleader.errors import ConfigError
from ringleader.identity.storage.private_file import sync_directory
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.messages import RunSummary
from ringleader.paramserver.server.admission import Admission
from ringleader.paramserver.server.aggregation import Aggregation
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.storage import checkpoint, scheduler_state
from ringleader.paramserver.server.storage.checkpoint import CheckpointContent
from ringleader.paramserver.server.storage.journal import Journal
from ringleader.paramserver.server.storage.journal_records import (
    AcceptedUpdate,
    AggregationChanged,
    HistoryLost,
    Joined,
    JournalRecord,
    Leased,
    Left,
    Quarantined,
    VersionClosed,
)
from ringleader.paramserver.server.storage.recovery import RunFiles
from ringleader.paramserver.server.update_checks import check_update

SUMMARY = "summary.json"
_MAX_JOURNAL_RATIO = 8
"""A checkpoint is also due when the journal is this many times as long as the model."""


class RunStore:
    """The files of one run, and its weights."""

    def __init__(self, out: Path, weights: GlobalWeights, *, every: int) -> None:
        self.out = out
        self.weights = weights
        self.nonces: dict[str, str] = {}
        """Hashes of the nonces of joins, and the ids of the workers that joined."""
        self.earlier_s = 0.0
        """Seconds of training before the server was restarted."""
        self.notes: list[str] = []
        """What was damaged on disk when the run was resumed, and what is lost by it."""
        self._every = every
        self._must_checkpoint = False
        self._checkpointed = -1
        """Version of the newest checkpoint that is intact."""
        self._journal = Journal(out)

    def open(self, scheduler: Scheduler, admission: Admission) -> int:
        """Resume or begin the run; return how many updates were applied again."""
        self.out.mkdir(parents=True, exist_ok=True)
        files = RunFiles.find(self.out)
        if files is None:
            self.checkpoint(
                scheduler.version, self.checkpoint_state(scheduler, admission, 0.0)
            )
            return 0
        wanted = self.weights.aggregation
        self._restore(files.content, scheduler, admission)
        checkpoint.publish(
            self.out, files.content.found.version
        )  # the last server may have died before that
        replay = _Replay(self, scheduler, admission)
        path, end = files.replay(replay.apply, lambda: scheduler.version)
        self._journal = Journal(path)
        self._journal.resume(end)
        if files.has_lost:
            self._journal.append(HistoryLost())
            admission.revoke_all_tokens()
        if wanted != self.weights.aggregation:
            self._journal.append(AggregationChanged(wanted.rule, wanted.clip))
            self.weights.use(wanted)
        self.notes = files.notes
        self._must_checkpoint = bool(files.notes)
        self._checkpointed = files.content.found.version
        return replay.num_updates

    def _restore(
        self, content: CheckpointContent, scheduler: Scheduler, admission: Admission
    ) -> None:
        checkpoint.load(content, self.weights)
        state = content.state
        self.weights.use(Aggregation(*state.get("aggregation", ("mean", 0.0))))
        try:
            scheduler_state.restore(scheduler, state["run"], time.monotonic())
            for digest, worker in state["tokens"].items():
                admission.add_token(digest, worker)
            self.nonces = state["nonces"]
            self.earlier_s = float(state["seconds"])
        except KeyError as exc:
            text = f"{content.found.path}: {exc} is missing in its state"
            more = "it was written by another version of Ringleader"
            raise ConfigError(f"{text}: {more}; choose another --out") from exc

    @property
    def journal_path(self) -> Path:
        """The journal of what happened since the last checkpoint."""
        return self._journal.path

    def close(self) -> None:
        """Sync and close the journal."""
        self._journal.sync()
        self._journal.close()

    def remember_nonce(self, mark: str, worker: str) -> None:
        """Remember which worker joined with a nonce, by the hash of the nonce."""
        if mark:
            self.nonces[mark] = worker

    def forget_nonce(self, worker: str) -> None:
        """Forget the nonces of a worker that left; they now give a new worker."""
        self.nonces = {mark: w for mark, w in self.nonces.items() if w != worker}

    def record_event(self, record: JournalRecord) -> None:
        """Append a record without a body to the journal."""
        self._journal.append(record)

    def record_update(
        self, record: AcceptedUpdate, body: memoryview, update: bodies.Update
    ) -> None:
        """Append an update to the journal, then add it to the sum of its version.

        In this order, an update that was acknowledged can always be applied again.
        """
        self._journal.append(record, body)
        self.weights.add(record.worker, update, record.samples * record.weight)

    def apply(self, version: int, shards: int, factor: float) -> None:
        """Record the end of a version, and make the optimizer step to the next."""
        self._journal.append(VersionClosed(version, shards, factor))
        self.weights.apply(factor)

    def is_checkpoint_due(self, scheduler: Scheduler) -> bool:
        """Return whether to write a checkpoint; never in the middle of a version."""
        version = scheduler.version
        if scheduler.has_updates or version == self._checkpointed:
            return False
        if self._must_checkpoint:  # in place of a damaged one
            return True
        size = max(self.weights.manifest.num_bytes, 1 << 20)
        is_long = self._journal.num_bytes > _MAX_JOURNAL_RATIO * size
        return version % self._every == 0 or is_long or scheduler.is_finished

    def checkpoint_state(
        self, scheduler: Scheduler, admission: Admission, seconds: float
    ) -> dict[str, Any]:
        """Build the part of a checkpoint that is neither weights nor optimizer."""
        return {
            "run": scheduler_state.dump(scheduler),
            "tokens": admission.tokens,
            "nonces": dict(self.nonces),
            "seconds": seconds,
            "aggregation": astuple(self.weights.aggregation),
        }

    def checkpoint(self, version: int, state: dict[str, Any]) -> None:
        """Write a checkpoint and begin a new journal.

        The journal exists before the checkpoint, so a checkpoint without one tells that
        it is lost.
        """
        path = checkpoint.journal_path(self.out, version)
        try:
            path.touch()
            sync_directory(self.out)
            self._journal.sync()
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
        checkpoint.write(self.out, version, self.weights, state)
        self._must_checkpoint, self._checkpointed = False, version
        self._journal.close()
        self._journal = Journal(path)
        self._journal.begin()

    def write_summary(self, summary: RunSummary) -> None:
        """Write the totals of the run to summary.json."""
        text = msgspec.json.format(msgspec.json.encode(summary))
        path = self.out / SUMMARY
        try:
            path.write_bytes(text + b"\n")
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc


class _Replay:
    """Applies the records of a journal again, in their order."""

    def __init__(
        self, store: RunStore, scheduler: Scheduler, admission: Admission
    ) -> None:
        self.num_updates = 0
        self._store = store
        self._scheduler = scheduler
        self._admission = admission

    def apply(self, record: JournalRecord, body: bytes) -> None:
        """Apply one record."""
        match record:
            case Joined() | Left() | Quarantined() | Leased():
                self._apply_to_worker(record)
            case AggregationChanged(rule, clip):
                self._store.weights.use(Aggregation(rule, clip))
            case VersionClosed():
                self._store.weights.apply(record.factor)
                self._scheduler.close_version(record.shards)
            case HistoryLost():
                self._admission.revoke_all_tokens()
            case AcceptedUpdate():
                self._update(record, body)

    def _apply_to_worker(self, record: Joined | Left | Quarantined | Leased) -> None:
        match record:
            case Joined():
                self._join(record)
            case Left(worker):
                self._scheduler.leave(worker)
                self._admission.revoke_tokens(worker)
                self._store.forget_nonce(worker)
            case Quarantined(worker):
                self._scheduler.workers[worker].is_quarantined = True
                self._scheduler.end_lease(worker)
            case Leased(worker):
                # Journals had no steps before rounds mode.
                steps = record.steps or self._scheduler.plan.steps
                now_s, key = time.monotonic(), record.update_key
                self._scheduler.restore_lease(worker, key, steps, now_s)

    def _join(self, record: Joined) -> None:
        worker = record.worker
        if worker not in self._scheduler.workers:
            now_s = time.monotonic()
            names = {"name": record.name, "device": record.device}
            scheduler_state.restore_worker(self._scheduler, worker, names, now_s)
        self._admission.add_token(record.token, worker)
        self._store.remember_nonce(record.nonce, worker)

    def _update(self, record: AcceptedUpdate, body: bytes) -> None:
        update, _ = check_update(self._store.weights.manifest, body, record.codec)
        weight = record.samples * record.weight
        self._store.weights.add(record.worker, update, weight)
        self._scheduler.accept(
            record.worker, record.update_key, samples=record.samples, loss=record.loss
        )
        self.num_updates += 1
