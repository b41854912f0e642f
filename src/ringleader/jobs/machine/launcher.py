"""Command and environment of a job's launcher, ``ringleader run --here``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ringleader import settings
from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.protocol.job_record import JobRecord
from ringleader.node.launch.end_with_parent import end_with_parent
from ringleader.node.launch.warm_run import warm_command
from ringleader.settings.job import JobSettings

START_S = 300.0
"""How long the machines of a job wait for each other: all are up already, but a busy
one may need minutes to import torch. One that is lost meanwhile costs this once."""


def launcher_command(record: JobRecord) -> list[str]:
    """Return the command that runs the program of a job on this machine.

    All machines begin together, and the job goes on if one is lost later.
    """
    spec = record.spec
    python = record.python or sys.executable
    words = [
        *("run", "--here"),
        *("--job", spec.id, "--min-nodes", "1"),
        *("--max-nodes", str(len(spec.machines)), "--wait", f"{START_S:g}"),
        *("--rank0", spec.machines[0].node),
        *("--nproc-per-node", str(record.processes)),
        *spec.options,
        *(["-m"] if spec.is_module else []),
        *("--", spec.script, *spec.args),
    ]
    is_ours = python == sys.executable
    warm = warm_command(settings.home_directory(), words) if is_ours else None
    # -P: it works in the job's folder, where a cuda.py must not replace torch's.
    cold = [python, "-P", "-m", "ringleader.cli.main", *words]
    return end_with_parent(warm or cold)


def launcher_environment(
    folder: JobFolder,
    record: JobRecord,
    unwanted: Sequence[str] = ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
) -> dict[str, str]:
    """Return the environment of the launcher: this process's, and the job's."""
    mine = {n: v for n, v in settings.environment().items() if n not in unwanted}
    job = JobSettings(
        output=str(folder.socket),
        outcome=str(folder.outcome),
        imports=os.pathsep.join(record.import_folders),
        needs_permission=bool(record.owner),
    )
    return {**mine, **job.environment()}
