"""``ForkServer``: starts workers by forking a process that has imported torch.

Importing torch takes 2.4 s of a core, and ``torch._dynamo``, which every optimizer
imports, 1.7 s more. The launcher needs torch itself. Right after importing it, it forks
this server, which imports the rest while the machines look for each other. Every worker
is a fork of the server; ``fork_client`` stands for it where torch's elastic agent
expects a process that it started. CUDA stays untouched before the fork.
"""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import select
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Self

from ringleader.node.launch import fork_client
from ringleader.node.launch.forked_worker import Request, become, receive

PRELOADED = ("torch._dynamo", "ringleader.backend.process_group")
"""What nearly every training program imports sooner or later."""
CLOSE_S = 2.0
"""Limit for the end of the server. While it imports, it has no workers to end."""


def can_fork() -> bool:
    """Return whether this system has what a fork server needs."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox that forbids it
        return False
    return True


@dataclass(slots=True)
class ForkServer:
    """The server, seen from the launcher that forked it."""

    _name: str
    """Name of its socket in Linux's abstract namespace, which needs no cleaning up."""
    _pid: int
    _lifeline: socket.socket
    """Nobody else holds this end: when it is closed, the launcher has ended."""

    @classmethod
    def start(cls, preloaded: Sequence[str] = PRELOADED) -> Self:
        """Fork the server; call it with torch imported, from the only thread.

        The server imports the modules ``preloaded`` before it forks workers. This
        returns in the launcher. In a worker it raises ``SystemExit`` when the program
        has ended, so that the interpreter ends as usual: the caller must hold nothing
        that leaving would close.
        """
        name, listening = _listen()
        ours, theirs = socket.socketpair()
        pid = _fork()
        if pid == 0:
            ours.close()
            _Server(listening, theirs).run(preloaded)
        listening.close()
        theirs.close()
        return cls(name, pid, ours)

    def command(self, worker: list[str]) -> list[str]:
        """Return the command that runs the command ``worker`` in a fork."""
        return fork_command(self._name, worker)

    def close(self) -> None:
        """End the server, and with it the workers that still run."""
        self._lifeline.close()
        server = os.pidfd_open(self._pid)
        if not select.select([server], [], [], CLOSE_S)[0]:
            os.kill(self._pid, signal.SIGKILL)
        os.close(server)
        os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fork_command(name: str, worker: list[str]) -> list[str]:
    """Return the command that runs ``worker`` in a fork of the server ``name``."""
    client = [sys.executable, "-I", "-S", fork_client.__file__]
    return [*client, name, *worker]


def serve_forks(
    lifeline: socket.socket, preloaded: Sequence[str], on_ready: Callable[[str], None]
) -> NoReturn:
    """Be a fork server until the other end of ``lifeline`` is closed.

    Then it takes no more workers, and ends with the last. ``on_ready`` is called with
    its name when the modules are imported.
    """
    name, listening = _listen()
    server = _Server(listening, lifeline)
    server.lets_workers_finish = True
    server.on_ready = lambda: on_ready(name)
    server.run(preloaded)


def _listen() -> tuple[str, socket.socket]:
    name = f"ringleader-fork-{secrets.token_hex(8)}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{name}")
    listening.listen()
    return name, listening


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of the idle threads of numpy's BLAS, which survives a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@dataclass(slots=True)
class _Worker:
    pid: int
    pidfd: int
    client: socket.socket


class _Server:
    def __init__(self, listening: socket.socket, lifeline: socket.socket) -> None:
        self._listening = listening
        self._lifeline = lifeline
        self._workers: dict[int, _Worker] = {}
        """By process id."""
        self._selector = selectors.DefaultSelector()
        self.lets_workers_finish = False
        """Whether workers go on when the lifeline is closed."""
        self.on_ready: Callable[[], None] = lambda: None
        self._is_ending = False

    def run(self, preloaded: Sequence[str]) -> NoReturn:
        """Serve until the launcher ends; in a worker, leave by ``SystemExit``."""
        server = os.getpid()
        try:
            self._serve(preloaded)
        except BaseException:
            if os.getpid() == server:
                traceback.print_exc()
                os._exit(1)  # the launcher above us on the stack must not go on twice
            raise

    def _serve(self, preloaded: Sequence[str]) -> NoReturn:
        # A signal to our process group is for the launcher. Workers let them pass.
        signal.pthread_sigmask(signal.SIG_BLOCK, fork_client.FORWARDED)
        gc.disable()  # it would take a sixth of the time of the imports
        for name in preloaded:
            with suppress(Exception):  # the program meets the same error, or none
                import_module(name)
        gc.freeze()  # else the collector would copy what the processes share
        atexit.register(_unfreeze)
        gc.enable()
        for each in (self._listening, self._lifeline):
            self._selector.register(each, selectors.EVENT_READ)
        self.on_ready()
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    self._accept()
                elif key.fileobj is self._lifeline:
                    self._on_lifeline()
                elif isinstance(key.fileobj, int):
                    self._reap(key.data)
                else:
                    self._forward(key.data)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        try:
            request = receive(client)
        except (OSError, ValueError):  # it was killed before it had asked
            client.close()
            return
        server = os.getpid()
        pid = _fork()
        if pid == 0:
            self._start(request, client, server)
        for stream in request.streams:
            os.close(stream)
        worker = _Worker(pid, os.pidfd_open(pid), client)
        self._workers[pid] = worker
        for source in (worker.pidfd, client):
            self._selector.register(source, selectors.EVENT_READ, worker)

    def _start(self, request: Request, client: socket.socket, server: int) -> NoReturn:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            elif isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        client.close()
        become(request, server)

    def _forward(self, worker: _Worker) -> None:
        """Pass signals on; if the client is gone, kill the worker and its children."""
        if worker.pid not in self._workers:
            return  # reaped a moment ago, in the same round of the loop
        try:
            numbers = worker.client.recv(64)
        except OSError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            _signal(worker.pid, number)
        if not numbers:
            self._selector.unregister(worker.client)

    def _on_lifeline(self) -> None:
        if not self.lets_workers_finish:
            self._end()
        self._is_ending = True
        for each in (self._listening, self._lifeline):
            self._selector.unregister(each)
            each.close()
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_ending and not self._workers:
            os._exit(0)

    def _end(self) -> NoReturn:
        """Kill the workers and their children: the kernel would kill workers only."""
        for pid in self._workers:
            _signal(pid, signal.SIGKILL)
        os._exit(0)

    def _reap(self, worker: _Worker) -> None:
        status = os.waitpid(worker.pid, 0)[1]
        del self._workers[worker.pid]
        with suppress(OSError):  # the client may be gone
            size = fork_client.STATUS_BYTES
            worker.client.sendall(status.to_bytes(size, "little"))
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        with suppress(KeyError):
            self._selector.unregister(worker.client)
        worker.client.close()
        self._end_if_idle()


def _unfreeze() -> None:
    """Let the end of the interpreter collect what was frozen, where it must.

    That takes a second of a core. triton 3.9 (torch 2.15) prints pages about its
    objects that were not collected.
    """
    if "triton" in sys.modules:
        gc.unfreeze()


def _signal(pid: int, number: int) -> None:
    """Signal a worker and its children; it leads its process group soon after fork."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
