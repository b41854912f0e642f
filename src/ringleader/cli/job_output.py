"""Shows a job in the terminal until it ends, and stops it on Ctrl-C.

Whatever else ends the command is no order to the job: SIGTERM, a closed terminal, a
reader of its output that has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.cli.travel import explain_missing
from ringleader.jobs.client.fold import ConsequenceFold
from ringleader.jobs.client.follow_job import JobFollower
from ringleader.jobs.client.job_requests import stop_everywhere
from ringleader.jobs.client.job_summary import JobSummary
from ringleader.jobs.client.output_view import (
    PlainView,
    TerminalView,
    terminal_room,
)
from ringleader.jobs.protocol.job_record import JobRecord, JobState, printable
from ringleader.jobs.protocol.job_spec import JobSpec, TerminalSize
from ringleader.project.blob_store import size_text

SHOWN_WRITTEN = 4
"""Files and folders that the end of a job names for each machine."""
_RED, _PLAIN = "\x1b[1;31m", "\x1b[0m"


def terminal_size(machines: list[str]) -> TerminalSize | None:
    """Return the room for rank 0 in our terminal; None if output goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    found = os.get_terminal_size(sys.stdout.fileno())
    columns = terminal_room(found.columns or 80, machines)
    return TerminalSize(min(columns, 1000), min(max(found.lines, 1), 1000))


def make_view(machines: list[str], only_rank: int | None = None) -> PlainView:
    """Return the view for our standard output."""
    if not sys.stdout.isatty():
        return PlainView()
    columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return TerminalView(columns=columns, machines=machines, live_rank=only_rank or 0)


