"""Programs as processes that skip the import of torch: forked from a warm interpreter.

A fresh ``python -c "import torch"`` spends 2.4 s of a core before it does anything. The
warm interpreter has imported torch and the commands, runs no thread, and forks on
request. Each program gets its own arguments, environment, streams and, on request,
network namespace. A script ends as any Python process does, but for ``spare_imports``,
and a command as ``leave`` says: to clear all that was imported takes half a second of a
core.

Test processes that run at once share what was imported: the first of them starts the
interpreter, which forks one for each test process that connects, and ends with the
first. When a test process dies, its own interpreter kills all its programs and ends.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import NoReturn, Self

MODULES = (
    "torch",
    "ringleader.backend.process_group",
    "ringleader.cli.main",
    "ringleader.cli.doctor",
    "ringleader.cli.jobs",
    "ringleader.cli.run",
    "ringleader.cli.run_command",
    "ringleader.cli.status",
    "ringleader.cli.up",
    "ringleader.cli.serve",
    "ringleader.cli.work",
    "ringleader.cli.evaluate",
    "ringleader.paramserver.evaluation",
    "ringleader.paramserver.server.http.http_server",
    "ringleader.paramserver.server.run",
    "ringleader.paramserver.worker.worker",
    "ringleader.node.agent.process",
    "ringleader.node.launch.elastic_agent",
    "torch._dynamo",  # the first step of any optimizer imports it, in 2 s
    "torch.distributed.run",
    "matplotlib.figure",
    "sklearn.datasets",
    "httpx2",
    "typer",
    "typer._adapters",  # where it exists: with pydantic, at the first option
    "uvicorn",
    "zeroconf",
)
WARM_UP_S = 500.0
ANSWER_S = 300.0
ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""No library may start threads before the fork: only the forking one survives it."""
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_BIND, MS_REC, MS_SLAVE, MNT_DETACH = 1 << 12, 1 << 14, 1 << 19, 2


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run as ``python ARGV``."""

    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str
    namespace: str = ""
    """Network namespace to enter, as named by ``ip netns``."""


class WarmProcess:
    """A running program, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, home: WarmPython, pid: int, output: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = open(output, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._home = home
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("warm program", timeout or 0)
            self.returncode = self._home.reap(self.pid)
            os.close(self._end)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end and return its output."""
        until_s = time.monotonic() + (timeout or ANSWER_S)
        if self.stdout.closed:
            return "", None
        said = bytearray()
        while part := self._read(until_s, said):
            said += part
        self.stdout.close()
        self.wait(max(0, until_s - time.monotonic()))
        return said.decode(errors="replace"), None

    def _read(self, until_s: float, so_far: bytearray) -> bytes:
        left_s = max(0, until_s - time.monotonic())
        if not select.select([self.stdout], [], [], left_s)[0]:
            raise subprocess.TimeoutExpired("warm program", left_s, bytes(so_far))
        return os.read(self.stdout.fileno(), 1 << 16)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """The warm interpreter; use it as a context, and from any thread."""

    def __init__(self, meeting: Path, modules: Sequence[str] = MODULES) -> None:
        """``meeting``: the path of a socket where test processes find it."""
        self._meeting = meeting
        self._modules = modules
        self._turn = threading.Lock()
        """Of the thread that has asked and waits for the answer."""
        self._first: subprocess.Popen[bytes] | None = None
        """The interpreter that this test process has started for all."""
        self._life: socket.socket | None = None
        """Its end tells that interpreter to end."""
        self._socket: socket.socket | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        if not self._connect():
            self._start()
            assert self._connect(), "the warm interpreter has died"
        return self

    def _connect(self) -> bool:
        """Return whether an interpreter answers at the meeting."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(self._meeting))
        except OSError:
            sock.close()
            return False
        self._socket = sock
        self._pipe = Connection(os.dup(sock.fileno()))
        if not self._pipe.poll(WARM_UP_S):
            raise AssertionError("the warm interpreter does not answer")
        try:
            self._pipe.recv()
        except (EOFError, OSError):  # it has just ended with its test process
            self._pipe.close()
            sock.close()
            return False
        return True

    def _start(self) -> None:
        self._life, theirs = socket.socketpair()
        code = f"from {__name__} import main; main()"
        mine = self._meeting.with_suffix(f".{os.getpid()}")
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(mine))
            listener.listen()
            mine.replace(self._meeting)  # who finds it there finds it listening
            fds = (theirs.fileno(), listener.fileno())
            self._first = subprocess.Popen(
                [sys.executable, "-c", code, *map(str, fds), *self._modules],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENV},
            )

    def __exit__(self, *_: object) -> None:
        if self._pipe and self._socket:
            self._socket.shutdown(socket.SHUT_WR)
            self._pipe.poll(ANSWER_S)  # until it has ended
            self._pipe.close()
            self._socket.close()
        if self._first and self._life:
            self._meeting.unlink(missing_ok=True)
            self._life.close()
            self._first.wait(ANSWER_S)

    def popen(
        self,
        *argv: str | Path,
        env: Mapping[str, str] | None = None,
        namespace: str = "",
    ) -> WarmProcess:
        """Start ``python ARGV``; its output and errors are one stream."""
        assert self._pipe is not None
        assert self._socket is not None
        words = tuple(map(str, argv))
        chosen = dict(os.environ if env is None else env)
        program = Program(words, chosen, os.getcwd(), namespace)
        output, theirs = os.pipe()
        with self._turn:
            socket.send_fds(self._socket, [b"F"], [theirs])
            os.close(theirs)
            self._pipe.send(program)
            pid = self._answer(ANSWER_S)
        return WarmProcess(self, pid, output)

    def reap(self, pid: int) -> int:
        """The exit status of a program that has ended."""
        assert self._pipe is not None
        assert self._socket is not None
        with self._turn:
            self._socket.send(b"R")
            self._pipe.send(pid)
            return self._answer(ANSWER_S)

    def _answer(self, within_s: float) -> int:
        assert self._pipe is not None
        if not self._pipe.poll(within_s):
            raise AssertionError("the warm interpreter does not answer")
        try:
            return int(self._pipe.recv())
        except EOFError:
            raise AssertionError("the warm interpreter has died") from None


