"""The agent of this process: started when first needed, ended with the process."""

from __future__ import annotations

import atexit
import contextlib
import logging

from ringleader import settings
from ringleader.errors import ConfigError, RingleaderError
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.launch.rendezvous import Rendezvous, join_round, leave_job
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob

log = logging.getLogger("ringleader")

_agents: list[AgentProcess] = []
"""Holds at most one agent."""
_environment_before: dict[str, str | None] = {}
"""The values that variables had before rounds set them; None: not set."""


@atexit.register
def close_own_agent() -> None:
    """Leave the cluster: end the agent of this process, if there is one.

    The environment is again what it was before the first round.
    """
    while _agents:
        _agents.pop().close()
    settings.restore(_environment_before)
    _environment_before.clear()


def own_agent() -> AgentProcess | None:
    """Return the agent of this process, if one was started."""
    return _agents[0] if _agents else None


def _start_agent(config: AgentConfig) -> AgentProcess:
    """Return the agent of this process; start it if there is none."""
    if not _agents:
        _agents.append(AgentProcess.start(config))
    used = _agents[0].config.coordinator
    if config.coordinator not in ("", used):
        how = f"through coordinator {used}" if used else "without a coordinator"
        text = f"this process has joined {how}, and stays with that"
        raise ConfigError(f"{text}; it cannot use coordinator {config.coordinator}")
    return _agents[0]


def join_round_here(request: EnterJob, config: AgentConfig) -> Rendezvous:
    """Join a round with this process as the only worker of its node.

    While it waits, it logs why, as warnings: without a logging configuration they
    appear on standard error. Sets the environment variables that the workers of a round
    read, until ``close_own_agent``.
    """
    rendezvous = join_round(_start_agent(config), request, log.warning)
    for name, value in rendezvous.export().items():
        _environment_before.setdefault(name, value)
    return rendezvous


def leave_job_here(job: str) -> None:
    """Leave ``job``; does nothing if the agent is gone."""
    with contextlib.suppress(RingleaderError):
        leave_job(_agents[0], job)
