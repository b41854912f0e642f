"""The threads of a helped link, and the connections they use.

Who owns a connection follows from counts: a helper while it has work that is not done,
the thread of the engine otherwise. A helper that receives never reads further than the
engine has asked, and writes to a buffer of its own. One that sends reads the caller's
bytes, which count as sent only once the kernel has them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.socket_link import STRIPE_BYTES, SocketLink

_T = TypeVar("_T")

AHEAD_BYTES = 1 << 20
"""Most bytes that a helper receives ahead of the engine; whole stripes, and as much as
an engine asks for at once."""
REPORT_BYTES = 128 << 10
"""Helpers wake the engine after so many bytes, or when they have to wait themselves:
less often would leave its core idle, more often would take the GIL from helpers."""
IDLE_S = 1.0
"""A helper ends after this long without work, and starts again with the next."""
NAP_S = 0.05
"""The longest sleep before a helper looks whether the link was closed."""


def turn_at(items: Sequence[_T], position: int) -> tuple[_T, int]:
    """Return whose turn it is at a position of a stream, and for how many bytes."""
    stripe, offset = divmod(position, STRIPE_BYTES)
    return items[stripe % len(items)], STRIPE_BYTES - offset


class Helper:
    """A thread that does one job after another, in order, while there are any.

    ``put`` and ``stop`` are for the thread of the engine.
    """

    def __init__(self, name: str, do: Callable[[Any], None]) -> None:
        self._name = name
        self._do = do
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: object) -> None:
        """Add a job; start the thread if it is not running."""
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread = thread
                thread.start()

    def stop(self) -> None:
        """End the thread; jobs must end soon by themselves."""
        with self._lock:
            thread = self._thread
            self._jobs.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            if job is None:
                return
            self._do(job)


class Inlet:
    """One incoming connection, and the bytes that a helper received from it ahead."""

    def __init__(self, link: SocketLink, report: Callable[[], None]) -> None:
        self.link = link
        self.failure: Exception | None = None
        self.is_closed = False
        self.asked = self.received = self.taken = 0
        """Bytes that the helper was asked for, that are here, that the engine has."""
        self._report = report
        self._helper = Helper(f"ringleader-decrypt-{link.peer}", self._receive)
        self._ring = np.empty(0, np.uint8)

    def ask(self, num_bytes: int) -> bool:
        """Let the helper receive the next bytes; False if there is no room."""
        if self.asked + num_bytes > self.taken + AHEAD_BYTES:
            return False
        if not len(self._ring):
            self._ring = np.empty(AHEAD_BYTES, np.uint8)
        # From here on, the connection is the helper's until all of it has arrived.
        to_end = min(num_bytes, AHEAD_BYTES - self.asked % AHEAD_BYTES)
        self.asked += num_bytes
        self._helper.put(to_end)
        if to_end < num_bytes:
            self._helper.put(num_bytes - to_end)
        return True

    def take(self, view: memoryview) -> int:
        """Copy what has arrived, up to the end of the buffer."""
        start = self.taken % AHEAD_BYTES
        count = min(len(view), self.received - self.taken, AHEAD_BYTES - start)
        if count:
            target = np.frombuffer(view[:count], np.uint8)
            np.copyto(target, self._ring[start : start + count])
            self.taken += count
        return count

    def _receive(self, num_bytes: int) -> None:
        """The helper's job, which ends at the end of the buffer at the latest."""
        start, silent = self.received % AHEAD_BYTES, 0
        view = self._ring.data[start : start + num_bytes]
        while view and self.failure is None and not self.is_closed:
            try:
                count = self.link.try_recv_into(view)
            except Exception as exc:  # noqa: BLE001 - raised by the engine's thread
                self.failure, silent = exc, 1
                count = 0
            view = view[count:]
            silent += count
            self.received += count
            if silent and (not count or not view or silent >= REPORT_BYTES):
                self._report()
                silent = 0
            if not count and self.failure is None and not self.link.has_pending():
                wait_ready([(self.link.sock.fileno(), POLLIN)], NAP_S)

    def close(self) -> None:
        """End the helper, then the connection."""
        self.is_closed = True
        if self.received < self.asked:
            _wake(self.link.sock)
        self._helper.stop()
        self.link.close()


class Outlet:
    """The outgoing connections, and the bytes that a helper has been given."""

    def __init__(self, links: Sequence[SocketLink], report: Callable[[], None]) -> None:
        self.failure: Exception | None = None
        self.is_closed = False
        self.given = self.sent = 0
        """Bytes given to the helper, and those of them that it has sent."""
        self._links = links
        self._report = report
        self._helper = Helper(f"ringleader-encrypt-{links[0].peer}", self._send)

    def at(self, position: int) -> tuple[SocketLink, int]:
        """Return the connection at a position, and how many bytes it takes."""
        return turn_at(self._links, position)

    def give(self, view: memoryview, position: int) -> None:
        """Let the helper send more. It reads ``view`` until that counts as sent."""
        while view:
            link, room = self.at(position)
            part = view[:room]
            self.given += len(part)
            self._helper.put((link, part))
            view = view[len(part) :]
            position += len(part)

    def _send(self, job: tuple[SocketLink, memoryview]) -> None:
        """The helper's job."""
        link, view = job
        silent = 0
        while view and self.failure is None and not self.is_closed:
            try:
                count = link.try_send(view)
            except Exception as exc:  # noqa: BLE001 - raised by the engine's thread
                self.failure, silent = exc, 1
                count = 0
            view = view[count:]
            silent += count
            self.sent += count
            if silent and (not count or not view or silent >= REPORT_BYTES):
                self._report()
                silent = 0
            if not count and self.failure is None:
                wait_ready([(link.sock.fileno(), POLLOUT)], NAP_S)

    def close(self) -> None:
        """End the helper, then the connections; what counts as sent still arrives."""
        self.is_closed = True
        if self.sent < self.given:
            for link in self._links:
                _wake(link.sock)
        self._helper.stop()
        for link in self._links:
            link.close()


def _wake(sock: socket.socket) -> None:
    """End a helper's sleep on a connection that is about to be closed."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
