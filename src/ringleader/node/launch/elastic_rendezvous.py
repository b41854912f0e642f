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

from ringleader.errors import DeadlineExceeded, RingleaderError
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.failure_policy import FailurePolicy
from ringleader.node.launch.failure_report import first_failure
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.rendezvous import (
    LOOPBACK,
    join_round,
    leave_job,
)
from ringleader.node.launch.round_store import RoundStore
from ringleader.node.protocol.local_requests import EnterJob

log = logging.getLogger(__name__)

DEFAULT_WAIT_S = 10.0
DEFAULT_TIMEOUT_S = 900.0


class AgentRendezvous(RendezvousHandler):
    """Rounds of one job in the form that torch's elastic agent expects."""

    def __init__(
        self,
        agent: AgentProcess,
        request: EnterJob,
        *,
        encrypts: bool = True,
        backend: str = "mdns",
    ) -> None:
        self._agent = agent
        self._request = request
        self._encrypts = encrypts
        self._backend = backend
        self._closed = False
        self.on_progress: Callable[[str], None] = log.warning
        self.policy = FailurePolicy(
            agent, request.job, lambda text: self.on_progress(text)
        )
        self.has_finished = False
        """Whether the workers of this machine have succeeded."""

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
        try:
            rendezvous = join_round(self._agent, self._request, self.on_progress)
        except DeadlineExceeded as exc:
            raise RendezvousTimeoutError(str(exc)) from exc
        except RingleaderError as exc:
            raise RendezvousConnectionError(str(exc)) from exc
        rendezvous.export(encrypts=self._encrypts)
        entered = rendezvous.entered
        self.policy.begin(entered)
        self.on_progress(f"round of {entered.size}: {', '.join(entered.names)}")
        where = RendezvousStoreInfo(LOOPBACK, rendezvous.port)
        store = RoundStore(rendezvous.store, self.policy.check)
        return RendezvousInfo(store, entered.rank, entered.size, where)

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
