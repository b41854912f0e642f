"""WorkerPool starts the worker processes of a command and always ends them.

Theory of operation. The parent listens in a private directory, starts processes and
waits until every rank has connected. Then it sends requests: one message to every rank,
one reply from each, one deadline for all. A worker without a request sleeps in
``recv``, so an idle pool costs no CPU. A worker that dies closes its socket, which the
parent sees at once, whatever the others are doing. Leaving the ``with`` block ends and
reaps every process, also after an error.
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
    PeerFailed,
    PeerLost,
    ProtocolError,
    RingleaderError,
)

_COLLECT_S = 1.0
"""How long to collect further failures after the first one: the death of a process
explains more than the error of its neighbour, which may arrive first."""

_EXIT_S = 5.0
"""How long a worker may take to exit before it is terminated, then killed."""

_LOG_TAIL_LINES = 15

Replies = list[Message]


class WorkerPool:
    """``size`` workers of one kind; a context manager for use by one thread."""

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
            is_healthy = kind is None and not self._is_broken
            self._stop_workers(grace_s=_EXIT_S if is_healthy else 0.0)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start(
        self,
        argv: Sequence[str],
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start one process; its output goes to a log, which error messages quote.

        It gets a session of its own, so that a Ctrl-C at the terminal reaches only the
        parent, which then ends its workers in order.
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

    def wait_connected(self, within_s: float) -> Replies:
        """Wait until every rank has connected; return their hellos in rank order."""
        assert self._listener is not None, "wait_connected() needs the with block"
        deadline = Deadline.after(within_s)
        hellos: dict[int, Message] = {}
        while len(hellos) < self.size:
            self._require_processes()
            if deadline.is_over():
                missing = sorted(set(range(self.size)) - set(hellos))
                self._raise_timeout(f"ranks {missing} did not start in {within_s:g} s")
            self._listener.settimeout(min(0.2, deadline.left_s() + 0.001))
            with suppress(TimeoutError):
                sock, _ = self._listener.accept()
                self._admit(JsonSocket(sock, self.title), hellos, deadline)
        return [hellos[rank] for rank in range(self.size)]

    def request(self, message: Message, within_s: float) -> Replies:
        """Send ``message`` to every rank and return their replies in rank order."""
        self.send_all(message)
        replies: dict[int, Message] = {}
        for rank, reply in self.receive(within_s):
            replies[rank] = reply
            if len(replies) == self.size:
                break
        return [replies[rank] for rank in range(self.size)]

    def send_all(self, message: Message) -> None:
        """Send ``message`` to every rank without waiting for replies."""
        for rank, control in self._controls.items():
            try:
                control.send(message, Deadline.after(_EXIT_S))
            except PeerLost:
                self._raise_failure({rank: "has ended"}, {rank})

    def receive(self, within_s: float) -> Iterator[tuple[int, Message]]:
        """Yield (rank, message) as messages arrive; each restarts the deadline.

        Raises on the first death or error of a worker, and after ``within_s`` without
        any message.
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
                    self._raise_timeout(f"no reply within {within_s:g} s")

    def _arrivals(
        self, selector: selectors.BaseSelector, deadline: Deadline
    ) -> list[tuple[int, Message]]:
        arrived: list[tuple[int, Message]] = []
        for key, _ in selector.select(deadline.left_s()):
            rank: int = key.data
            control = self._controls[rank]
            while (message := control.poll()) is not None:
                if "error" in message:
                    self._raise_failure({rank: str(message["error"])}, set())
                arrived.append((rank, message))
            if control.has_ended() and not arrived:
                self._raise_failure({rank: "has ended"}, {rank})
        return arrived

    def _admit(
        self, control: JsonSocket, hellos: dict[int, Message], deadline: Deadline
    ) -> None:
        hello = control.receive(deadline)
        if hello is None:
            control.close()
            return  # it died while starting; _require_processes raises
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
                what = (
                    f"ended while starting: {_exit_status(process)}{self._log_tail()}"
                )
                raise PeerLost(f"{self.title} worker", what)

    def _raise_timeout(self, what: str) -> NoReturn:
        self._is_broken = True
        raise DeadlineExceeded(self.title, f"{what}{self._log_tail()}")

    def _raise_failure(self, errors: dict[int, str], dead: set[int]) -> NoReturn:
        """Collect deaths and further errors for a moment, then raise what is known."""
        self._is_broken = True
        self._collect_failures(errors, dead, Deadline.after(_COLLECT_S))
        if dead:
            raise PeerLost(*self._describe_death(dead))
        first, *others = sorted(errors.items())
        lines = [first[1], *(f"{self._name(rank)}: {text}" for rank, text in others)]
        raise PeerFailed(self._name(first[0]), "\n".join(lines))

    def _collect_failures(
        self, errors: dict[int, str], dead: set[int], deadline: Deadline
    ) -> None:
        silent = {r: c for r, c in self._controls.items() if r not in errors}
        while silent and not deadline.is_over():
            ready, _, _ = select.select([*silent.values()], [], [], deadline.left_s())
            for rank, control in [(r, c) for r, c in silent.items() if c in ready]:
                message = control.poll()
                if message is not None and "error" in message:
                    errors[rank] = str(message["error"])
                elif control.has_ended():
                    errors[rank] = "has ended"
                    dead.add(rank)
            silent = {r: c for r, c in silent.items() if r not in errors}

    def _describe_death(self, dead: set[int]) -> tuple[str, str]:
        """Return the name of the dead worker and how it ended.

        Under a launcher (mpirun), which ends all ranks when one dies, it is the job.
        """
        launched = len(self._processes) < self.size
        first = min(dead)
        process = self._processes[0 if launched else first]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_COLLECT_S)
        how = f"has ended ({_exit_status(process)}){self._log_tail()}"
        if launched:
            return self.title, f"the job {how}"
        return self._name(first), f"the worker {how}"

    def _name(self, rank: int) -> str:
        return f"{self.title} rank {rank}"

    def _log(self, index: int) -> Path:
        return self.directory / f"worker-{index}.log"

    def _log_tail(self) -> str:
        """Return the last lines of the workers' output, for an error message."""
        errors: list[str] = []
        for index in range(len(self._processes)):
            with suppress(OSError):
                errors += self._log(index).read_text(errors="replace").splitlines()
        if not errors:
            return ""
        return "\n  " + "\n  ".join(errors[-_LOG_TAIL_LINES:])

    def _stop_workers(self, *, grace_s: float) -> None:
        """Ask every process to exit, then terminate, then kill it; reap all of them."""
        if grace_s:
            for control in self._controls.values():
                with suppress(RingleaderError):
                    control.send({"do": "leave"}, Deadline.after(0.1))
        self._wait(grace_s)
        for process in self._running():
            process.terminate()
        self._wait(2.0)
        if self._running():
            self._kill_ranks()
        for process in self._running():
            process.kill()
        self._wait(_EXIT_S)
        for control in self._controls.values():
            control.close()
        if self._listener is not None:
            self._listener.close()

    def _kill_ranks(self) -> None:
        """Kill the ranks of a launcher (mpirun), whose own death would orphan them.

        An open socket proves that the process id still belongs to the worker.
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


def _exit_status(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "still running, but its socket is closed"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
