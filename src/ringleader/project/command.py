"""``Command``: a program that runs until a deadline, and whose errors are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError

MAX_BYTES = 256 << 10
"""A program's output is kept up to this length: its last bytes."""
MAX_LINES = 25
"""An error shows its last lines: pip repeats much, and ends with what failed."""

_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program and what it is for."""

    argv: Sequence[str]
    purpose: str
    """First words of its errors."""
    folder: Path | None = None
    environment: Mapping[str, str] | None = None
    stdin: bytes = b""

    def run(self, deadline: Deadline) -> bytes:
        """Run it and return what it printed to standard output.

        Raises ConfigError if it fails or takes too long. What it has started, in its
        session, is then killed.
        """
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as said,
            tempfile.TemporaryFile() as errors,
        ):
            given.write(self.stdin)
            given.seek(0)
            process = self._start(given, said, errors)
            try:
                code = self._wait(process, deadline)
            finally:
                _kill(process)
            if code:
                raise ConfigError(self._failed(code, _tail(said) + _tail(errors)))
            return _tail(said)

    def _start(
        self, given: IO[bytes], said: IO[bytes], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env=self.environment,
                stdin=given,
                stdout=said,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as exc:
            text = f"{self.purpose}: {self.argv[0]} does not start: {exc.strerror}"
            raise ConfigError(text) from exc

    def _wait(self, process: subprocess.Popen[bytes], deadline: Deadline) -> int:
        while not deadline.is_over():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(_POLL_S, deadline.wait_s()))
        ended = deadline.cancellation.reason if deadline.cancellation else ""
        reason = ended or f"took more than {deadline.after_s:g} s"
        raise ConfigError(f"{self.purpose}: {Path(self.argv[0]).name}: {reason}")

    def _failed(self, code: int, output: bytes) -> str:
        lines = output.decode(errors="replace").splitlines()[-MAX_LINES:]
        shown = "\n".join(_printable(line) for line in lines)
        name = Path(self.argv[0]).name
        return f"{self.purpose}: {name} failed with status {code}:\n{shown}"


def _tail(file: IO[bytes]) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_BYTES))
    return file.read()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the program, and what it has started, unless it has ended by itself."""
    if process.poll() is not None:
        return
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() else " " for each in line)[:500].rstrip()
