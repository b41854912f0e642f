"""The worker processes of one command: started, asked, watched and always ended.

Theory of operation. The parent listens in a private directory, starts processes and
waits until every rank has said hello. From then on it asks questions: one message to
every rank, one answer from each, one deadline for all. A worker that is not asked
sleeps in ``recv``, so an idle crew costs no CPU. A worker that dies closes its line,
which the parent sees at once, whatever the others are doing. Leaving the ``with``
block ends and reaps every process, however it is left.
"""

from __future__ import annotations

import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from ringleader.cli.json_socket import JsonSocket, Message, listen
from ringleader.deadline import Deadline
from ringleader.errors import (
    DeadlineExceeded,
    PeerLost,
    ProtocolError,
    RingleaderError,
)

_GRACE_S = 1.0
"""After the first trouble, how long to collect others: the death of a process explains
more than its neighbour's complaint, which may come first."""

_POLITE_S = 5.0
"""How long a worker may take to leave before it is told, then forced to."""

_LOG_TAIL_LINES = 15

Answers = list[Message]


class WorkerPool:
    """``size`` workers of one kind. Used by one thread; a context manager."""

    def __init__(self, title: str, size: int) -> None:
        self.title = title
        self.size = size
        self.directory = Path()
        self.address = ""
        self._listener: socket.socket | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: dict[int, JsonSocket] = {}
        self._pids: dict[int, int] = {}
        self._is_broken = False

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="ringleader-"))
        self._listener, self.address = listen(self.directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            is_well = kind is None and not self._is_broken
            self._end(polite_s=_POLITE_S if is_well else 0.0)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start(
        self,
        argv: Sequence[str],
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start one process of the crew; its output goes to a log for error messages.

        The new session keeps a Ctrl-C at the terminal for the parent, which then ends
        its workers in order.
        """
        with self._log(len(self._processes)).open("wb") as log:
            process = popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )
        self._processes.append(process)

    def wait_connected(self, within_s: float) -> Answers:
        """Wait until every rank has connected; their hellos, in the order of ranks."""
        assert self._listener is not None, "welcome() before the with block"
        deadline = Deadline.after(within_s)
        hellos: dict[int, Message] = {}
        while len(hellos) < self.size:
            self._require_processes()
            if deadline.is_over():
                missing = sorted(set(range(self.size)) - set(hellos))
                self._raise_late(f"ranks {missing} did not start in {within_s:g} s")
            self._listener.settimeout(min(0.2, deadline.left_s() + 0.001))
            with suppress(TimeoutError):
                sock, _ = self._listener.accept()
                self._admit(JsonSocket(sock, self.title), hellos, deadline)
        return [hellos[rank] for rank in range(self.size)]

    def request(self, message: Message, within_s: float) -> Answers:
        """Send ``message`` to every rank and return their answers, by rank."""
        self.send_all(message)
        answers: dict[int, Message] = {}
        for rank, answer in self.receive(within_s):
            answers[rank] = answer
            if len(answers) == self.size:
                break
        return [answers[rank] for rank in range(self.size)]

    def send_all(self, message: Message) -> None:
        """Send ``message`` to every rank without waiting for answers."""
        for rank, control in self._controls.items():
            try:
                control.send(message, Deadline.after(_POLITE_S))
            except PeerLost:
                self._raise_trouble({rank: "is gone"}, {rank})

    def receive(self, within_s: float) -> Iterator[tuple[int, Message]]:
        """Messages as they come, from any rank; the deadline starts anew with each.

        Raises on the first death, error message, or silence of ``within_s``.
        """
        with selectors.DefaultSelector() as selector:
            for rank, control in self._controls.items():
                selector.register(control, selectors.EVENT_READ, rank)
            deadline = Deadline.after(within_s)
            while True:
                for rank, message in self._arrivals(selector, deadline):
                    yield rank, message
                    deadline = Deadline.after(within_s)
                if deadline.is_over():
                    self._raise_late(f"no answer within {within_s:g} s")

    def _arrivals(
        self, selector: selectors.BaseSelector, deadline: Deadline
    ) -> list[tuple[int, Message]]:
        arrived: list[tuple[int, Message]] = []
        for key, _ in selector.select(deadline.left_s()):
            rank: int = key.data
            control = self._controls[rank]
            while (message := control.poll()) is not None:
                if "error" in message:
                    self._raise_trouble({rank: str(message["error"])}, set())
                arrived.append((rank, message))
            if control.has_ended() and not arrived:
                self._raise_trouble({rank: "is gone"}, {rank})
        return arrived

    def _admit(
        self, control: JsonSocket, hellos: dict[int, Message], deadline: Deadline
    ) -> None:
        hello = control.receive(deadline)
        if hello is None:
            control.close()
            return  # it died while starting; _require_processes explains
        rank, pid = hello.get("rank"), hello.get("pid")
        if not isinstance(rank, int) or not isinstance(pid, int) or rank in hellos:
            raise ProtocolError(self.title, f"unexpected hello {hello}")
        control.peer = self._name(rank)
        self._controls[rank], self._pids[rank] = control, pid
        hellos[rank] = hello

    def _require_processes(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                self._is_broken = True
                what = f"ended while starting: {_ending(process)}{self._tail()}"
                raise PeerLost(f"{self.title} worker", what)

    def _raise_late(self, what: str) -> NoReturn:
        self._is_broken = True
        raise DeadlineExceeded(self.title, f"{what}{self._tail()}")

    def _raise_trouble(self, said: dict[int, str], dead: set[int]) -> NoReturn:
        """Wait a moment for deaths and further errors, then say all that is known."""
        self._is_broken = True
        self._collect_troubles(said, dead, Deadline.after(_GRACE_S))
        if dead:
            raise PeerLost(*self._obituary(dead))
        lines = [f"{self._name(rank)}: {text}" for rank, text in sorted(said.items())]
        raise RingleaderError("\n".join(lines))

    def _collect_troubles(
        self, said: dict[int, str], dead: set[int], deadline: Deadline
    ) -> None:
        silent = {
            rank: control
            for rank, control in self._controls.items()
            if rank not in said
        }
        while silent and not deadline.is_over():
            ready, _, _ = select.select(
                list(silent.values()), [], [], deadline.left_s()
            )
            for rank, control in [(r, x) for r, x in silent.items() if x in ready]:
                message = control.poll()
                if message is not None and "error" in message:
                    said[rank] = str(message["error"])
                elif control.has_ended():
                    said[rank] = "is gone"
                    dead.add(rank)
            silent = {
                rank: control for rank, control in silent.items() if rank not in said
            }

    def _obituary(self, dead: set[int]) -> tuple[str, str]:
        """Who died, and how; a launcher that ended all ranks knows which was first."""
        launched = len(self._processes) < self.size
        first = min(dead)
        process = self._processes[0 if launched else first]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        if launched:
            return self.title, f"the job is gone ({_ending(process)}){self._tail()}"
        how = _ending(process)
        return self._name(first), f"the worker is gone ({how}){self._tail()}"

    def _name(self, rank: int) -> str:
        return f"{self.title} rank {rank}"

    def _log(self, index: int) -> Path:
        return self.directory / f"worker-{index}.log"

    def _tail(self) -> str:
        """The last words of the workers, for an error message."""
        said: list[str] = []
        for index in range(len(self._processes)):
            with suppress(OSError):
                said += self._log(index).read_text(errors="replace").splitlines()
        if not said:
            return ""
        return "\n  " + "\n  ".join(said[-_LOG_TAIL_LINES:])

    def _end(self, *, polite_s: float) -> None:
        """Ask, then tell, then force every process to leave; reap all of them."""
        if polite_s:
            for control in self._controls.values():
                with suppress(RingleaderError):
                    control.send({"do": "leave"}, Deadline.after(0.1))
        self._wait(polite_s)
        for process in self._running():
            process.terminate()
        self._wait(2.0)
        if self._running():
            self._kill_ranks()
        for process in self._running():
            process.kill()
        self._wait(_POLITE_S)
        for control in self._controls.values():
            control.close()
        if self._listener is not None:
            self._listener.close()

    def _kill_ranks(self) -> None:
        """Kill ranks that a launcher (mpirun) holds: its own death would orphan them.

        An open line proves that the process id still belongs to the worker.
        """
        for rank, control in self._controls.items():
            control.poll()
            if not control.has_ended():
                with suppress(OSError):
                    os.kill(self._pids[rank], signal.SIGKILL)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]

    def _wait(self, within_s: float) -> None:
        deadline = Deadline.after(within_s)
        for process in self._running():
            with suppress(subprocess.TimeoutExpired):
                process.wait(deadline.left_s())


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "still running, but its line is closed"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