@dataclass(slots=True)
class ShownJob:
    """A job whose output is shown here, and that Ctrl-C stops."""

    path: Path
    """Socket of the resident agent."""
    spec: JobSpec
    shows: Callable[[int], bool]
    only_rank: int | None = None
    tail_bytes: int = 0
    fetched: Collection[str] = ()
    """What is brought from the first machine at the end."""
    _signals: int = 0
    _leaving: int = 0
    """The signal at which this command leaves the job to itself."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _view: PlainView = field(default_factory=PlainView)

    async def run(self) -> int:
        """Show the job until it has ended, and return the exit status."""
        names = [machine.name for machine in self.spec.machines]
        self._view = make_view(names, self.only_rank)
        follower = JobFollower(
            path=self.path,
            spec=self.spec,
            view=self._view,
            write=write_output,
            say=self.say,
            shows=self.shows,
            tail_bytes=self.tail_bytes,
            fold=ConsequenceFold(self.spec.id),
        )
        with self._signal_handlers():
            following = asyncio.create_task(follower.run())
            ended = asyncio.create_task(self._ended.wait())
            await asyncio.wait([following, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                return self._leave()
            try:
                summary = following.result()
            except BrokenPipeError:  # as of: ringleader attach | head
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                self._leaving = signal.SIGPIPE
                return self._leave()
        return self._report(follower, summary)

    def say(self, text: str) -> None:
        """Print a sentence of our own, among the lines of the ranks."""
        text = printable(text)
        if isinstance(self._view, TerminalView) and sys.stderr.isatty():
            sys.stdout.write(self._view.note(f"ringleader: {text}"))
            sys.stdout.flush()
        else:
            sys.stderr.write(f"ringleader: {text}\n")
            sys.stderr.flush()

    def _leave(self) -> int:
        """Return the exit status of a command that ends before the job."""
        job = self.spec.id
        if not self._leaving:  # the third Ctrl-C
            return 128 + signal.SIGINT
        with contextlib.suppress(OSError):  # the terminal is gone
            if not self._signals:
                self.say(f"job {job} goes on; to see it: ringleader attach {job}")
        return 128 + self._leaving

    def _report(self, follower: JobFollower, summary: JobSummary | None) -> int:
        job = self.spec.id
        silent = follower.silent()
        if summary is None:
            complain(f"job {job}: no machine knows it any more; {'; '.join(silent)}")
            return 1
        if not summary.state.is_over:
            text = f"job {job}: no machine answers any more: {'; '.join(silent)}"
            complain(f"{text}\nIt may go on there. Later: ringleader attach {job}")
            return 1
        self._say_what_was_written(summary)
        if summary.cause is not None:
            text = f"job {job} failed: {summary.failure}"
            if summary.cause.outcome is None:
                said = follower.launcher_said(summary.cause.machine)
                text = f"{text}\n{printable(said)}" if said else text
            if self.spec.is_synced and (hint := explain_missing(text, Path.cwd())):
                text = f"{text}\n{hint}"
            complain(text)
        elif summary.state == JobState.STOPPED:
            self.say(f"job {job} was stopped")
        else:
            self.say(f"job {job} finished on {_list_done(summary)}")
        return summary.exit_status

    def _say_what_was_written(self, summary: JobSummary) -> None:
        first = self.spec.machines[0].name
        told = {
            name: list_written(record, self.fetched if name == first else ())
            for name, record in summary.written.items()
        }
        for name, text in told.items():
            if text:
                self.say(f"{name} wrote {text}")
        if any(told.values()):
            self.say(f"to bring that here: ringleader fetch {self.spec.id}")

    # -- signals -------------------------------------------------------------------

    @contextlib.contextmanager
    def _signal_handlers(self):  # type: ignore[no-untyped-def] # noqa: ANN202
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGINT: self._on_interrupt,
            signal.SIGTERM: lambda: self._on_leave(signal.SIGTERM),
            signal.SIGHUP: lambda: self._on_leave(signal.SIGHUP),
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _on_leave(self, number: int) -> None:
        self._leaving = number
        self._ended.set()

    def _on_interrupt(self) -> None:
        self._signals += 1
        if self._signals == 1:
            text = f"stopping job {self.spec.id} on all machines"
            self.say(f"{text}; Ctrl-C again ends it at once")
            self._start(self._stop(is_urgent=False))
        elif self._signals == 2:
            self.say("ending it at once")
            self._start(self._stop(is_urgent=True))
        else:
            self._ended.set()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, *, is_urgent: bool) -> None:
        machines = self.spec.machines
        for trouble in await stop_everywhere(
            self.path, machines, self.spec.id, is_urgent=is_urgent
        ):
            self.say(f"could not stop {trouble}")


def list_written(record: JobRecord, fetched: Collection[str] = ()) -> str:
    """Return what the program wrote on a machine and is not ``fetched`` anyway, the
    largest first; empty: nothing."""
    left = [each for each in record.written if each.name.rstrip("/") not in fetched]
    others = record.num_written - sum(each.num_files for each in record.written)
    others += sum(each.num_files for each in left[SHOWN_WRITTEN:])
    shown = [
        f"{each.name} ({size_text(each.num_bytes)}"
        + (f" in {each.num_files} files)" if each.num_files > 1 else ")")
        for each in left[:SHOWN_WRITTEN]
    ]
    return ", ".join([*shown, *([f"{others} more files"] if others else [])])


def complain(text: str) -> None:
    """Print an error, in red on a terminal."""
    if sys.stderr.isatty():
        text = f"{_RED}ringleader: {text}{_PLAIN}"
    else:
        text = f"ringleader: {text}"
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write_output(text: str) -> None:
    """Print what ranks have printed, at once."""
    if text:
        encoding = sys.stdout.encoding or "utf-8"
        # What the terminal has no character for is shown as "?".
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()


def _list_done(summary: JobSummary) -> str:
    done = [n for n, state in summary.machines.items() if state == JobState.SUCCEEDED]
    others = [
        f"{name} {state}"
        for name, state in summary.machines.items()
        if state != JobState.SUCCEEDED
    ]
    text = ", ".join(done)
    return f"{text} ({', '.join(others)})" if others else text
