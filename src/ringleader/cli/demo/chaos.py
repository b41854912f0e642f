"""``ringleader demo --chaos``: kills nodes of a run, which must not be noticed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ringleader.cli.demo.demo_machine import DemoMachine, pair
from ringleader.cli.demo.warm_python import PythonCommand, warm_python
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, PeerFailed

KILL_EVERY_S = 4.0
"""Time between kills; on a slow machine longer, until all nodes train again."""
PAUSE_S = 0.06
"""Sleep of one step, all quanta together: else the run would end before a kill."""
LIMIT_S = 600.0
GRACE_S = 20.0
"""How long nodes may take to end after the first one has."""
MAX_DIFFERENCE = 1e-3
_POLL_S = 0.1
_LOG_LINES = 15
_PROGRAM = str(Path(__file__).with_name("chaos_worker.py"))
"""Started by its path: a script may be forked, so that it comes back at once."""


@dataclass(slots=True)
class ChaosResult:
    """What the run and the reference have shown."""

    reference: dict[int, float] = field(default_factory=dict)
    """Loss on the test digits by step."""
    run: dict[int, float] = field(default_factory=dict)
    worker_kills: int = 0
    machine_kills: int = 0
    killed_at: list[int] = field(default_factory=list)
    """Steps at which a kill came."""
    disagreements: int = 0
    """Steps at which two nodes reported different losses."""
    seconds: float = 0.0
    phase: str = "importing torch, once for all"
    """What is waited for."""
    steps: int = 0
    """Steps of the whole run; 0 until a node has begun."""

    @property
    def left_s(self) -> float | None:
        """Estimated time until the last step; None while there is nothing to go by."""
        done = max(self.run, default=0)
        if not done or not self.seconds:
            return None
        return (self.steps - done) * self.seconds / done

    @property
    def largest_difference(self) -> float:
        """Largest difference between the two curves."""
        both = self.reference.keys() & self.run.keys()
        return max((abs(self.reference[s] - self.run[s]) for s in both), default=0.0)

    def failures(self) -> list[str]:
        """List the checks that failed."""
        found = []
        missing = len(self.reference.keys() - self.run.keys())
        if missing or self.run.keys() - self.reference.keys():
            steps = f"{len(self.run)} steps instead of {len(self.reference)}"
            found.append(f"the run had {steps}")
        if not self.largest_difference <= MAX_DIFFERENCE:
            text = f"differs by {self.largest_difference:.1e} from the uninterrupted"
            found.append(f"the loss curve {text} one, limit {MAX_DIFFERENCE:g}")
        if self.disagreements:
            found.append(f"nodes disagree about the loss of {self.disagreements} steps")
        return found

    def lines(self) -> list[str]:
        """Describe the run in sentences."""
        kills = self.worker_kills + self.machine_kills
        return [
            f"Killed {kills} nodes with SIGKILL in {self.seconds:.0f} s: "
            f"{self.worker_kills} times the worker, {self.machine_kills} times all of "
            "its processes. Each was started again, to join the run.",
            f"The run has {len(self.run)} steps, as the uninterrupted one; largest "
            f"difference of the loss: {self.largest_difference:.1e} (limit "
            f"{MAX_DIFFERENCE:g}).",
        ]


OnProgress = Callable[[ChaosResult], None]


class ChaosDemo:
    """Three nodes, each with its own ``ringleader run --survive``, and their killer."""

    def __init__(
        self, nodes: int, epochs: int, folder: Path, on_progress: OnProgress
    ) -> None:
        self._machines, _ = pair(nodes, folder)
        self._python: PythonCommand | None = None
        self._epochs = epochs
        self._folder = folder / "steps"
        self._alone = folder / "alone"
        self._logs = folder
        self._on_progress = on_progress
        self._commands: dict[str, subprocess.Popen[bytes]] = {}
        self._random = random.Random(1)
        self._grace: Deadline | None = None
        self._sizes: dict[int, int] = {}
        """Number of nodes by step."""
        self.result = ChaosResult()

    def run(self) -> ChaosResult:
        """Train with kills, beside the reference, and return what was seen."""
        for folder in (self._folder, self._alone):
            folder.mkdir(parents=True)
        with warm_python(self._logs / "imports.log", self._tell) as python:
            return self._run(python)

    def _tell(self) -> None:
        self._on_progress(self.result)

    def _run(self, python: PythonCommand) -> ChaosResult:
        self._python = python
        reference = self._start_reference()
        try:
            for machine in self._machines:
                self._start(machine)
            self._follow()
            self._wait_for_reference(reference)
            self._read()
        finally:
            reference.kill()
            reference.wait()
            for command in self._commands.values():
                command.kill()
                command.wait()
        return self.result

    def _wait_for_reference(self, reference: subprocess.Popen[bytes]) -> None:
        deadline = Deadline.after(LIMIT_S)
        while reference.poll() is None:
            if deadline.is_over():
                text = f"not finished within {LIMIT_S:g} s; {self._tail('reference')}"
                raise DeadlineExceeded("the run without failures", text)
            time.sleep(_POLL_S)
            self._read()
            done = max(self.result.reference, default=0)
            self.result.phase = (
                "waiting for the run without failures: "
                f"step {done} of {self.result.steps}"
            )
            self._tell()
        if reference.returncode != 0:
            raise PeerFailed("the run without failures", self._tail("reference"))

    def _start_reference(self) -> subprocess.Popen[bytes]:
        assert self._python is not None, "started with torch imported"
        argv = self._python(_PROGRAM, str(self._alone), str(self._epochs), "0")
        with (self._logs / "reference.log").open("ab") as log:
            return subprocess.Popen(argv, stdout=log, stderr=log)

    def _start(self, machine: DemoMachine) -> None:
        """Run the same command as on every machine."""
        assert self._python is not None, "started with torch imported"
        argv = self._python(
            *("-m", "ringleader.cli.main", "run", "--survive"),
            *("--nodes", str(len(self._machines)), _PROGRAM),
            *(str(self._folder), str(self._epochs), str(PAUSE_S)),
        )
        with (self._logs / f"{machine.name}.log").open("ab") as log:
            self._commands[machine.name] = subprocess.Popen(
                argv, env=machine.environment(), stdout=log, stderr=log
            )

    def _follow(self) -> None:
        """Read and kill until all commands have ended."""
        deadline, next_kill_s = Deadline.after(LIMIT_S), 0.0
        began_s = 0.0
        while not self._has_ended():
            if deadline.is_over():
                text = f"not finished within {LIMIT_S:g} s; {self._tail()}"
                raise DeadlineExceeded("the nodes of the demo", text)
            time.sleep(_POLL_S)
            self._check()
            self._read()
            now_s = time.monotonic()
            if self.result.run and not began_s:
                began_s, next_kill_s = now_s, now_s + KILL_EVERY_S
            if began_s and now_s >= next_kill_s and self._kill():
                next_kill_s = now_s + KILL_EVERY_S
            self.result.seconds = now_s - began_s if began_s else 0.0
            self.result.phase = self._phase()
            self._tell()

    def _phase(self) -> str:
        if self._grace is not None:
            return "waiting for the last node to end"
        if self.result.run:
            return "training"
        begun = {file.name.rpartition("-")[0] for file in self._folder.iterdir()}
        size = len(self._machines)
        return f"starting {size} nodes, which look for each other: {len(begun)} ready"

    def _has_ended(self) -> bool:
        """Return whether the run is over on all nodes that are in it.

        One that was killed and came back too late waits for a next run.
        """
        codes = [command.poll() for command in self._commands.values()]
        if 0 in codes and self._grace is None:
            self._grace = Deadline.after(GRACE_S)
        is_late = self._grace is not None and self._grace.is_over()
        return is_late or None not in codes

    def _check(self) -> None:
        for name, command in self._commands.items():
            if command.poll() not in (None, 0):
                raise PeerFailed(
                    name, f"exit status {command.returncode}; {self._tail(name)}"
                )

    def _kill(self) -> bool:
        """Kill a worker, and every third time all processes of a node."""
        alive = [m for m in self._machines if self._commands[m.name].poll() is None]
        if len(alive) < len(self._machines) or self._is_ending() or not self._is_full():
            return False
        machine = self._random.choice(alive)
        worker = self._newest_worker(machine)
        if worker is None:
            return False
        self.result.killed_at.append(max(self.result.run, default=0))
        if len(self.result.killed_at) % 3:
            self.result.worker_kills += 1
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            return True
        self.result.machine_kills += 1
        self._commands[machine.name].kill()  # its processes end with it
        self._commands[machine.name].wait()
        self._start(machine)
        return True

    def _is_full(self) -> bool:
        """Return whether all nodes train: the one killed before has come back."""
        return bool(self._sizes) and self._sizes[max(self._sizes)] == len(
            self._machines
        )

    def _is_ending(self) -> bool:
        """Leave the last tenth alone: who is killed there cannot join any more."""
        return max(self.result.run, default=0) > 0.9 * self.result.steps

    def _newest_worker(self, machine: DemoMachine) -> int | None:
        """Return the process id of a machine's worker that has taken a step."""
        files = sorted(
            self._folder.glob(f"{machine.name}-*"), key=lambda f: f.stat().st_mtime
        )
        if not files or len(files[-1].read_text().split()) < 2:  # no step yet
            return None
        return int(files[-1].name.rpartition("-")[2])

    def _read(self) -> None:
        for file in self._alone.iterdir():
            self.result.reference |= {step: loss for step, loss, _ in _steps(file)}
        disagreements = set()
        for file in self._folder.iterdir():
            self.result.steps = self.result.steps or _total(file)
            for step, loss, size in _steps(file):
                self._sizes[step] = size
                if self.result.run.setdefault(step, loss) != loss:
                    disagreements.add(step)
        self.result.disagreements = len(disagreements)

    def _tail(self, *names: str) -> str:
        """Return the last lines that nodes have printed."""
        shown = []
        for name in names or [machine.name for machine in self._machines]:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
            shown += [f"{name}: {line}" for line in text.splitlines()[-_LOG_LINES:]]
        return "it printed:\n" + "\n".join(shown)


def _total(file: Path) -> int:
    """Return the number of steps of the whole run, 0 if it is not written yet."""
    first, newline, _ = file.read_text(encoding="utf-8").partition("\n")
    return int(first) if newline else 0


def _steps(file: Path) -> Iterator[tuple[int, float, int]]:
    """Yield step, loss and number of nodes; a line that is not complete is left out."""
    *lines, _ = file.read_text(encoding="utf-8").split("\n")
    for line in lines:
        words = line.split()
        if len(words) == 3:
            yield int(words[0]), float(words[1]), int(words[2])


def run_chaos(nodes: int, epochs: int, on_progress: OnProgress) -> ChaosResult:
    """Run the demo in a temporary folder."""
    with TemporaryDirectory() as folder:
        return ChaosDemo(nodes, epochs, Path(folder), on_progress).run()
