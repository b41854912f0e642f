"""``AgentRendezvous``: rendezvous of torch's elastic agent through a ringleader agent.

Used by ``torchrun --rdzv-backend=mdns`` or ``grpc``, and by ``ringleader run``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ringleader import settings
from ringleader.errors import DeadlineExceeded, RingleaderError
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.failure_policy import FailurePolicy, JobFailed
from ringleader.node.launch.failure_report import first_failure
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.rendezvous import (
    LOOPBACK,
    Rendezvous,
    join_round,
    leave_job,
)
from ringleader.node.launch.round_store import RoundStore
from ringleader.node.launch.survival_policy import SurvivalPolicy
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.local_requests import EnterJob
from ringleader.node.protocol.resident_record import read_record
from ringleader.settings import launch
from ringleader.settings.job import job_settings
from ringleader.settings.run import RunSettings

log = logging.getLogger(__name__)

DEFAULT_WAIT_S = 10.0
DEFAULT_TIMEOUT_S = 900.0


class AgentRendezvous(RendezvousHandler):
    """Rounds of one job in the form that torch's elastic agent expects."""

    def __init__(
        self,
        agent: AgentClient,
        request: EnterJob,
        *,
        encrypts: bool = True,
        backend: str = "mdns",
        min_nodes: int = 1,
    ) -> None:
        self._agent = agent
        self._request = request
        self._encrypts = encrypts
        self._backend = backend
        self._closed = False
        self.on_progress: Callable[[str], None] = log.warning
        self._round: Rendezvous | None = None
        """The round that the agent has brought this machine into."""
        self.policy = self._make_policy(min_nodes)
        self.has_finished = False
        """Whether the workers of this machine have succeeded."""

    def _make_policy(self, min_nodes: int) -> FailurePolicy:
        def say(text: str) -> None:
            self.on_progress(text)

        agent, job = self._agent, self._request.job
        if self._request.fingerprint.survives:
            return SurvivalPolicy(agent, job, say, min_nodes)
        return FailurePolicy(agent, job, say)

    def get_backend(self) -> str:
        """Return the name under which the handler is registered."""
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Return True: the workers use the store of the round."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round."""
        if self._closed:
            raise RendezvousClosedError(f"job {self._request.job} is over")
        _check_permission()
        try:
            rendezvous = self._join_round()
        except DeadlineExceeded as exc:
            raise RendezvousTimeoutError(str(exc)) from exc
        except RingleaderError as exc:
            raise RendezvousConnectionError(str(exc)) from exc
        rendezvous.export(encrypts=self._encrypts)
        entered = rendezvous.entered
        if self._request.fingerprint.survives:
            run = RunSettings(
                job=self._request.job,
                agent=entered.agent_socket,
                is_joiner=entered.is_joiner,
                silence_s=entered.silence_s,
                partition=self._request.fingerprint.partition,
            )
            settings.export(run.environment())
        where = RendezvousStoreInfo(LOOPBACK, rendezvous.port)
        store = RoundStore(rendezvous.store, self.policy.check)
        return RendezvousInfo(store, entered.rank, entered.size, where)

    def _join_round(self) -> Rendezvous:
        """Enter the next round, or start as a newcomer in the one that goes on."""
        if self.policy.keeps_round and self._round is not None:
            self.policy.begin(self._round.entered)
            return self._round.as_newcomer()
        self._round = join_round(self._agent, self._request, self.on_progress)
        entered = self._round.entered
        self.policy.begin(entered)
        if entered.is_joiner:
            self.on_progress("joining the run, which has begun")
        else:
            self.on_progress(f"round of {entered.size}: {', '.join(entered.names)}")
        return self._round

    def copies_notice(self, workers_here: int) -> str:
        """Return what to tell at the end if no worker was in a group, else ''."""
        machines = self._round.entered.size if self._round else 1
        if machines * workers_here == 1 or launch.has_group():
            return ""
        return (
            "no worker formed a process group with another: to train one model "
            "together, call torch.distributed.init_process_group() and wrap the model "
            "in DistributedDataParallel, or use ringleader.elastic"
        )

    def num_nodes_waiting(self) -> int:
        """Return 1 if the workers must restart in another round, else 0.

        Raises ``JobFailed`` if a failure on another machine has ended the job.
        """
        try:
            status = self.policy.check()
        except RingleaderError:
            return 0  # without an agent the workers may still finish
        if status.is_stale:
            self.on_progress(f"forming the group anew: {status.reason}")
        return int(status.is_stale)

    def is_closed(self) -> bool:
        """Return whether this machine is done with the job."""
        return self._closed

    def set_closed(self) -> None:
        """Record that this machine is done with the job."""
        self._closed = True

    def get_run_id(self) -> str:
        """Return the name of the job."""
        return self._request.job

    def shutdown(self) -> bool:
        """Leave the job and the cluster and tell the others how the job ended.

        torch calls this while it handles the failure of the job, if there was one.
        """
        self._closed = True
        error = sys.exception()
        try:
            if isinstance(error, ChildFailedError):  # of torchrun
                job, round_id = self._request.job, self.policy.round
                failure = first_failure(error.failures, job, round_id)
                self.policy.report(failure, is_final=True)
            ok = error is None or self.has_finished
            leave_job(self._agent, self._request.job, ok=ok)
        except RingleaderError as exc:
            log.info("leaving: %s", exc)
        self._agent.close()
        if error is None and self.policy.failed is not None:
            raise self.policy.failed  # torchrun has ignored it at its exit barrier
        return True


def _check_permission() -> None:
    """Raise ``JobFailed`` if the job of another machine may start nothing here now.

    Asked before each start of workers: the first one, a restart, a replacement.
    """
    if not job_settings().needs_permission:
        return
    record = read_record(settings.home_directory())
    if record is None or not record.config.accepts_jobs:
        text = "this machine takes no jobs of other machines any more"
        raise JobFailed(f"{text}; no worker starts here again", is_consequence=True)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Start an agent for torchrun.

    The endpoint is a peer that all can reach, or with ``grpc`` the coordinator.
    ``--rdzv-conf`` may set wait, timeout, profile and rank0.
    """
    through_coordinator = params.backend == "grpc"
    config = agent_config(
        coordinator=params.endpoint if through_coordinator else "",
        peers="" if through_coordinator else params.endpoint,
        profile=str(params.get("profile", "lan")),
    )
    request = EnterJob(
        job=params.run_id if params.run_id != "none" else "torchrun",
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        wait_s=float(params.get("wait", DEFAULT_WAIT_S)),
        timeout_s=float(params.get("timeout", DEFAULT_TIMEOUT_S)),
        fingerprint=job_fingerprint(None),
        rank0=str(params.get("rank0", "")),
    )
    agent = AgentProcess.start(config)
    return AgentRendezvous(agent, request, backend=params.backend)
