"""``start_job``: prepares a job on all its machines, then starts it on all of them.

Nothing runs anywhere before everything is ready everywhere. A machine that cannot
prepare the job ends it, with one error that names the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ringleader.deadline import OWN_PROCESS_S
from ringleader.errors import ConfigError, ProtocolError, RingleaderError
from ringleader.jobs.client.channel import Channel
from ringleader.jobs.client.job_requests import stop_everywhere
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import (
    ENVIRONMENT_S,
    Chunk,
    ChunksNeeded,
    JobReply,
    Prepare,
    Prepared,
    Start,
    Started,
)
from ringleader.project import (
    BlobStore,
    EnvironmentNeeds,
    Manifest,
    compare_environment,
    difference_table,
    refuses,
)
from ringleader.project.blob_store import size_text
from ringleader.project.manifest import encode

ANSWER_S = 120.0
"""How long a machine may take to compare its files with the list."""
PREPARE_S = 900.0
"""How long it may take to unpack, and to look at its environment."""
START_S = OWN_PROCESS_S + 60.0
"""How long its supervisor may take to start; a machine that is lost is noticed."""
PROGRESS_S = 5.0
"""How often the user is told how far hundreds of megabytes are."""

Say = Callable[[str], None]
Ready = Sequence[tuple[JobMachine, Prepared]]
"""The machines, and what each has prepared."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The files of a program, ready to travel."""

    manifest: Manifest
    store: BlobStore


@dataclass(slots=True)
class JobStart:
    """One attempt to start a job, through the agent whose socket is ``path``."""

    path: Path
    spec: JobSpec
    project: Project | None
    """None: each machine uses the files that it has."""
    say: Say
    needs: EnvironmentNeeds | None = None
    """What the program needs from the environment; None: nothing is compared."""
    check: Callable[[Ready], Awaitable[None]] | None = None
    """Asked when all machines are prepared, and nothing has started; may raise."""
    _channels: list[Channel] = field(default_factory=list)

    async def run(self) -> None:
        """Start the job on all machines.

        Raises an error that names the machine; then nothing of the job is left.
        """
        machines = self.spec.machines
        try:
            ready = await all_or_first_error(self._prepare(m) for m in machines)
            self._check_environments(ready)
            if self.check is not None:
                await self.check(ready)
            channels = list(self._channels)
            try:
                await all_or_first_error(_start(channel) for channel in channels)
            except BaseException:
                self._close()  # a machine that was not told to start forgets the job
                await stop_everywhere(self.path, machines, self.spec.id, is_urgent=True)
                raise
        finally:
            self._close()

    def _close(self) -> None:
        for channel in self._channels:
            channel.close()

    async def _prepare(self, machine: JobMachine) -> tuple[JobMachine, Prepared]:
        channel = await Channel.open(self.path, machine)
        self._channels.append(channel)
        project = self.project
        manifest = encode(project.manifest) if project else b""
        request = Prepare(spec=self.spec, manifest=manifest, needs=self.needs)
        await channel.send(request)
        if project is not None:
            await self._send_chunks(channel, project)
        make_s = ENVIRONMENT_S if self.spec.syncs_environment else 0.0
        reply = await channel.receive(PREPARE_S + make_s)
        if not isinstance(reply, Prepared):
            raise unexpected(machine, reply)
        return machine, reply

    async def _send_chunks(self, channel: Channel, project: Project) -> None:
        reply = await channel.receive(ANSWER_S)
        if not isinstance(reply, ChunksNeeded):
            raise unexpected(channel.machine, reply)
        sizes = project.manifest.chunks()
        if not sizes.keys() >= set(reply.digests):
            text = "asks for files that are not part of the program"
            raise ProtocolError(channel.machine.name, text)
        if reply.digests:
            total = size_text(sum(sizes[digest] for digest in reply.digests))
            self.say(f"sending {total} to {channel.machine.name}")
        progress = _Progress(channel.machine.name, sum(sizes[d] for d in reply.digests))
        for digest in reply.digests:
            data = await asyncio.to_thread(project.store.get, digest)
            await channel.send(Chunk(digest, data))
            if text := progress.add(len(data)):
                self.say(text)

    def _check_environments(self, ready: list[tuple[JobMachine, Prepared]]) -> None:
        if self.needs is None:
            return
        differences = {
            machine.name: compare_environment(self.needs, prepared.facts)
            for machine, prepared in ready
            if prepared.facts is not None
        }
        found = {name: rows for name, rows in differences.items() if rows}
        if not found:
            return
        table = difference_table(found)
        if any(refuses(rows) for rows in found.values()):
            names = ", ".join(name for name, rows in found.items() if refuses(rows))
            text = f"{names}: the Python environment differs; nothing was started"
            hint = "\nTo let those machines install what they lack: --sync-env"
            if self.spec.syncs_environment or not self.spec.is_synced:
                hint = ""
            raise ConfigError(f"{text}\n{table}{hint}")
        self.say(f"the machines differ a little, and the job goes on:\n{table}")


@dataclass(slots=True)
class _Progress:
    """How far the files are on their way to a machine."""

    machine: str
    total: int
    sent: int = 0
    began_s: float = field(default_factory=time.monotonic)
    told_s: float = field(default_factory=time.monotonic)

    def add(self, num_bytes: int) -> str:
        """Return what to tell the user after ``num_bytes`` more; mostly nothing."""
        now_s = time.monotonic()
        self.sent += num_bytes
        if now_s - self.told_s < PROGRESS_S or self.sent == self.total:
            return ""
        self.told_s = now_s
        rate = self.sent / max(now_s - self.began_s, 1e-3)
        left_s = (self.total - self.sent) / rate
        text = f"{size_text(self.sent)} of {size_text(self.total)} sent"
        text = f"{text} to {self.machine}; about {left_s:.0f} s are left"
        return f"{text} at {size_text(round(rate))}/s"


async def all_or_first_error(works: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Run all at once; at the first error cancel the others and raise it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start(channel: Channel) -> None:
    reply = await channel.ask(Start(), START_S)
    if not isinstance(reply, Started):
        raise unexpected(channel.machine, reply)


def unexpected(machine: JobMachine, reply: JobReply) -> RingleaderError:
    """Return the error for a reply that does not answer the request."""
    return ProtocolError(machine.name, f"answered with {type(reply).__name__}")
