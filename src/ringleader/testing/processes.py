"""Ranks in real processes, which tests kill and stop.

The fork server is a process that has imported torch and never starts a thread. Forking
a rank from it takes milliseconds where a fresh interpreter takes seconds. It is also
the parent of the ranks: a rank that ended stays a zombie until the fork server reaps
it, so a process id that a test kills never belongs to another process. When the test
process dies, the fork server reads the end of its socket, kills all ranks and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NoReturn, Self

import torch

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, InternalError
from ringleader.groups.formation import group as form_group
from ringleader.groups.group import Group
from ringleader.groups.group_registry import close_open_groups
from ringleader.transport.free_ports import free_ports

Ready = Callable[[], None]
Body = Callable[..., object]
"""body(group, ready, *args), defined at the top of a module."""

WARM_UP_S = 200.0
FORM_S = 90.0
REAP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankSpec:
    """Everything a new rank needs to form its group and run its body."""

    path: str
    """The file that defines the body; test modules have no importable name."""
    name: str
    args: tuple[Any, ...]
    peers: tuple[str, ...]
    rank: int
    transport: str
    timeout_s: float
    env: dict[str, str]


class Rank:
    """One rank in a process of its own, seen from the test."""

    def __init__(self, rank: int, pid: int, pipe: Connection) -> None:
        self.rank = rank
        self.pid = pid
        self.ended_at_s = 0.0
        """When the body returned or raised, on ``time.monotonic`` of this machine."""
        self._pipe = pipe
        self._is_ready = False
        self._outcome: tuple[bool, Any] | None = None

    def wait_ready(self, within_s: float) -> None:
        """Return when the body has called ``ready()``."""
        deadline = Deadline.after(within_s)
        while not self._is_ready:
            self._listen(deadline, "did not call ready()")
            if self._outcome is not None and not self._is_ready:
                raise AssertionError(
                    f"rank {self.rank} ended early: {self._outcome[1]!r}"
                )

    def kill(self) -> float:
        """Send SIGKILL, as a power failure; return the time."""
        return self._signal(signal.SIGKILL)

    def stop(self) -> float:
        """Send SIGSTOP: the rank lives, but is silent; return the time."""
        return self._signal(signal.SIGSTOP)

    def cont(self) -> float:
        """Send SIGCONT: the rank goes on where it was stopped; return the time."""
        return self._signal(signal.SIGCONT)

    def result(self, within_s: float) -> Any:  # noqa: ANN401 - whatever the body returns
        """Return the result of the body, or raise its exception."""
        failed, value = self._end(within_s)
        if failed:
            raise value
        return value

    def error(self, within_s: float) -> BaseException:
        """Return the exception of the body; AssertionError if it returned a result."""
        failed, value = self._end(within_s)
        if not failed:
            raise AssertionError(
                f"rank {self.rank} returned {value!r} and raised nothing"
            )
        assert isinstance(value, BaseException)
        return value

    def close(self) -> None:
        """Close the pipe to the rank."""
        self._pipe.close()

    def _signal(self, number: signal.Signals) -> float:
        os.kill(self.pid, number)
        return time.monotonic()

    def _end(self, within_s: float) -> tuple[bool, Any]:
        deadline = Deadline.after(within_s)
        while self._outcome is None:
            self._listen(deadline, "has not ended")
        return self._outcome

    def _listen(self, deadline: Deadline, what: str) -> None:
        """Receive one message of the rank."""
        if not self._pipe.poll(deadline.left_s()):
            self._signal(signal.SIGUSR1)  # it prints where it is
            raise DeadlineExceeded(self.rank, f"{what} within {deadline.after_s} s")
        try:
            kind, at_s, value = self._pipe.recv()
        except (EOFError, OSError):
            text = f"rank {self.rank} died without a word"
            kind, at_s, value = "error", time.monotonic(), InternalError(text)
        if kind == "ready":
            self._is_ready = True
        else:
            self.ended_at_s = at_s
            self._outcome = (kind == "error", value)


class ForkServer:
    """Client of the process that ranks are forked from; usable for many worlds."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from {__name__} import serve; serve({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._socket = ours
        self._pipe = Connection(os.dup(ours.fileno()))
        self._answer(WARM_UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe and self._socket and self._process:
            self._pipe.close()
            self._socket.close()
            try:
                self._process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(REAP_S)

    def fork(self, spec: _RankSpec) -> Rank:
        """Start one rank."""
        assert self._socket is not None
        assert self._pipe is not None
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._socket, [b"F"], [theirs.fileno()])
            self._pipe.send(spec)
            pid = self._answer(WARM_UP_S)  # the first of a file imports it
            return Rank(spec.rank, pid, Connection(os.dup(ours.fileno())))

    def reap(self, ranks: Sequence[Rank]) -> None:
        """Kill the ranks that still run and wait for their end."""
        assert self._socket is not None
        assert self._pipe is not None
        self._socket.send(b"R")
        self._pipe.send([rank.pid for rank in ranks])
        self._answer(REAP_S)
        for rank in ranks:
            rank.close()

    def _answer(self, within_s: float) -> int:
        assert self._pipe is not None
        if not self._pipe.poll(within_s):
            raise InternalError(f"the fork server has not answered within {within_s} s")
        try:
            return int(self._pipe.recv())
        except EOFError:
            raise InternalError("the fork server has died") from None


