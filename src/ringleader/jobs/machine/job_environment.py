"""``job_environment``: the Python environment in which a job runs on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ringleader.data.file_names import check_name
from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import ConfigError
from ringleader.jobs.machine.job_folder import interpreters_in_use
from ringleader.jobs.protocol.job_spec import JobSpec
from ringleader.jobs.protocol.messages import ENVIRONMENT_S
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import (
    EnvironmentFacts,
    EnvironmentNeeds,
    compare_environment,
    facts_of,
    local_facts,
    make_environment,
    refuses,
)

_POLL_S = 0.2


async def job_environment(
    stream: ServiceStream,
    spec: JobSpec,
    needs: EnvironmentNeeds,
    project: Path,
    home: Path,
    check: Callable[[], None],
) -> tuple[str, EnvironmentFacts]:
    """Return the interpreter for a job, and what its environment has.

    The interpreter is empty for that of the agent. Another one is made if the job asks
    for it, and the agent's environment lacks something; not for a client that is gone,
    or that ``check`` refuses.
    Raises ``ConfigError`` with the installer's words.
    """
    check()
    stop = Cancellation()
    deadline = Deadline.after(ENVIRONMENT_S, stop)
    work = asyncio.to_thread(_find_or_make, spec, needs, project, home, deadline)
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_S)
            if stream.reader.at_eof():
                stop.cancel("whoever started the job is gone")
            check()
        return task.result()
    finally:
        stop.cancel("the agent ends")
        await asyncio.gather(task, return_exceptions=True)  # the installer is killed


def import_folders(needs: EnvironmentNeeds, project: Path) -> list[Path]:
    """Return where the program's modules lie on this machine; raises ConfigError."""
    try:
        for name in {*needs.import_folders} - {"."}:
            check_name(name)
    except ValueError as exc:
        raise ConfigError(f"modules of the program: {exc}") from None
    return [project / name for name in needs.import_folders]


def _find_or_make(
    spec: JobSpec,
    needs: EnvironmentNeeds,
    project: Path,
    home: Path,
    deadline: Deadline,
) -> tuple[str, EnvironmentFacts]:
    facts = local_facts(needs)
    if not spec.syncs_environment or not refuses(compare_environment(needs, facts)):
        return "", facts
    program = PurePosixPath(spec.folder, "__main__" if spec.is_module else spec.script)
    in_use = interpreters_in_use(home)
    python = make_environment(project, str(program), home, deadline, in_use)
    return str(python), facts_of(python, needs, deadline)
