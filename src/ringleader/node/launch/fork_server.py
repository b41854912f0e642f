"""``ForkServer``: starts workers by forking a process that has imported torch.

Importing torch takes 2.4 s of a core, and ``torch._dynamo``, which every optimizer
imports, 1.7 s more. The launcher needs torch itself. Right after importing it, it forks
this server, which imports the rest while the machines look for each other. Every worker
is a fork of the server; ``fork_client`` stands for it where torch's elastic agent
expects a process that it started. CUDA stays untouched before the fork.
"""

from __future__ import annotations

import gc
import os
import secrets
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Self

from ringleader.node.launch import fork_client
from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from ringleader.node.launch.forked_worker import Request, become, receive

PRELOADED = ("torch._dynamo", "ringleader.backend.process_group")
"""What nearly every training program imports sooner or later."""


def can_fork() -> bool:
    """Return whether this system has what a fork server needs."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


@dataclass(slots=True)
class ForkServer:
    """The server, seen from the launcher that forked it."""

    _name: str
    """Name of its socket in Linux's abstract namespace, which needs no cleaning up."""
    _pid: int

    @classmethod
    def start(cls, preloaded: Sequence[str] = PRELOADED) -> Self:
        """Fork the server; call it with torch imported, from the only thread.

        The server imports the modules ``preloaded`` before it forks workers. This
        returns in the launcher. In a worker it raises ``SystemExit`` when the program
        has ended, so that the interpreter ends as usual: the caller must hold nothing
        that leaving would close.
        """
        name = f"ringleader-fork-{secrets.token_hex(8)}"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(f"\0{name}")
        listening.listen()
        launcher = os.getpid()
        pid = _fork()
        if pid == 0:
            _Server(listening).run(launcher, preloaded)
        listening.close()
        return cls(name, pid)

    def command(self, worker: list[str]) -> list[str]:
        """Return the command that runs the command ``worker`` in a fork."""
        client = [sys.executable, "-I", "-S", fork_client.__file__]
        return [*client, self._name, *worker]

    def close(self) -> None:
        """End the server, and with it the workers that still run."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._selector = selectors.DefaultSelector()

    def run(self, launcher: int, preloaded: Sequence[str]) -> NoReturn:
        """Serve until the launcher ends; in a worker, leave by ``SystemExit``."""
        server = os.getpid()
        try:
            self._serve(launcher, preloaded)
        except BaseException:
            if os.getpid() == server:
                traceback.print_exc()
                os._exit(1)  # the launcher above us on the stack must not go on twice
            raise

    def _serve(self, launcher: int, preloaded: Sequence[str]) -> NoReturn:
        kill_on_death_of_parent(launcher)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
        gc.disable()  # it would take a sixth of the time of the imports
        for name in preloaded:
            with suppress(Exception):  # the program meets the same error, or none
                import_module(name)
        gc.freeze()  # else the collector would copy what the processes share
        gc.enable()
        self._selector.register(self._listening, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    self._accept()
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
        try:
            numbers = worker.client.recv(64)
        except OSError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            _signal(worker.pid, number)
        if not numbers:
            self._selector.unregister(worker.client)

    def _reap(self, worker: _Worker) -> None:
        status = os.waitpid(worker.pid, 0)[1]
        with suppress(OSError):  # the client may be gone
            size = fork_client.STATUS_BYTES
            worker.client.sendall(status.to_bytes(size, "little"))
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        with suppress(KeyError):
            self._selector.unregister(worker.client)
        worker.client.close()


def _signal(pid: int, number: int) -> None:
    """Signal a worker and its children; it leads its process group soon after fork."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)
