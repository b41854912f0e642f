"""``Jobs``: the jobs that processes of this node take part in."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, GroupAborted
from ringleader.ids import NodeId
from ringleader.node.agent import rank_assignment, round_entry, run_admission
from ringleader.node.agent.job import Job, JobHistory, OnProgress
from ringleader.node.agent.job_reports import JobReports
from ringleader.node.agent.rank_assignment import Refused, Round, Waiting
from ringleader.node.agent.round_entry import WorkerConfig
from ringleader.node.agent.round_outcome import round_status
from ringleader.node.agent.round_stores import RoundStores
from ringleader.node.agent.store_tunnel import StoreTunnel
from ringleader.node.agent.view_state import ViewState
from ringleader.node.agent.waiting_report import ADVICE, report_waiting
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol.local_requests import EnterJob, RoundEntered, RoundStatus
from ringleader.node.protocol.node_state import JobEnded, JobRequest

MAX_HISTORIES = 16
ANNOUNCE_END_S = 2.0
"""How long a leaving node waits until the others know how its job ended."""


@dataclass(slots=True)
class Jobs:
    """All jobs of this node. Lives on the event loop of the agent."""

    mine: NodeId
    publish: Callable[[], None]
    """Publishes the changed node state in a new view."""
    set_payload: Callable[[], None]
    """Sets the changed node state as payload of the next view; asks for none."""
    dial_store: Callable[[NodeId, str], Awaitable[PeerConnection]]
    worker: WorkerConfig
    troubles: Callable[[], list[str]]
    """Returns the problems that the agent knows of, for a user who waits."""
    started_s: float = field(default_factory=time.monotonic)
    """When the process started that asks for jobs."""
    view_state: ViewState | None = None
    ready_jobs: set[str] = field(default_factory=set)
    """Jobs that start without waiting for more machines; set by the leader."""
    reports: JobReports = field(init=False)
    stores: RoundStores = field(default_factory=RoundStores)
    owned: set[str] = field(default_factory=set)
    """Jobs of the clients of a resident agent; see ``job_client``."""
    num_rounds: int = 0
    """Rounds that began with this node in them."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _histories: dict[str, JobHistory] = field(default_factory=dict)
    _ready_since: dict[str, float] = field(default_factory=dict)
    view_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next view, which replaces it."""
    _names: dict[NodeId, str] = field(default_factory=dict)
    """Names of all nodes that were in a view."""

    def __post_init__(self) -> None:
        self.reports = JobReports(self.publish)

    def job_requests(self) -> list[JobRequest]:
        """Return the requests for our node state."""
        return [job.request for job in self._jobs.values()]

    def get(self, name: str) -> Job | None:
        """Return a job that this node takes part in."""
        return self._jobs.get(name)

    async def enter(self, request: EnterJob, on_progress: OnProgress) -> RoundEntered:
        """Wait until a round of the job begins with this node in it.

        Raises ``DeadlineExceeded`` after ``request.timeout_s`` and ``ConfigError`` if
        this node may not take part.
        """
        before, history = self.drop(request.job), self._recall(request.job)
        job_request = JobRequest(
            job=request.job,
            request_id=secrets.token_hex(8),
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            wait_s=request.wait_s,
            fingerprint=request.fingerprint,
            is_retry=before is not None,
            started_s=history.started_s,
            past_rounds=history.past_rounds,
            rank0=request.rank0,
        )
        loop = asyncio.get_running_loop()
        job = Job(job_request, history, on_progress, loop.create_future())
        if before is not None:
            job.last_round, job.done = before.round or before.last_round, before.done
            if before.tunnel is not None and before.tunnel.trouble:
                on_progress(f"rank 0 was not reached: {before.tunnel.trouble}")
        self._jobs[request.job] = job
        self.reports.forget_failed_ends(request.job)
        self.publish()
        deadline = Deadline.after(request.timeout_s)
        reporting = asyncio.create_task(
            report_waiting(job, deadline, self._situation), name="report waiting"
        )
        try:
            async with asyncio.timeout(request.timeout_s):
                chosen = await job.outcome
        except TimeoutError as exc:
            self.drop(request.job)
            text = f"no round began within {request.timeout_s:g} s"
            last = f" ({job.last_progress})" if job.last_progress else ""
            text = f"{text}{last}; {ADVICE}"
            raise DeadlineExceeded(f"job {request.job}", text) from exc
        except BaseException:
            self.drop(request.job)
            raise
        finally:
            reporting.cancel()
        return await self._begin(job, chosen)

    def _situation(self) -> tuple[ViewState | None, dict[NodeId, str], list[str]]:
        return self.view_state, self._names, self.troubles()

    def _recall(self, name: str) -> JobHistory:
        """Return the history of a job; the first job began when the process did."""
        history = self._histories.pop(name, None)
        if history is None:
            is_first = not self._histories
            history = JobHistory(self.started_s if is_first else time.monotonic())
        self._histories[name] = history  # at the end: the most recent
        if len(self._histories) > MAX_HISTORIES:
            del self._histories[next(iter(self._histories))]
        return history

    def remember_start(self, name: str, started_s: float) -> None:
        """Let the history of a job begin at ``started_s``: a new process runs it."""
        self._histories[name] = JobHistory(started_s)

    def abandon(self, name: str) -> None:
        """Drop a job whose process has closed its connection."""
        self.owned.discard(name)
        self.drop(name)
        self._histories.pop(name, None)

    def job_of_round(self, round_id: str) -> str:
        """Return the name of our job that trains in a round, or ''."""
        rounds = ((name, job.round) for name, job in self._jobs.items())
        return next((name for name, r in rounds if r and r.id == round_id), "")

    async def _begin(self, job: Job, chosen: Round) -> RoundEntered:
        self.num_rounds += 1
        view = job.first_view  # the current one may lack a node of the round already
        assert view is not None
        for text in round_entry.warnings(job.request.job, chosen, view):
            job.on_progress(text)
        port, first = 0, chosen.nodes[0]
        if first != self.mine:
            job.tunnel = StoreTunnel(lambda: self.dial_store(first, chosen.id))
            port = await job.tunnel.listen()
        return round_entry.enter(chosen, view, self.mine, self.worker, port)

    def drop(self, name: str) -> Job | None:
        """Withdraw the request for a job and release what its round holds."""
        job = self._jobs.pop(name, None)
        if job is None:
            return None
        job.outcome.cancel()
        if job.tunnel is not None:
            job.tunnel.close()
        if job.round is not None:
            self.stores.close(job.round.id)
        self.reports.forget_workers(name)
        self.publish()
        return job

    async def leave(self, name: str, *, ok: bool | None) -> None:
        """Drop a job and wait until the other nodes know how it ended.

        ``ok`` None: the others need not know.
        """
        job = self.drop(name)
        current = (job.round or job.last_round) if job else None
        if job is None or current is None or ok is None:
            return
        end = JobEnded(name, current.id, ok, job.lineage)
        self.reports.add_end(end)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCE_END_S):
                while not self._is_announced(end):
                    await self.view_changed.wait()

    def finish(self, name: str, *, ok: bool = True) -> None:
        """Tell the other nodes that our workers have ended; stay in the round."""
        job = self._jobs.get(name)
        if job is not None and job.round is not None:
            self.reports.add_end(JobEnded(name, job.round.id, ok, job.lineage))

    def end_run(self, name: str, history: str) -> None:
        """Note which history of a run our worker has finished."""
        job = self._jobs.get(name)
        if job is not None:
            job.lineage = history

    def _is_announced(self, end: JobEnded) -> bool:
        if self.view_state is None:
            return True
        return end in self.view_state.states[self.mine].ended_jobs

    def open_store(self, round_id: str, port: int) -> None:
        """Let the nodes of a round reach its store, which is open here at ``port``."""
        for job in self._jobs.values():
            if job.round is not None and job.round.id == round_id:
                self.stores.open(round_id, port, job.round.nodes)

    def note_complete(self, round_id: str) -> None:
        """Remember that all nodes of a round have entered it."""
        for job in self._jobs.values():
            if job.round is not None and job.round.id == round_id:
                job.note_complete()
                # Machines that wait join a round that is complete.
                (self.publish if job.request.survives else self.set_payload)()

    def close(self) -> None:
        """Drop all jobs."""
        for name in list(self._jobs):
            self.drop(name)

    # -- views -------------------------------------------------------------------------

    def on_view_state(self, view_state: ViewState) -> None:
        """Decide about our requests by a view that was installed."""
        self.view_state = view_state
        self._names |= view_state.names()
        self.ready_jobs &= view_state.jobs()
        self.view_changed.set()
        self.view_changed = asyncio.Event()
        self.stores.close_for_absent(view_state.states)
        for name, job in list(self._jobs.items()):
            job.note_joined(view_state)
            job.note_ends(view_state)
            if job.round and job.tunnel and job.round.nodes[0] not in view_state.states:
                job.tunnel.close()  # else workers would wait for the store for ever
            published = view_state.states[self.mine].request_for(name)
            is_published = (
                published is not None and published.request_id == job.request.request_id
            )
            if is_published and job.round is None and not job.outcome.done():
                self._decide(name, job, view_state)

    def _decide(self, name: str, job: Job, view_state: ViewState) -> None:
        if job.is_left_alone(self.mine):
            text = f"job {name}: the other machines have finished it, this one has not"
            job.outcome.set_exception(GroupAborted(text))
            return
        match run_admission.admit(name, view_state, self.mine):
            case Round() as chosen if self.mine in chosen.nodes:
                job.begin(chosen, view_state, self.mine)
                job.outcome.set_result(chosen)
                self.set_payload()  # at once: the next view must not show us waiting
            case Round() as chosen:
                text = f"{len(chosen.nodes)} other machines train; no room for more"
                self._report(job, text)
            case Refused(reason=reason):
                job.outcome.set_exception(ConfigError(f"job {name}: {reason}"))
            case Waiting() as waiting:
                self._report(job, waiting.describe(view_state))

    def _report(self, job: Job, text: str) -> None:
        if text != job.last_progress:
            job.last_progress = text
            job.on_progress(text)

    def check(self, name: str) -> RoundStatus:
        """Return whether our round of a job must be left, and why."""
        job, view_state = self._jobs.get(name), self.view_state
        if job is None or view_state is None:
            return RoundStatus(True, "this machine is in no round")
        return round_status(name, job, view_state, self.mine, self._names)

    def on_tick(self, now_s: float) -> None:
        """Let jobs start that have waited long enough; only the leader decides that."""
        view_state = self.view_state
        if view_state is None or view_state.by_seniority[0] != self.mine:
            return
        for job in view_state.jobs():
            patience_s = rank_assignment.patience_s(job, view_state)
            if patience_s is None:
                self._ready_since.pop(job, None)
                self.ready_jobs.discard(job)
            elif job in self.ready_jobs:
                continue
            elif now_s - self._ready_since.setdefault(job, now_s) >= patience_s:
                self.ready_jobs.add(job)
                self.publish()
