"""``run_config``: the run that this process belongs to, by its environment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.identity.user_credentials import UserCredentials
from ringleader.membership.config import MembershipConfig
from ringleader.membership.member import Member
from ringleader.node.launch.agent_peers import AgentPeers
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.settings.run import RunSettings, run_settings
from ringleader.settings.tls_files import tls_files
from ringleader.training.control.run_config import RunConfig


class KnownPeers:
    """The size of a run whose members are named in advance, without an agent."""

    def __init__(self, size: int, *, is_joiner: bool) -> None:
        self._peers = RunPeers(expected=size, is_joiner=is_joiner)

    async def follow(self, me: Member, port: int) -> AsyncIterator[RunPeers]:
        """Yield once; nothing changes after that."""
        yield self._peers
        await asyncio.Event().wait()


def run_config() -> RunConfig | None:
    """Return the settings of this member; None if this process is in no run."""
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
        source=_source(run),
        name=settings.node_name() or socket.gethostname(),
    )


def _source(run: RunSettings) -> AgentPeers | KnownPeers:
    if run.agent:
        return AgentPeers(run.job, run.agent)
    return KnownPeers(run.size, is_joiner=run.is_joiner)


def _credentials(run: RunSettings) -> NodeCredentials:
    """Load the credentials; control links are encrypted even with --plaintext."""
    files = tls_files()
    if files is not None:
        return UserCredentials.load(files)
    if not run.credentials:
        text = "RINGLEADER_CREDENTIALS is not set; start the program with"
        raise ConfigError(f"job {run.job}: {text} ringleader run --survive")
    return Credentials.from_file(Path(run.credentials))
