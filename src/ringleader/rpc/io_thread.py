"""The thread of an endpoint that reads all its channels, and writes what waits."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from ringleader.errors import InternalError, PeerError
from ringleader.rpc.channel import Channel, Received
from ringleader.transport.link import POLLIN, Poll
from ringleader.transport.memory_link import socket_pair

JOIN_S = 5.0
_log = logging.getLogger(__name__)


class Handler(Protocol):
    """Interface the thread needs from the endpoint; called in this thread only."""

    def receive(self, peer: int, received: Received) -> None:
        """Act on a message."""
        ...

    def lose(self, peer: int, error: PeerError) -> None:
        """End everything that has to do with a rank which is gone."""
        ...

    def tick(self) -> None:
        """Do what is due; called after every turn."""
        ...

    def idle_s(self) -> float:
        """Return the seconds until something is due."""
        ...

    def crash(self, error: InternalError) -> None:
        """End everything: the thread cannot go on."""
        ...


class IoThread:
    """Runs until ``stop``; ``wake`` may be called from any thread."""

    def __init__(self, name: str, channels: Sequence[Channel]) -> None:
        self._channels = list(channels)
        self._wake_recv, self._wake_send = socket_pair()
        self._bell = self._wake_recv.fileno()
        self._poll = Poll()
        self._is_stopped = False
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, handler: Handler) -> None:
        """Begin to serve the channels."""
        self._thread = threading.Thread(
            target=self._run, args=(handler,), name=self._name, daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at its channels and what is due."""
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: it ended
            self._wake_send.send(b"!")

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller. Idempotent."""
        self._is_stopped = True
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)
        self.hang_up()

    def hang_up(self) -> None:
        """Close the sockets, as a forked child must."""
        self._wake_recv.close()
        self._wake_send.close()

    def _run(self, handler: Handler) -> None:
        try:
            while not self._is_stopped:
                for channel in self._wait(handler):
                    self._serve(channel, handler)
                handler.tick()
        except Exception as exc:  # noqa: BLE001 - told to all who wait
            _log.exception("the RPC thread failed")
            handler.crash(InternalError(f"rpc: {type(exc).__name__}: {exc}"))

    def _wait(self, handler: Handler) -> list[Channel]:
        """Return the channels on which something may be done."""
        wanted, timeout_s = [(self._bell, POLLIN)], handler.idle_s()
        armed: list[tuple[Channel, list[tuple[int, int]] | None]] = []
        for channel in self._channels:
            descriptors = channel.arm()
            armed.append((channel, descriptors))
            if descriptors is None:
                timeout_s = 0.0
            else:
                wanted += descriptors
        ready = self._poll.wait(wanted, timeout_s)
        for channel in self._channels:
            channel.disarm()
        if self._bell in ready:
            with contextlib.suppress(OSError):
                self._wake_recv.recv(4096)
            return self._channels  # one of them may have something to send
        return [
            channel
            for channel, descriptors in armed
            if descriptors is None or any(fd in ready for fd, _ in descriptors)
        ]

    def _serve(self, channel: Channel, handler: Handler) -> None:
        try:
            for received in channel.read():
                handler.receive(channel.peer, received)
            if channel.has_unsent():
                channel.write()
        except PeerError as exc:
            handler.lose(channel.peer, exc)
