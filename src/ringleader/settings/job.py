"""``JobSettings``: what a job's supervisor tells the launcher that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Where the launcher of a job sends what it and its workers say."""

    output: str = ""
    """Path of the socket at which workers get their output; empty: the launcher's."""
    outcome: str = ""
    """File for the reason why the job failed; empty: it is printed only."""
    needs_permission: bool = False
    """Whether another machine has started it: no worker starts here any more once this
    machine refuses such jobs."""
    imports: str = ""
    """Folders of the project from which the workers import, as PYTHONPATH lists them;
    not those of the launcher, which runs nothing of the project."""

    def environment(self) -> dict[str, str]:
        """Return the variables that ``job_settings`` reads."""
        return {
            "RINGLEADER_JOB_OUTPUT": self.output,
            "RINGLEADER_JOB_OUTCOME": self.outcome,
            "RINGLEADER_JOB_IMPORTS": self.imports,
            "RINGLEADER_JOB_OF_OTHERS": "1" if self.needs_permission else "",
        }


def job_settings(env: Mapping[str, str] | None = None) -> JobSettings:
    """Return the settings of the job that this launcher belongs to, if it does."""
    env = os.environ if env is None else env
    return JobSettings(
        output=env.get("RINGLEADER_JOB_OUTPUT", ""),
        outcome=env.get("RINGLEADER_JOB_OUTCOME", ""),
        imports=env.get("RINGLEADER_JOB_IMPORTS", ""),
        needs_permission=bool(env.get("RINGLEADER_JOB_OF_OTHERS", "")),
    )