@contextlib.contextmanager
def spawn_ranks(
    size: int,
    body: Body,
    *args: object,
    transport: str = "tcp",
    timeout_s: float = 60.0,
    fork_server: ForkServer | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[Rank]]:
    """Start ``size`` processes that form a group and run ``body(group, ready, *args)``.

    ``transport``: "tcp", "shm" or "grpc". ``timeout_s`` is the group's. ``env`` is
    added to the environment of each process. Every process has ended and been reaped
    when the block ends, however it ends. Without a ``fork_server`` one is started for
    this world only, which takes the time to import torch.
    """
    with contextlib.ExitStack() as stack:
        home = fork_server or stack.enter_context(ForkServer())
        peers = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
        ranks: list[Rank] = []
        stack.callback(lambda: home.reap(ranks))
        for rank in range(size):
            spec = _RankSpec(
                path=body.__code__.co_filename,
                name=body.__name__,
                args=args,
                peers=peers,
                rank=rank,
                transport=transport,
                timeout_s=timeout_s,
                env=dict(env or {}),
            )
            ranks.append(home.fork(spec))
        yield ranks


# -- inside the fork server ----------------------------------------------------------


def serve(fd: int) -> None:
    """Run the fork server: fork and reap as told over the socket ``fd``."""
    torch.set_num_threads(1)  # a thread would not survive the fork, its locks would
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test process decides
    sock = socket.socket(fileno=fd)
    pipe = Connection(os.dup(fd))
    modules: dict[str, ModuleType] = {}
    children: set[int] = set()
    try:
        pipe.send(0)
        while True:
            order, fds, _, _ = socket.recv_fds(sock, 1, 1)
            if not order:
                return
            if order == b"F":
                pid = _fork(pipe.recv(), fds[0], modules, [sock, pipe])
                children.add(pid)
                pipe.send(pid)
            else:
                pids = pipe.recv()
                _reap(pids)
                children.difference_update(pids)
                pipe.send(0)
    finally:
        _reap(children)


def _fork(
    spec: _RankSpec,
    fd: int,
    modules: dict[str, ModuleType],
    ours: Sequence[socket.socket | Connection],
) -> int:
    """Fork a rank that reports to ``fd``; return its process id."""
    if spec.path not in modules:
        modules[spec.path] = _load(spec.path)
    body = getattr(modules[spec.path], spec.name)
    pid = os.fork()
    if pid == 0:
        for each in ours:
            each.close()
        _live(spec, body, Connection(fd))
    os.close(fd)
    return pid


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bodies_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _reap(pids: Collection[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # ends stopped processes as well
    for pid in pids:
        os.waitpid(pid, 0)


def _live(spec: _RankSpec, body: Body, pipe: Connection) -> NoReturn:
    """Run a rank; never returns into the loop of the fork server."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.environ.update(spec.env)
        faulthandler.register(signal.SIGUSR1)
        pipe.send(_outcome(spec, body, pipe))
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may get out of the fork
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _outcome(
    spec: _RankSpec, body: Body, pipe: Connection
) -> tuple[str, float, object]:
    """Run the body; return "result" or "error", the time, the value or exception."""
    group: Group | None = None
    try:
        group = form_group(
            spec.peers,
            spec.rank,
            transport="auto" if spec.transport == "shm" else spec.transport,
            config=CollectiveConfig(timeout_s=spec.timeout_s),
            timeout_s=FORM_S,
        )
        value = body(
            group, lambda: pipe.send(("ready", time.monotonic(), None)), *spec.args
        )
        return "result", time.monotonic(), value
    except Exception as exc:  # noqa: BLE001 - handed to the test
        return "error", time.monotonic(), _portable(exc)
    finally:
        if group is not None:
            group.close()
            close_open_groups()  # which the exit of the process skips


def _portable(exc: Exception) -> Exception:
    """Return the exception if it survives pickling, else an error with its text."""
    try:
        pickle.loads(pickle.dumps(exc))
    except Exception:  # noqa: BLE001 - any class may refuse in its own way
        return InternalError("".join(traceback.format_exception(exc)))
    return exc
