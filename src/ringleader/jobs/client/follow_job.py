"""``JobFollower``: shows what a job prints on all machines, until it has ended.

A machine that does not answer is asked again from where its output was cut off. The job
does not need us: when we end, it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import PeerError, PeerRefused, ProtocolError
from ringleader.jobs.client.channel import Channel
from ringleader.jobs.client.fold import ConsequenceFold
from ringleader.jobs.client.job_summary import JobSummary, summarize
from ringleader.jobs.client.output_view import PlainView, Source
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import Changed, Follow, Output

RETRY_S = 1.0
GIVE_UP_S = 30.0
"""How long machines may be silent when no other one still runs the job: an agent that
is started again, or a cable that is plugged in again, is back by then."""
LAUNCHER = "launcher"
OURS = b"ringleader: "
"""Beginning of the launcher's lines that tell the user how the job goes on."""
KEPT_LINES = 20

Write = Callable[[str], None]


@dataclass(slots=True)
class FollowedMachine:
    """What we know about the job on one machine."""

    machine: JobMachine
    record: JobRecord | None = None
    positions: dict[str, int] = field(default_factory=dict)
    launcher_line: bytes = b""
    launcher_lines: deque[bytes] = field(
        default_factory=lambda: deque(maxlen=KEPT_LINES)
    )
    away_since_s: float | None = None
    """When it stopped answering; None: it answers."""
    trouble: str = ""
    is_done: bool = False


@dataclass(slots=True, kw_only=True)
class JobFollower:
    """Follows one job on all its machines."""

    path: Path
    """Socket of the resident agent of this machine."""
    spec: JobSpec
    view: PlainView
    write: Write
    """Takes what the ranks print."""
    say: Write
    """Takes sentences of our own."""
    shows: Callable[[int], bool] = lambda _rank: True
    """Whether the output of a rank is wanted."""
    is_live: bool = True
    fold: ConsequenceFold | None = None
    """Holds back errors that follow from another one; None: all is shown."""
    tail_bytes: int = 0
    give_up_s: float = GIVE_UP_S
    machines: list[FollowedMachine] = field(default_factory=list)

    async def run(self) -> JobSummary | None:
        """Follow until the job has ended on all machines, or the last ones are silent.

        Returns how it stands, or None if no machine knows it.
        """
        self.machines = [FollowedMachine(machine) for machine in self.spec.machines]
        tasks = [asyncio.create_task(self._follow(each)) for each in self.machines]
        try:
            while not self._is_over():
                done, _ = await asyncio.wait(
                    [t for t in tasks if not t.done()] or tasks, timeout=RETRY_S
                )
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self.fold is not None:
            for source, data in self.fold.finish():
                self.write(self.view.feed(source, data))
        self.write(self.view.finish())
        records = self.records()
        return summarize(records) if records else None

    def records(self) -> dict[str, JobRecord]:
        """Return the last record of each machine that has sent one.

        If the job has ended on some machines, only theirs: one that fell silent was
        lost on the way, and what it said last is no longer so.
        """
        known = [m for m in self.machines if m.record]
        ended = [m for m in known if m.is_done]
        return {m.machine.name: m.record for m in ended or known if m.record}

    def silent(self) -> list[str]:
        """Return what is wrong with the machines that did not answer at the end.

        Each trouble once: if the agent of this machine is gone, it is that of all.
        """
        left = [each for each in self.machines if not each.is_done]
        return list(dict.fromkeys(each.trouble for each in left if each.trouble))

    def launcher_said(self, name: str) -> str:
        """Return the last lines of a machine's launcher."""
        found = next(m for m in self.machines if m.machine.name == name)
        return b"\n".join(found.launcher_lines).decode(errors="replace")

    def _is_over(self) -> bool:
        now_s = time.monotonic()
        return all(
            each.is_done
            or (
                each.away_since_s is not None
                and now_s - each.away_since_s > self.give_up_s
            )
            for each in self.machines
        )

    async def _follow(self, each: FollowedMachine) -> None:
        """Ask one machine until the job is over there."""
        while True:
            try:
                await self._follow_once(each)
            except PeerRefused as exc:
                each.trouble = str(exc)
                each.is_done = True  # it has no such job: its folder was removed
            except PeerError as exc:
                if each.away_since_s is None:
                    each.away_since_s = time.monotonic()
                    if each.record is not None:
                        self.say(f"{each.machine.name} does not answer: {exc.text}")
                each.trouble = str(exc)
            if each.is_done:
                return
            await asyncio.sleep(RETRY_S)

    async def _follow_once(self, each: FollowedMachine) -> None:
        channel = await Channel.open(self.path, each.machine)
        try:
            request = Follow(
                job=self.spec.id,
                positions=each.positions,
                is_live=self.is_live,
                tail_bytes=self.tail_bytes,
            )
            await channel.send(request)
            while not each.is_done:
                self._take(each, await channel.receive(None))
                each.away_since_s = None
        finally:
            channel.close()

    def _take(self, each: FollowedMachine, reply: object) -> None:
        match reply:
            case Output(log=log, position=position, data=data):
                each.positions[log] = position + len(data)
                if log == LAUNCHER:
                    self._take_launcher(each, data)
                elif self.shows(rank := int(log.partition("-")[2])):
                    source = Source(each.machine.name, rank)
                    self._show(source, data)
            case Changed(record=record):
                self._warn(each, record)
                each.record = record
                each.is_done = record.state.is_over or not self.is_live
            case _:
                text = f"sent {type(reply).__name__} instead of output"
                raise ProtocolError(each.machine.name, text)

    def _show(self, source: Source, data: bytes) -> None:
        pieces = [(source, data)] if self.fold is None else self.fold.feed(source, data)
        for where, piece in pieces:
            self.write(self.view.feed(where, piece))

    def _warn(self, each: FollowedMachine, record: JobRecord) -> None:
        """Tell once what is wrong on a machine where the job goes on or went well."""
        known = each.record.outcome if each.record else None
        is_fine = record.state in (JobState.RUNNING, JobState.SUCCEEDED)
        if is_fine and record.outcome and record.outcome != known:
            self.say(f"{each.machine.name}: {record.outcome.text}")

    def _take_launcher(self, each: FollowedMachine, data: bytes) -> None:
        """Keep the launcher's lines; show those of one machine, all say the same."""
        *lines, each.launcher_line = (each.launcher_line + data).split(b"\n")
        each.launcher_lines.extend(line[:1000] for line in lines)
        leads = next((m for m in self.machines if m.away_since_s is None), each)
        if each is not leads or not self.is_live:
            return
        for line in lines:
            if line.startswith(OURS):
                self.say(line.removeprefix(OURS).decode(errors="replace"))
