"""``RunSettings``: what ``ringleader run --survive`` tells a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ringleader.settings import is_on
from ringleader.settings.numbers import number

Partition = Literal["continue", "majority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A run whose workers outlive lost machines."""

    job: str
    agent: str = ""
    """Path of the agent's Unix socket; empty: the members are named in advance."""
    is_joiner: bool
    """The run had begun before this worker started."""
    credentials: str = ""
    """Path of the credentials that prove which node this is."""
    peers: str = ""
    """Without an agent: host:port of other members, separated by commas."""
    port: int = 0
    """Without an agent: the port on which the others expect this member."""
    size: int = 1
    """Without an agent: number of members that begin the run together."""
    silence_s: float = 0.0
    """How long the members wait for a silent one, by ``--profile``; less than the
    usual time of a run changes nothing."""
    partition: Partition = "continue"
    """Which part of a divided cluster goes on with a script of torch."""

    def environment(self) -> dict[str, str]:
        """Return the variables that ``run_settings`` reads."""
        found = {
            "RINGLEADER_SURVIVE": "1",
            "RINGLEADER_JOB": self.job,
            "RINGLEADER_AGENT": self.agent,
            "RINGLEADER_JOINER": str(int(self.is_joiner)),
            "RINGLEADER_RUN_SILENCE_MS": str(round(self.silence_s * 1000)),
            "RINGLEADER_RUN_PARTITION": self.partition,
        }
        if not self.agent:
            found["RINGLEADER_RUN_PEERS"] = self.peers
            found["RINGLEADER_RUN_PORT"] = str(self.port)
            found["RINGLEADER_RUN_SIZE"] = str(self.size)
        if self.credentials:
            found["RINGLEADER_CREDENTIALS"] = self.credentials
        return found


def _partition(env: Mapping[str, str]) -> Partition:
    is_majority = env.get("RINGLEADER_RUN_PARTITION") == "majority"
    return "majority" if is_majority else "continue"


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    return number(env, name) if env.get(name) else default


def run_settings(env: Mapping[str, str] | None = None) -> RunSettings | None:
    """Return the run that this worker belongs to; None without ``--survive``."""
    env = os.environ if env is None else env
    if not is_on(env, "RINGLEADER_SURVIVE"):
        return None
    return RunSettings(
        job=env.get("RINGLEADER_JOB", ""),
        agent=env.get("RINGLEADER_AGENT", ""),
        is_joiner=is_on(env, "RINGLEADER_JOINER"),
        credentials=env.get("RINGLEADER_CREDENTIALS", ""),
        peers=env.get("RINGLEADER_RUN_PEERS", ""),
        port=_number(env, "RINGLEADER_RUN_PORT", 0),
        size=_number(env, "RINGLEADER_RUN_SIZE", 1),
        silence_s=_number(env, "RINGLEADER_RUN_SILENCE_MS", 0) / 1000,
        partition=_partition(env),
    )
