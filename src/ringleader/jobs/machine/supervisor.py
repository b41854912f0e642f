"""``Supervisor``: the process that runs one job on one machine, from start to end.

``python -m ringleader.jobs.machine.supervisor FOLDER LOCK`` starts the launcher
(``ringleader run --here``) in the job's folder, writes what it and the workers print to
the logs, and writes how the job ended to the record. It is not the agent, so that a
killed agent leaves the logs and the record complete. If it is killed itself, the kernel
kills the launcher and the workers.

SIGTERM or SIGINT stop the job; a second one kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ringleader.errors import ConfigError, RingleaderError
from ringleader.jobs.machine.job_end import settle
from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.machine.launcher import launcher_command, launcher_environment
from ringleader.jobs.machine.log_files import LogWriter
from ringleader.jobs.machine.outcome import read_outcome
from ringleader.jobs.machine.output_socket import OutputSocket
from ringleader.jobs.protocol.job_record import (
    JobOutcome,
    JobRecord,
    JobState,
    printable,
)

DRAIN_S = 2.0
"""How long to wait for output after the launcher has ended."""
STOP_S = 30.0
"""How long a job may take to end when it is stopped; the launcher needs 10 s."""
LAUNCHER = "launcher"


@dataclass(slots=True)
class Supervisor:
    """Runs one job."""

    folder: JobFolder
    record: JobRecord
    _logs: dict[str, LogWriter] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None
    _signals: int = 0
    _is_full: bool = False
    """Whether output was lost."""
    _too_late: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Run the job and write how it ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self.folder.reserve()
        spec = self.record.spec
        output = OutputSocket(self.folder.socket, spec.terminal, self._write)
        try:
            output.listen()
            code = await self._launch(output)
            await output.drain(DRAIN_S)
        except (OSError, RingleaderError) as exc:
            text = printable(f"cannot start the launcher: {exc}")
            self._write(LAUNCHER, f"{text}\n".encode())
            self._end(1, JobOutcome(text=text, is_here=True))
            return
        finally:
            output.close()
        outcome = read_outcome(self.folder.outcome)
        self.record = await asyncio.to_thread(settle, self.folder, self.record)
        self._end(code, outcome)

    async def _launch(self, output: OutputSocket) -> int:
        ours, theirs = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *launcher_command(self.record),
                cwd=self.record.work,
                env=launcher_environment(self.folder, self.record),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        output.read_from(ours, LAUNCHER)
        self._update(state=JobState.RUNNING, started_s=time.time(), pid=os.getpid())
        if self._signals:  # it came before there was a launcher
            self._pass_on(signal.SIGINT)
        return await self._process.wait()

    def _write(self, log: str, data: bytes) -> None:
        writer = self._logs.setdefault(log, LogWriter(self.folder.logs, log))
        writer.write(data)
        if writer.lost_bytes and not self._is_full:
            self._is_full = True
            self._update(outcome=self._full_disk())

    def _stop(self) -> None:
        """Interrupt the launcher as Ctrl-C would; it knows what a second one means."""
        self._signals += 1
        if self._signals == 1 and self._process is not None:
            self._update(state=JobState.STOPPING)
        self._pass_on(signal.SIGINT)
        if self._too_late is None:
            loop = asyncio.get_running_loop()
            self._too_late = loop.call_later(STOP_S, self._pass_on, signal.SIGKILL)

    def _pass_on(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _end(self, code: int, outcome: JobOutcome | None) -> None:
        if code == 0:  # with an outcome the others have finished without this machine
            state = JobState.LOST if outcome else JobState.SUCCEEDED
        else:
            state = JobState.STOPPED if self._signals else JobState.FAILED
        if self._is_full:
            outcome = outcome or self._full_disk()
        self._update(state=state, exit_status=code, outcome=outcome, end=True)
        self.folder.release()

    def _full_disk(self) -> JobOutcome:
        text = f"the disk of {self.folder.logs} is full: output of ranks is lost"
        return JobOutcome(text=printable(text), is_consequence=True)

    def _update(self, *, end: bool = False, **changes: object) -> None:
        if end:
            changes["ended_s"] = time.time()
        self.record = msgspec.structs.replace(self.record, **changes)
        with contextlib.suppress(ConfigError):
            self.folder.write(self.record)
            return
        self.folder.release()  # the disk is full
        try:
            self.folder.write(self.record)
        except ConfigError as exc:  # whoever asks reads "lost" at the end
            sys.stderr.write(f"ringleader: {exc}\n")
        self.folder.reserve()


def main(path: str, lock: str) -> None:
    """Run the job of a folder whose lock this process has inherited."""
    os.set_inheritable(int(lock), False)
    folder = JobFolder(Path(path))
    asyncio.run(Supervisor(folder, folder.stored()).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
