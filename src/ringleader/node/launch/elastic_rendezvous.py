"""``torchrun --rdzv-backend=mdns``: torch's elastic agent, led by ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

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
from ringleader.node.launch.job_fingerprint import facts
from ringleader.node.launch.rendezvous import HERE, check, leave, meet
from ringleader.node.protocol.agent_client import Agent, AgentConfig
from ringleader.node.protocol.local_requests import Enter

log = logging.getLogger(__name__)

DEFAULT_WAIT_S = 10.0
DEFAULT_TIMEOUT_S = 900.0


class MdnsRendezvous(RendezvousHandler):
    """Rounds of one job, as torch's elastic agent wants them."""

    def __init__(
        self,
        agent: Agent,
        request: Enter,
        *,
        name: str = "mdns",
        encrypts: bool = True,
    ) -> None:
        self._name = name
        self._agent = agent
        self._request = request
        self._encrypts = encrypts
        self._closed = False
        self.on_progress: Callable[[str], None] = log.warning

    def get_backend(self) -> str:
        """The name it is registered by."""
        return self._name

    @property
    def use_agent_store(self) -> bool:
        """Workers meet in the store of the round."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round."""
        if self._closed:
            raise RendezvousClosedError(f"job {self._request.job} is over")
        try:
            meeting = meet(self._agent, self._request, self.on_progress)
        except DeadlineExceeded as exc:
            raise RendezvousTimeoutError(str(exc)) from exc
        except RingleaderError as exc:
            raise RendezvousConnectionError(str(exc)) from exc
        settings.export(meeting.environment(encrypts=self._encrypts))
        entered = meeting.entered
        self.on_progress(f"round of {entered.size}: {', '.join(entered.names)}")
        where = RendezvousStoreInfo(HERE, meeting.port)
        return RendezvousInfo(meeting.store, entered.rank, entered.size, where)

    def num_nodes_waiting(self) -> int:
        """More than 0 when the workers must restart in another round."""
        try:
            checked = check(self._agent, self._request.job)
        except RingleaderError:
            return 0  # the workers decide: without an agent they may still finish
        if checked.is_stale:
            self.on_progress(f"forming the group anew: {checked.reason}")
        return int(checked.is_stale)

    def is_closed(self) -> bool:
        """Whether this machine is done with the job."""
        return self._closed

    def set_closed(self) -> None:
        """This machine is done with the job."""
        self._closed = True

    def get_run_id(self) -> str:
        """The name of the job."""
        return self._request.job

    def shutdown(self) -> bool:
        """Leave the job and the cluster; the others are told how it went.

        torch calls this on its way out, with the failure of the job, if any, in hand.
        """
        self._closed = True
        try:
            leave(self._agent, self._request.job, ok=sys.exception() is None)
        except RingleaderError as exc:
            log.info("leaving: %s", exc)
        self._agent.close()
        return True


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """What torchrun calls; ``--rdzv-conf`` may hold wait, timeout and profile."""
    config = AgentConfig(
        home=str(settings.home_directory()),
        peers=f"{settings.peers()},{params.endpoint}",
        interfaces=settings.interfaces(),
        name=settings.node_name(),
        profile=str(params.get("profile", "lan")),
    )
    request = Enter(
        job=params.run_id if params.run_id != "none" else "torchrun",
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        wait_s=float(params.get("wait", DEFAULT_WAIT_S)),
        timeout_s=float(params.get("timeout", DEFAULT_TIMEOUT_S)),
        facts=facts(""),
    )
    return MdnsRendezvous(Agent(config), request)


def plugin() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point ``torchrun.handlers``."""
    return create_handler
