"""``prepare_job``: makes a job ready on this machine, and starts it when told.

Everything that can fail fails here, before any machine runs the program: the folder,
the files, the environment. Until ``Start`` the job is gone as soon as the connection
is, or the permission.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringleader.deadline import OWN_PROCESS_S, Deadline
from ringleader.errors import ConfigError, ProtocolError
from ringleader.identity.storage.home import FileLock
from ringleader.ids import NodeId
from ringleader.jobs.machine.job_environment import import_folders, job_environment
from ringleader.jobs.machine.job_folder import (
    KEPT_JOBS,
    JobFolder,
    find_jobs,
    kept_bytes,
)
from ringleader.jobs.machine.project_transfer import receive_project
from ringleader.jobs.machine.prune_jobs import prune_jobs
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobSpec
from ringleader.jobs.protocol.messages import (
    ENVIRONMENT_S,
    MAX_MESSAGE_BYTES,
    Prepare,
    Prepared,
    Start,
    Started,
    decode_job_request,
)
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import BlobStore, EnvironmentFacts

MAX_RUNNING = 16
"""Jobs of one machine at a time."""
START_WITHIN_S = 900.0
"""How long a prepared job waits for the other machines to be prepared."""
CHECK_S = 0.2
"""How often a job that waits to be started asks whether it still may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What preparing a job needs to know about this machine."""

    name: str
    owner: NodeId
    """The other machine that starts the job; empty: a process of this one does."""
    check: Callable[[], None]
    """Raises ``PeerRefused`` once whoever starts it may run nothing here any more."""
    home: Path
    directory: Path
    """Folder of this machine's jobs."""
    store: BlobStore
    """Parts of the files of all projects."""
    accelerators: int
    environment: Mapping[str, str]


async def prepare_job(
    stream: ServiceStream, request: Prepare, machine: Machine
) -> subprocess.Popen[bytes]:
    """Prepare a job, wait for ``Start`` and return its supervisor's process."""
    limit = KEPT_JOBS, kept_bytes(machine.directory)
    await asyncio.to_thread(prune_jobs, machine.directory, *limit)
    known = await asyncio.to_thread(find_jobs, machine.directory)
    running = [record for record in known if not record.state.is_over]
    if len(running) >= MAX_RUNNING:
        text = f"{len(running)} jobs run on {machine.name} already"
        raise ConfigError(
            f"{text}; stop one with: ringleader stop {running[0].spec.id}"
        )
    folder = JobFolder(machine.directory / request.spec.id)
    machine.check()
    folder.make()
    lock: FileLock | None = None
    try:
        lock = folder.lock()
        if lock is None:
            raise ConfigError(f"another process prepares job {folder.id}")
        record = await _fill(stream, request, folder, machine)
        facts = await _choose_environment(stream, request, folder, machine)
        await stream.send(Prepared(record.processes, facts))
        more_s = ENVIRONMENT_S if request.spec.syncs_environment else 0.0
        await _wait_for_start(stream, START_WITHIN_S + more_s, machine.check)
        process = _start(folder, lock, machine)
    except BaseException:
        if lock is not None:
            lock.close()
        folder.remove()
        raise
    await _wait_until_running(folder, process)
    await stream.send(Started())
    return process


async def _fill(
    stream: ServiceStream, request: Prepare, folder: JobFolder, machine: Machine
) -> JobRecord:
    spec = request.spec
    if spec.is_synced:
        await receive_project(
            stream, request.manifest, machine.store, folder.work, machine.check
        )
        folder.keep_manifest(request.manifest)
    work = working_folder(spec, folder)
    _check_program(spec, work)
    record = JobRecord(
        spec=spec,
        machine=machine.name,
        state=JobState.PREPARED,
        owner=machine.owner,
        processes=spec.processes or machine.accelerators or 1,
        created_s=time.time(),
        work=str(work),
    )
    folder.write(record)
    return record


async def _choose_environment(
    stream: ServiceStream, request: Prepare, folder: JobFolder, machine: Machine
) -> EnvironmentFacts | None:
    """Record the environment that the job gets, and return what it has."""
    spec, needs = request.spec, request.needs
    if needs is None:
        return None
    python, facts = await job_environment(
        stream, spec, needs, folder.work, machine.home, machine.check
    )
    places = [str(each) for each in import_folders(needs, folder.work)]
    record = folder.stored()
    folder.write(msgspec.structs.replace(record, python=python, import_folders=places))
    return facts


def working_folder(spec: JobSpec, folder: JobFolder) -> Path:
    """Return the folder in which the program runs; raises ``ConfigError``."""
    if not spec.is_synced:
        if not os.path.isabs(spec.folder):
            raise ConfigError(f"--no-sync: {spec.folder} is not an absolute path")
        return Path(spec.folder)
    inside = os.path.normpath(os.path.join(folder.work, spec.folder))
    if os.path.commonpath([inside, folder.work]) != str(folder.work):
        raise ConfigError(f"the folder {spec.folder!r} lies outside the project")
    return Path(inside)


def _check_program(spec: JobSpec, work: Path) -> None:
    how = "it is not among the project's files; is it ignored by git?"
    if not spec.is_synced:
        how = "with --no-sync every machine needs it at the same path"
    if not work.is_dir():
        raise ConfigError(f"there is no folder {work} here: {how}")
    if not spec.is_module and not (work / spec.script).is_file():
        raise ConfigError(f"there is no script {work / spec.script} here: {how}")


async def _wait_for_start(
    stream: ServiceStream, within_s: float, check: Callable[[], None]
) -> None:
    """Wait for ``Start``; ``check`` holds when this returns, and while it waits."""
    reading = asyncio.create_task(stream.read(MAX_MESSAGE_BYTES))
    deadline = Deadline.after(within_s)
    try:
        while not reading.done():
            await asyncio.wait([reading], timeout=CHECK_S)
            check()
            if deadline.is_over():
                text = f"the job was not started within {within_s:g} s"
                raise ConfigError(text)
    finally:
        reading.cancel()
    request = decode_job_request(reading.result(), stream.who)
    if not isinstance(request, Start):
        text = f"sent {type(request).__name__} instead of Start"
        raise ProtocolError(stream.who, text)


def _start(
    folder: JobFolder, lock: FileLock, machine: Machine
) -> subprocess.Popen[bytes]:
    """Start the supervisor, which inherits the lock and outlives this agent."""
    command = [sys.executable, "-P", "-m", "ringleader.jobs.machine.supervisor"]
    with (folder.logs / "supervisor.txt").open("wb") as errors:
        process = subprocess.Popen(
            [*command, str(folder.path), str(lock.descriptor)],
            pass_fds=[lock.descriptor],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=dict(machine.environment),
            start_new_session=True,
        )
    os.close(lock.descriptor)  # not unlocked: the supervisor holds it from now on
    lock.descriptor = -1
    return process


async def _wait_until_running(
    folder: JobFolder, process: subprocess.Popen[bytes]
) -> None:
    try:
        async with asyncio.timeout(OWN_PROCESS_S):
            while folder.stored().state == JobState.PREPARED:
                if process.poll() is not None:
                    raise ConfigError(_supervisor_failed(folder))
                await asyncio.sleep(0.02)
    except TimeoutError as exc:
        process.kill()
        text = f"its supervisor did not start within {OWN_PROCESS_S:g} s"
        raise ConfigError(f"job {folder.id}: {text}") from exc


def _supervisor_failed(folder: JobFolder) -> str:
    said = (folder.logs / "supervisor.txt").read_text(errors="replace")[-500:]
    return f"job {folder.id}: its supervisor ended at once: {said.strip()}"
