"""Registry is the state of a coordinator: events in, replies and actions out.

Rules. The ranks of a namespace are dense: a new worker gets the smallest free one, and
one that comes back gets the one it had, if that is free. A worker is identified by
its id; its incarnation tells a repeated call from a restart. A restarted worker
replaces its former process at once, and nothing that the former process still sends
counts. A heartbeat renews the lease, and a worker whose lease is over is evicted at the
next tick. A worker that is not registered is told to register again, so that eviction
and loss of the state repair themselves.

The state is mutable, for speed. There is no clock, no randomness, no I/O and no thread;
one caller at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from ringleader.coordinator.registry.checkpoints import end_checkpoint, start_checkpoint
from ringleader.coordinator.registry.events import (
    Action,
    Beat,
    BeatReply,
    EndCheckpoint,
    Event,
    ForgetCheckpoint,
    ForgetNamespace,
    ForgetWorker,
    Register,
    SaveCheckpoint,
    SaveWorker,
    StartCheckpoint,
    Tick,
    Unregister,
)
from ringleader.coordinator.registry.job_state import JobState
from ringleader.coordinator.registry.limits import (
    MAX_ALL_WORKERS,
    MAX_NAMESPACES,
    MAX_WORKERS,
)
from ringleader.coordinator.registry.records import (
    Checkpoint,
    DepartureReason,
    Namespace,
    PeerChanges,
    Refusal,
    RefusalKind,
    Worker,
)

TICKS_PER_TIMEOUT = 8
"""A lease that is over is noticed within this part of the time-out."""

GRACE_TIMEOUTS = 2.0
"""After a start, workers get this many time-outs to find the coordinator again."""

Reply = int | BeatReply | Checkpoint | Refusal | None


class Registry:
    """All namespaces. Call ``step`` for every event, and with ``Tick`` regularly."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self.tick_s = heartbeat_timeout_s / TICKS_PER_TIMEOUT
        self.jobs: dict[Namespace, JobState] = {}
        self._num_workers = 0
        self._version = 0
        self._ticked_at_s: float | None = None
        self._out: list[Action] = []
        self._on_event: dict[type, Callable[[Any, float], Reply]] = {
            Register: self._on_register,
            Unregister: self._on_unregister,
            Beat: self._on_beat,
            StartCheckpoint: self._on_start_checkpoint,
            EndCheckpoint: self._on_end_checkpoint,
            Tick: self._on_tick,
        }

    def step(self, event: Event, now_s: float) -> tuple[Reply, list[Action]]:
        """Process one event at ``now_s`` of a monotonic clock."""
        reply = self._on_event[type(event)](event, now_s)
        out = self._out[:]
        self._out.clear()
        return reply, out

    @classmethod
    def restored(
        cls, heartbeat_timeout_s: float, saved: Iterable[Action], now_s: float
    ) -> Self:
        """Return a registry with what an earlier process stored.

        Raises ValueError if that contradicts itself.
        """
        made = cls(heartbeat_timeout_s)
        made._restore(saved, now_s)
        made._out.clear()
        return made

    def everything(self) -> Iterator[Action]:
        """Yield the actions that store the whole state."""
        for namespace, job in self.jobs.items():
            for former in job.former.values():
                yield SaveWorker(namespace, former, False)
            for lease in job.leases.values():
                yield SaveWorker(namespace, lease.worker, True)
            for checkpoint in job.checkpoints.values():
                yield SaveCheckpoint(namespace, checkpoint)

    def _restore(self, actions: Iterable[Action], now_s: float) -> None:
        expires_at_s = now_s + self.heartbeat_timeout_s * GRACE_TIMEOUTS
        for action in actions:
            job = self._job(action.namespace, now_s)
            if isinstance(job, Refusal):
                raise ValueError(job.text)
            if isinstance(action, SaveCheckpoint):
                job.checkpoints[action.checkpoint.step] = action.checkpoint
            elif isinstance(action, SaveWorker):
                self._restore_worker(job, action, expires_at_s)

    def _restore_worker(
        self, job: JobState, saved: SaveWorker, expires_at_s: float
    ) -> None:
        worker = saved.worker
        if not saved.is_registered:
            job.former[worker.worker_id] = worker
            return
        if worker.rank in job.by_rank:
            raise ValueError(f"two workers have rank {worker.rank}")
        job.enter(worker, self._next_version(), expires_at_s)
        self._num_workers += 1

    def changes_since(self, namespace: Namespace, version: int) -> PeerChanges | None:
        """Return what a watcher who knows ``version`` lacks; None if nothing.

        Version -1 is that of a watcher who knows nothing.
        """
        job = self.jobs.get(namespace)
        if job is None:
            return PeerChanges(0, True) if version != 0 else None
        return job.snapshot() if version < 0 else job.changes_since(version)

    def checkpoints(self, namespace: Namespace) -> list[Checkpoint]:
        """Return the checkpoints of a job, the one that began last first."""
        job = self.jobs.get(namespace)
        return [] if job is None else list(reversed(job.checkpoints.values()))

    def is_registered(self, namespace: Namespace, worker_id: str) -> bool:
        """Return whether a worker is registered now."""
        job = self.jobs.get(namespace)
        return job is not None and worker_id in job.leases

    # -- events ------------------------------------------------------------------------

    def _on_register(self, event: Register, now_s: float) -> Reply:
        job = self._job(event.namespace, now_s)
        if isinstance(job, Refusal):
            return job
        expires_at_s = now_s + self.heartbeat_timeout_s
        lease = job.leases.get(event.worker_id)
        if lease is None:
            if full := self._why_full(job):
                return Refusal(RefusalKind.FULL, full)
            rank = job.free_rank(event.worker_id)
            self._num_workers += 1
        else:
            rank = lease.worker.rank
        worker = Worker(rank, event.worker_id, event.incarnation, event.addresses)
        if lease is not None and lease.worker == worker:
            lease.expires_at_s = expires_at_s
            return rank
        job.enter(worker, self._next_version(), expires_at_s)
        self._out.append(SaveWorker(event.namespace, worker, True))
        return rank

    def _why_full(self, job: JobState) -> str:
        if len(job.leases) >= MAX_WORKERS:
            return f"the job has {MAX_WORKERS} workers, and that is the limit"
        if self._num_workers >= MAX_ALL_WORKERS:
            return f"this coordinator has {MAX_ALL_WORKERS} workers; start another one"
        return ""

    def _on_unregister(self, event: Unregister, now_s: float) -> Reply:
        job = self.jobs.get(event.namespace)
        lease = job.leases.get(event.worker_id) if job is not None else None
        if job is None or lease is None:
            return None
        if lease.worker.incarnation != event.incarnation:
            return None  # a former process says goodbye; its successor stays
        reason = DepartureReason.UNREGISTERED
        self._remove(event.namespace, job, event.worker_id, reason, now_s)
        return None

    def _on_beat(self, event: Beat, now_s: float) -> Reply:
        job = self.jobs.get(event.namespace)
        lease = job.leases.get(event.worker_id) if job is not None else None
        if lease is None:
            return BeatReply.REGISTER_AGAIN
        if lease.worker.incarnation != event.incarnation:
            return BeatReply.REPLACED
        lease.expires_at_s = now_s + self.heartbeat_timeout_s
        return BeatReply.OK

    def _on_start_checkpoint(self, event: StartCheckpoint, now_s: float) -> Reply:
        job = self.jobs.get(event.namespace)
        reply, forgotten = start_checkpoint(job, event)
        if forgotten is not None:
            self._out.append(ForgetCheckpoint(event.namespace, forgotten))
        return self._save_checkpoint(event.namespace, reply)

    def _on_end_checkpoint(self, event: EndCheckpoint, now_s: float) -> Reply:
        reply = end_checkpoint(self.jobs.get(event.namespace), event)
        return self._save_checkpoint(event.namespace, reply)

    def _save_checkpoint(
        self, namespace: Namespace, reply: Checkpoint | Refusal
    ) -> Reply:
        if isinstance(reply, Checkpoint):
            self._out.append(SaveCheckpoint(namespace, reply))
        return reply

    def _on_tick(self, _: Tick, now_s: float) -> Reply:
        self._forgive_own_absence(now_s)
        for namespace, job in self.jobs.items():
            over = [i for i, each in job.leases.items() if each.expires_at_s <= now_s]
            for worker_id in over:
                reason = DepartureReason.EVICTED
                self._remove(namespace, job, worker_id, reason, now_s)
        return None

    def _forgive_own_absence(self, now_s: float) -> None:
        """Extend all leases if this process was suspended: heartbeats wait unread."""
        before_s, self._ticked_at_s = self._ticked_at_s, now_s
        late_s = 0.0 if before_s is None else now_s - before_s - self.tick_s
        if late_s <= self.tick_s:
            return
        for job in self.jobs.values():
            for lease in job.leases.values():
                lease.expires_at_s += late_s

    # -- changes -----------------------------------------------------------------------

    def _job(self, namespace: Namespace, now_s: float) -> JobState | Refusal:
        """Return the state of a namespace, new if needed."""
        job = self.jobs.get(namespace)
        if job is not None:
            return job
        if len(self.jobs) >= MAX_NAMESPACES:
            empty = [n for n, each in self.jobs.items() if not each.leases]
            if not empty:
                text = f"this coordinator serves {MAX_NAMESPACES} jobs"
                return Refusal(RefusalKind.FULL, f"{text}; start another one")
            oldest = min(empty, key=lambda name: self.jobs[name].empty_since_s)
            del self.jobs[oldest]
            self._out.append(ForgetNamespace(oldest))
        job = self.jobs[namespace] = JobState(self._next_version())
        job.empty_since_s = now_s
        return job

    def _remove(
        self,
        namespace: Namespace,
        job: JobState,
        worker_id: str,
        reason: DepartureReason,
        now_s: float,
    ) -> None:
        worker, forgotten = job.remove(worker_id, reason, self._next_version())
        self._num_workers -= 1
        self._out.append(SaveWorker(namespace, worker, False))
        if forgotten is not None:
            self._out.append(ForgetWorker(namespace, forgotten))
        if not job.leases:
            job.empty_since_s = now_s

    def _next_version(self) -> int:
        self._version += 1
        return self._version
