"""``RunSettings``: what ``ringleader run --survive`` tells a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ringleader.settings import is_on


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A run whose workers outlive lost machines."""

    job: str
    agent: str
    """Path of the agent's Unix socket."""
    is_joiner: bool
    """The run had begun before this worker started."""

    def environment(self) -> dict[str, str]:
        """Return the variables that ``run_settings`` reads."""
        return {
            "RINGLEADER_SURVIVE": "1",
            "RINGLEADER_JOB": self.job,
            "RINGLEADER_AGENT": self.agent,
            "RINGLEADER_JOINER": str(int(self.is_joiner)),
        }


def run_settings(env: Mapping[str, str] | None = None) -> RunSettings | None:
    """Return the run that this worker belongs to; None without ``--survive``."""
    env = os.environ if env is None else env
    if not is_on(env, "RINGLEADER_SURVIVE"):
        return None
    return RunSettings(
        job=env.get("RINGLEADER_JOB", ""),
        agent=env.get("RINGLEADER_AGENT", ""),
        is_joiner=is_on(env, "RINGLEADER_JOINER"),
    )
