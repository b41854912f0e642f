"""``run_config``: the run that this process belongs to, by its environment."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, RingleaderError
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.identity.user_credentials import UserCredentials
from ringleader.membership.config import MembershipConfig
from ringleader.membership.member import Member
from ringleader.node.launch.agent_peers import AgentPeers
from ringleader.node.protocol.agent_client import connect_to_agent
from ringleader.node.protocol.local_requests import EndRun
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.settings.run import RunSettings, run_settings
from ringleader.settings.tls_files import tls_files
from ringleader.training.control.run_config import RunConfig

_log = logging.getLogger(__name__)
TELL_S: Final = 10.0


class KnownPeers:
    """The size of a run whose members are named in advance, without an agent."""

    def __init__(self, size: int, *, is_joiner: bool) -> None:
        self._peers = RunPeers(expected=size, is_joiner=is_joiner)

    async def follow(self, me: Member, port: int) -> AsyncIterator[RunPeers]:
        """Yield once; nothing changes after that."""
        yield self._peers
        await asyncio.Event().wait()


def run_config(*, can_return: bool = True) -> RunConfig | None:
    """Return the settings of this member; None if this process is in no run.

    ``can_return`` is False if a new life of this process could not join the run.
    """
    run = run_settings()
    if run is None:
        return None
    return RunConfig(
        run=run.job,
        credentials=_credentials(run),
        peers=run.peers,
        is_joiner=run.is_joiner,
        port=run.port or settings.tensor_ports(),
        timing=MembershipConfig.for_training(run.silence_s),
        partition=run.partition,
        source=_source(run, can_return=can_return),
        name=settings.node_name() or socket.gethostname(),
    )


def _source(run: RunSettings, *, can_return: bool) -> AgentPeers | KnownPeers:
    if run.agent:
        return AgentPeers(run.job, run.agent, can_return=can_return)
    return KnownPeers(run.size, is_joiner=run.is_joiner)


def tell_end(history: str) -> None:
    """Tell the agent of this machine which history of the run was finished here."""
    run = run_settings()
    if run is None or not run.agent:
        return
    client = connect_to_agent(Path(run.agent), Deadline.after(TELL_S))
    if client is None:
        return  # it has ended, and with it whoever would be told
    try:
        with client:
            client.ask(EndRun(run.job, history), Deadline.after(TELL_S))
    except RingleaderError as exc:
        _log.info("the agent was not told of the end: %s", exc)


def _credentials(run: RunSettings) -> NodeCredentials:
    """Load the credentials; control links are encrypted even with --plaintext."""
    files = tls_files()
    if files is not None:
        return UserCredentials.load(files)
    if not run.credentials:
        text = "RINGLEADER_CREDENTIALS is not set; start the program with"
        raise ConfigError(f"job {run.job}: {text} ringleader run --survive")
    return Credentials.from_file(Path(run.credentials))
