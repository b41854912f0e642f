"""``OutputSocket``: gives each worker of a job its own output, and reads it.

A worker says its rank and gets the writing end of a pipe, or of a terminal if it is
rank 0 of a job that was started from one. What it writes goes to the log of its rank.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.jobs.protocol.job_spec import TerminalSize
from ringleader.node.protocol.socket_path import short_path

READ_BYTES = 64 << 10
ASK_S = 120.0
MAX_RANK = 1 << 19

OnOutput = Callable[[str, bytes], None]


@dataclass(slots=True)
class OutputSocket:
    """Listens in the job's folder. Lives on the supervisor's event loop."""

    path: Path
    terminal: TerminalSize | None
    on_output: OnOutput
    """Called with the name of a log and what was written."""
    _listener: socket.socket | None = None
    _readers: dict[int, str] = field(default_factory=dict)
    """Reading ends -> name of the log."""
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def listen(self) -> None:
        """Open the socket, for this user only: its folder is private."""
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        self._listener = sock
        with short_path(self.path) as address:
            sock.bind(address)
        sock.listen(64)
        self._start(self._accept(sock))

    def read_from(self, descriptor: int, log: str) -> None:
        """Read until its end what arrives at ``descriptor``; closes it."""
        os.set_blocking(descriptor, False)
        self._readers[descriptor] = log
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._on_readable, descriptor)

    async def drain(self, within_s: float) -> None:
        """Read what is left; some process may hold an end open for ever."""
        try:
            async with asyncio.timeout(within_s):
                while self._readers:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Close everything and remove the socket."""
        for task in self._tasks:
            task.cancel()
        for descriptor in list(self._readers):
            self._forget(descriptor)
        if self._listener is not None:
            self._listener.close()
            self.path.unlink(missing_ok=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            worker, _ = await loop.sock_accept(listener)
            worker.setblocking(False)
            self._start(self._answer(worker))

    async def _answer(self, worker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with worker:
            try:
                async with asyncio.timeout(ASK_S):
                    said = await loop.sock_recv(worker, 32)
                rank = int(said)
            except (OSError, ValueError, TimeoutError):
                return
            if not 0 <= rank < MAX_RANK:
                return
            ours, theirs = _open_output(self.terminal if rank == 0 else None)
            try:
                socket.send_fds(worker, [b"+"], [theirs])
            except OSError:
                os.close(ours)
                return
            finally:
                os.close(theirs)
            self.read_from(ours, f"rank-{rank}")

    def _on_readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose other end is closed: EIO
            data = b""
        if data:
            self.on_output(self._readers[descriptor], data)
        else:
            self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        del self._readers[descriptor]
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._ended.set()


def _open_output(terminal: TerminalSize | None) -> tuple[int, int]:
    """Return the reading and the writing end of a pipe, or of a terminal."""
    if terminal is None:
        return os.pipe()
    import pty
    import termios
    import tty

    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # no echo, and newlines stay as they are
    termios.tcsetwinsize(theirs, (terminal.rows, terminal.columns))
    return ours, theirs
