"""Commands on the machines of a test LAN, with what they have printed so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ringleader.simulation.lan import VirtualLan
from ringleader.testing.node_process import make_home
from tests.kit.warm_python import WarmProcess, WarmPython

RINGLEADER = [sys.executable, "-m", "ringleader.cli.main"]
IMPATIENT = [sys.executable, "-m", "tests.kit.short_limits"]
"""The same, for tests in which machines are lost and nobody shall wait for them."""
TORCHRUN = [
    sys.executable,
    "-m",
    "tests.kit.warm_children",
    "-m",
    "torch.distributed.run",
]
"""Its workers are forks, as it is; examples/ddp.py is tested with new interpreters."""


@dataclass(slots=True)
class Command:
    """A command on a host with the lines it has printed so far."""

    process: subprocess.Popen[str] | WarmProcess
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    def read(self) -> None:
        """Collect lines until the output ends."""
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, text: str, within_s: float = 300.0, after: int = 0) -> int:
        """Wait for a line and return its number."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            for number, line in enumerate(self.lines[after:], after):
                if text in line:
                    return number
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {within_s} s:\n{''.join(self.lines)}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone, as a terminal's Ctrl-C would."""
        self.process.send_signal(number)

    def end(self, within_s: float = 300.0) -> int:
        """Wait for the end and return the exit status."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            text = f"has not ended within {within_s} s:\n{''.join(self.lines)}"
            raise AssertionError(text) from None
        self.close()
        return code

    def close(self) -> None:
        """End the command and its reader."""
        self.process.kill()
        self.process.wait(60)
        assert self.reader is not None
        self.reader.join(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def status_of(machines: Machines, index: int) -> dict[str, Any]:
    """Ask on a machine for the status, again if its busy agent answers too late."""
    until_s = time.monotonic() + 300
    while True:
        status = machines.start(index, *RINGLEADER, "status", "--json")
        if status.end() == 0:
            found: dict[str, Any] = json.loads("".join(status.lines))[0]
            return found
        assert time.monotonic() < until_s, "".join(status.lines)


@dataclass(slots=True)
class Machines:
    """The hosts of a LAN as machines of one cluster."""

    net: VirtualLan
    folder: Path
    python: WarmPython
    """Forks the programs that are started by ``sys.executable``."""
    root: bytes = field(default_factory=lambda: os.urandom(32))
    commands: list[Command] = field(default_factory=list)

    @classmethod
    @contextmanager
    def with_script(
        cls, net: VirtualLan, folder: Path, python: WarmPython, script: str
    ) -> Iterator[Self]:
        """Make machines that share ``train.py`` in their folder, and end them."""
        made = cls(net, folder, python)
        (folder / "train.py").write_text(script)
        try:
            yield made
        finally:
            made.close()

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment of a machine, which is in the cluster."""
        home = make_home(self.folder / f"home{index}", self.root)
        named = {"RINGLEADER_HOME": str(home), "RINGLEADER_NAME": f"m{index}"}
        return {**os.environ, **named, "OMP_NUM_THREADS": "1"}

    def start(self, index: int, *argv: str, **variables: str) -> Command:
        """Start a command on a machine, with these environment variables."""
        command = Command(
            self._popen(index, argv, {**self.environment(index), **variables})
        )
        command.reader = threading.Thread(target=command.read, daemon=True)
        command.reader.start()
        self.commands.append(command)
        return command

    def _popen(
        self, index: int, argv: Sequence[str], env: dict[str, str]
    ) -> subprocess.Popen[str] | WarmProcess:
        host = self.net.hosts[index]
        if argv[0] == sys.executable:
            return self.python.popen(*argv[1:], env=env, namespace=host.name)
        return host.popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )

    def run(self, index: int, *argv: str, **variables: str) -> Command:
        """Start ``ringleader run`` on a machine."""
        return self.start(index, *RINGLEADER, "run", *argv, **variables)

    def close(self) -> None:
        """End everything that runs on the machines."""
        for host in self.net.hosts:
            host.kill_all()
        for command in self.commands:
            command.close()