# -- in the warm interpreter ---------------------------------------------------------


def main() -> None:
    """Import, fork one of us per test process, in that one on request, and run."""
    life, listener, *modules = sys.argv[1:]
    import_all(modules)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: all but one would be lost"
    sock = multiply(int(life), int(listener))
    born = serve(sock) if sock else None
    if born is None:
        os._exit(0)
    me = os.getpid()
    try:
        run(*born)
    except SystemExit as exc:  # a command tells its status
        if os.getpid() == me and isinstance(exc.code, int | None):
            leave(exc.code or 0)
        raise  # also workers, which are forks of a command


def multiply(life: int, listener: int) -> socket.socket | None:
    """Fork per connection; returns it in every fork, and nothing in the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test process decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks end with their test process
    with socket.socket(fileno=life), socket.socket(fileno=listener) as door:
        while life not in select.select([life, listener], [], [])[0]:
            sock, _ = door.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return sock
            sock.close()
    return None


def import_all(modules: Sequence[str]) -> None:
    """Import what forks share; none of them then touches, and so copies, every page."""
    atexit.register(spare_imports)  # before all others: it is called after them
    gc.disable()
    for name in modules:
        with suppress(ModuleNotFoundError):  # a program that needs it will say so
            importlib.import_module(name)
    gc.freeze()  # no collection looks at it
    gc.enable()
    _SHARED.update(sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_SHARED))


_SHARED: dict[str, ModuleType] = {}
"""Imported before the fork."""


def leave(status: int) -> NoReturn:
    """End with all that is registered for the end, and clear nothing."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def spare_imports() -> None:
    """Hide from the end of the interpreter what it would clear."""
    for name in _SHARED:
        if name not in ("sys", "builtins", "__main__"):
            sys.modules.pop(name, None)


def serve(sock: socket.socket) -> tuple[Program, int] | None:
    """Fork and reap as told; returns in every fork, and at the end in the parent."""
    pipe = Connection(os.dup(sock.fileno()))
    children: set[int] = set()
    pipe.send(0)
    while True:
        order, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if order == b"F":
            program = pipe.recv()
            pid = os.fork()
            if pid == 0:
                sock.close()
                pipe.close()
                return program, fds[0]
            os.close(fds[0])
            children.add(pid)
            pipe.send(pid)
        elif order == b"R":
            pid = pipe.recv()
            children.discard(pid)
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        else:
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return None


# -- in a program --------------------------------------------------------------------


def run(program: Program, output: int) -> None:
    """Become the program; the interpreter ends when this returns or raises."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    if program.namespace:
        enter(program.namespace)
    search(program.env.get("PYTHONPATH", ""), not_in=os.environ.get("PYTHONPATH", ""))
    os.environ.clear()
    os.environ.update(program.env)
    os.chdir(program.folder)
    first, *rest = program.argv
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = rest
        sys.modules.pop(rest[0], None)  # else a warning that it was imported before
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(first)
        runpy.run_path(first, run_name="__main__")


def search(folders: str, *, not_in: str) -> None:
    """Import from other folders, as an interpreter with another PYTHONPATH does."""
    left = [place for place in sys.path[1:] if place not in not_in.split(os.pathsep)]
    sys.path[1:] = [*filter(None, folders.split(os.pathsep)), *left]


def enter(namespace: str) -> None:
    """Do what ``ip netns exec`` does: with /sys and files of /etc of the namespace."""
    with open(f"/run/netns/{namespace}") as file:
        libc("setns", file.fileno(), CLONE_NEWNET)
    libc("unshare", CLONE_NEWNS)
    libc("mount", b"", b"/", None, MS_SLAVE | MS_REC, None)
    libc("umount2", b"/sys", MNT_DETACH)
    libc("mount", namespace.encode(), b"/sys", b"sysfs", 0, None)
    for path in Path("/etc/netns", namespace).iterdir():
        libc("mount", bytes(path), b"/etc/" + path.name.encode(), None, MS_BIND, None)


def libc(name: str, *args: int | bytes | None) -> None:
    """Call a function of the C library; ``OSError`` if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)
