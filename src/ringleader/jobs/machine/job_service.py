"""``JobService``: the service ``jobs`` of a resident agent.

Processes of this user may use it always, and through it the same service of any other
machine: the subject of the conversation is the node to talk to. Other members of the
cluster may use it only while this machine accepts jobs: that is asked again before
everything that a conversation does. Whoever has started a job may always see how it
stands, and stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ringleader import settings
from ringleader.deadline import OWN_PROCESS_S, Deadline
from ringleader.errors import PeerLost, PeerRefused, ProtocolError
from ringleader.ids import NodeId
from ringleader.jobs.machine.job_folder import JobFolder, find_jobs, jobs_directory
from ringleader.jobs.machine.output_stream import (
    POLL_S,
    send_output,
    without_output,
)
from ringleader.jobs.machine.preparation import Machine, prepare_job
from ringleader.jobs.machine.project_transfer import project_store
from ringleader.jobs.machine.prune_jobs import prune_jobs
from ringleader.jobs.machine.result_files import send_files
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.messages import (
    MAX_MESSAGE_BYTES,
    PURPOSE,
    Changed,
    Fetch,
    Follow,
    JobList,
    JobRequest,
    ListJobs,
    Prepare,
    Prune,
    Pruned,
    Stop,
    decode_job_request,
)
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.protocol.local_requests import RequestFailed
from ringleader.project.blob_store import IN_USE_S

MAX_LISTED = 100
REQUEST_S = 60.0
"""How long a client may take to say what it wants."""


@dataclass(slots=True)
class JobService:
    """Answers requests about jobs. Lives on the agent's event loop."""

    core: AgentCore
    _supervisors: set[subprocess.Popen[bytes]] = field(default_factory=set)
    """Children of this agent, until they are reaped."""
    _num_preparing: int = 0

    @property
    def directory(self) -> Path:
        """Folder of this machine's jobs."""
        return jobs_directory(Path(self.core.config.home))

    async def serve(self, stream: ServiceStream) -> None:
        """Answer one conversation, here or by passing it on to another machine."""
        if stream.peer is None and stream.subject not in ("", self.core.me.node):
            await self._pass_on(stream, NodeId(stream.subject))
            return
        self._reap()
        body = await self._first_message(stream)
        if not self._is_allowed(stream):
            await self._answer_starter(stream, decode_job_request(body, stream.who))
            return
        await self._answer(stream, decode_job_request(body, stream.who))

    def _is_allowed(self, stream: ServiceStream) -> bool:
        """Return whether the client may run and read jobs here, at this moment."""
        return stream.peer is None or self.core.config.accepts_jobs

    def _check(self, stream: ServiceStream) -> None:
        """Raise ``PeerRefused`` unless the client may run and read jobs here now."""
        if not self._is_allowed(stream):
            text = "runs no jobs of other machines; allow it there with"
            raise PeerRefused(self.core.local.name, f"{text}: ringleader up --jobs")

    def _may_read(self, stream: ServiceStream, record: JobRecord) -> bool:
        """Return whether the client may see what a job prints.

        If not, it may still see how a job stands that it has started; raises
        ``PeerRefused`` for any other.
        """
        if record.owner != stream.peer:
            self._check(stream)
        return self._is_allowed(stream)

    async def _first_message(self, stream: ServiceStream) -> bytes:
        """Read what the client wants, before anything can fail.

        A client that is refused while it still writes may never read why.
        """
        async with asyncio.timeout(REQUEST_S):
            return await stream.read(MAX_MESSAGE_BYTES)

    async def _answer_starter(self, stream: ServiceStream, request: JobRequest) -> None:
        """Answer a machine that may run no jobs here: about those that it started."""
        found = await asyncio.to_thread(find_jobs, self.directory)
        own = {each.spec.id: each for each in found if each.owner == stream.peer}
        match request:
            case ListJobs() if own:
                listed = [without_output(each) for each in own.values()]
                await stream.send(JobList(listed[:MAX_LISTED]))
            case Follow(job=job) | Stop(job=job) if job in own:
                await self._answer(stream, request)
            case _:
                self._check(stream)

    async def _answer(self, stream: ServiceStream, request: JobRequest) -> None:
        match request:
            case Prepare():
                self._num_preparing += 1
                try:
                    started = await prepare_job(stream, request, self._machine(stream))
                finally:
                    self._num_preparing -= 1
                self._supervisors.add(started)
            case ListJobs():
                found = await asyncio.to_thread(find_jobs, self.directory)
                self._check(stream)
                await stream.send(JobList(found[:MAX_LISTED]))
            case Follow():
                folder = self._folder(request.job)
                record = folder.stored()

                def may_read() -> bool:
                    return self._may_read(stream, record)

                await send_output(stream, request, folder, may_read)
            case Stop(job=job, is_urgent=is_urgent):
                folder = self._folder(job)
                await _wait_until_started(folder)
                is_shown = self._may_read(stream, folder.stored())
                stop_job(folder, is_urgent=is_urgent)
                record = folder.read()
                await stream.send(
                    Changed(record if is_shown else without_output(record))
                )
            case Prune(kept=kept):
                self._check(stream)
                await stream.send(await asyncio.to_thread(self._prune, kept))
            case Fetch():
                folder = self._folder(request.job)
                await send_files(stream, request, folder, lambda: self._check(stream))
            case _:
                text = f"began with {type(request).__name__}"
                raise ProtocolError(stream.who, text)

    def _prune(self, kept: int) -> Pruned:
        removed = prune_jobs(self.directory, kept, sys.maxsize)
        store = project_store(Path(self.core.config.home))
        freed = store.evict(0, IN_USE_S if self._num_preparing else 0.0)
        return Pruned(len(removed), freed + sum(each.num_bytes for each in removed))

    def _folder(self, job: str) -> JobFolder:
        folder = JobFolder(self.directory / job)
        folder.stored()  # raises if there is none
        return folder

    def _machine(self, stream: ServiceStream) -> Machine:
        core = self.core
        return Machine(
            owner=stream.peer or NodeId(""),
            check=lambda: self._check(stream),
            name=core.local.name,
            home=Path(core.config.home),
            directory=self.directory,
            store=project_store(Path(core.config.home)),
            accelerators=len(core.local.profile.accelerators),
            environment={
                **settings.environment(),
                "RINGLEADER_HOME": core.config.home,
            },
        )

    def _reap(self) -> None:
        self._supervisors = {each for each in self._supervisors if each.poll() is None}

    async def _pass_on(self, stream: ServiceStream, node: NodeId) -> None:
        """Let the client talk to the same service of another machine."""
        first = await self._first_message(stream)
        other = await self.core.services.dial(node, PURPOSE)
        try:
            await other.send_body(first)
            await _connect(stream, other)
        finally:
            other.close()
            if other.lost:  # the client, which is here, cannot know why
                error = PeerLost(other.name, other.lost)
                await stream.send(RequestFailed.of(error))


async def _connect(one: ServiceStream, other: ServiceStream) -> None:
    """Copy messages in both directions until one end is closed."""
    directions = [
        asyncio.create_task(_copy(one, other)),
        asyncio.create_task(_copy(other, one)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _copy(source: ServiceStream, target: ServiceStream) -> None:
    while True:
        await target.send_body(await source.read(MAX_MESSAGE_BYTES))


async def _wait_until_started(folder: JobFolder) -> None:
    """Wait while a job is being prepared: it has no process yet that could be stopped.

    Raises ``ConfigError`` if it is gone then.
    """
    deadline = Deadline.after(OWN_PROCESS_S)
    while not deadline.is_over():
        if folder.read().state != JobState.PREPARED:
            return
        await asyncio.sleep(POLL_S)


def stop_job(folder: JobFolder, *, is_urgent: bool) -> None:
    """Tell the supervisor of a job to end it; does nothing if the job is over.

    The process id belongs to the supervisor while that holds the job's lock.
    """
    record = folder.read()
    if record.state.is_over or not record.pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
        if is_urgent:
            os.kill(record.pid, signal.SIGTERM)
