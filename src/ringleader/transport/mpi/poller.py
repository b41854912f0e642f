"""The thread that asks MPI on behalf of those who sleep.

MPI moves bytes only while somebody calls it, and has nothing that a thread could sleep
on. So this thread calls it: at once again while bytes move, after longer pauses while
nothing does. It ends when there is nothing to watch.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Protocol

from ringleader.deadline import Deadline
from ringleader.transport.crowded_cores import relax
from ringleader.transport.link import POLLIN, wait_ready
from ringleader.transport.memory_link import socket_pair
from ringleader.transport.mpi.link import MpiLink, Step

SPINS = 50
"""Rounds for somebody who waits, yielding the core in between, before the first
pause."""
SHORT_ROUNDS = 400
"""Rounds after which somebody who waits is worth longer pauses."""
SHORT_S, LONG_S, QUIET_S = 0.0001, 0.0005, 0.002
LEAVE_S = 1.0
"""Time for what was sent before a close to be taken by the peer."""
STOP_S = 2.0


class Watched(Protocol):
    """Interface the poller needs from a link or a control stream."""

    def step(self) -> Step:
        """Move what can be moved; OVER ends the watch."""
        ...

    def wanted(self) -> list[tuple[int, int]]:
        """Descriptors and events to wait for."""
        ...

    def is_leaving(self) -> bool:
        """Return whether it is closed and what it sent is still on the way."""
        ...

    def abandon(self) -> None:
        """Give up what is on the way."""
        ...


class Poller:
    """Watches what of this process waits for MPI."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        """What the next round steps. What is here when it is added is not missed."""
        self._stepped: set[Watched] = set()
        """What the running round steps."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakers: tuple[socket.socket, ...] = ()
        self._is_asleep = False
        self._is_stopped = False
        self._rounds = 0

    def watch(self, link: MpiLink, *, soon: bool) -> None:
        """See Watcher."""
        if link not in self._watched:
            self.add(link)
        if soon and self._is_asleep:
            self._wake()

    def add(self, each: Watched) -> None:
        """Step ``each`` until it is over."""
        with self._lock:
            self._watched.add(each)
            if not self._wakers:
                self._wakers = socket_pair()
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(
                    target=self._run, name="ringleader-mpi", daemon=True
                )
                self._thread.start()

    def drain(self, limit_s: float = LEAVE_S) -> None:
        """Wait until what closed links sent was taken; give it up at the limit."""
        until, rounds = Deadline.after(limit_s), self._rounds + 2
        while self._thread is not None:
            with self._lock:
                known = self._watched | self._stepped
            leaving = [each for each in known if each.is_leaving()]
            if not leaving and self._rounds >= rounds:
                return
            if until.is_over():
                for each in leaving:
                    each.abandon()
                return
            self._wake()
            time.sleep(SHORT_S)

    def stop(self) -> None:
        """End the thread: MPI is about to end, and nobody may call it then.

        The program calls MPI_Finalize, or Python ends.
        """
        self._is_stopped = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_S)
        with self._lock:
            left = self._watched | self._stepped
            self._thread, self._watched, self._stepped = None, set(), set()
        for each in left:
            each.abandon()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            if self._wakers:
                self._wakers[1].send(b"!")

    def _run(self) -> None:
        idle = 0
        while not self._is_stopped:
            with self._lock:
                self._stepped, self._watched = self._watched, set()
                if not self._stepped:
                    self._thread = None
                    return
            steps = [(each, each.step()) for each in self._stepped]
            with self._lock:
                kept = {each for each, step in steps if step is not Step.OVER}
                self._watched |= kept
                self._stepped = set()
                self._rounds += 1
            is_busy = any(step is Step.BUSY for _, step in steps)
            idle = self._rest(idle, kept, is_busy=is_busy)

    def _rest(self, idle: int, watched: set[Watched], *, is_busy: bool) -> int:
        """Pause as long as is right after ``idle`` rounds; return the next count."""
        if is_busy and idle < SPINS:
            relax()
            return idle + 1
        pause_s = QUIET_S
        if is_busy:
            pause_s = SHORT_S if idle < SHORT_ROUNDS else LONG_S
        wanted = [pair for each in watched for pair in each.wanted()]
        waker, _ = self._wakers
        self._is_asleep = True
        wait_ready([(waker.fileno(), POLLIN), *wanted], pause_s)
        self._is_asleep = False
        try:
            waker.recv(4096)
        except BlockingIOError:
            return idle + 1 if is_busy else 0
        return 0


poller = Poller()
"""The one of this process."""
