"""Channel: messages to and from one peer over one link.

Received tensors are filled straight from the link, sent ones are never copied. Small
pieces are read through a buffer, so that one system call reads many messages.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import compress

import torch
from torch import Tensor

from ringleader.engine.arrays import as_array, bytes_of, dtype_of, item_sizes
from ringleader.errors import PeerError, PeerLost
from ringleader.rpc import messages
from ringleader.rpc.messages import Message, TensorSpec
from ringleader.transport.link import POLLIN, POLLOUT, Link
from ringleader.transport.socket_link import SocketLink

DIRECT_BYTES = 32 << 10
"""A piece of at least this length is not read through the buffer."""
BUFFER_BYTES = 64 << 10
TURN_BYTES = 4 << 20
"""Bytes that one turn reads, so that other channels get theirs."""
_NOTHING = memoryview(b"")
_SIZES = item_sizes()


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message that waits to be sent."""

    parts: deque[memoryview]
    is_void: Callable[[], bool] = lambda: False
    """Whether it need not be sent any more. Asked before its first byte, by the thread
    of the channel."""
    on_void: Callable[[], None] = lambda: None
    has_begun: bool = False


@dataclass(slots=True)
class Received:
    """A message and its tensors."""

    message: Message
    tensors: list[Tensor] = field(default_factory=list)


class Channel:
    """Messages over one link. Any thread may send; one thread does the rest."""

    def __init__(self, peer: int, link: Link, max_bytes: int) -> None:
        self.peer = peer
        self._link = link
        self._max_bytes = max_bytes
        self._sock = link.sock if isinstance(link, SocketLink) else None
        fd = -1 if self._sock is None else self._sock.fileno()
        self._to_read, self._to_do_both = [(fd, POLLIN)], [(fd, POLLIN | POLLOUT)]
        self._lock = threading.Lock()
        self._out: deque[Outgoing] = deque()
        self._received: list[Received] = []
        self._head = memoryview(bytearray(messages.HEAD.size))
        self._parser = self._parse()
        self._target = next(self._parser)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._buffered = _NOTHING
        self._is_hungry = False
        """Whether it stopped to read before everything was read that is here."""
        self._failure: PeerError | None = None
        """Why nothing more can be read."""
        self._is_closed = False

    # -- sending -------------------------------------------------------------------

    def send(self, outgoing: Outgoing) -> bool:
        """Send a message; return whether the thread of the channel must go on.

        A link that is no socket is used by that thread only: a signal that another
        thread took from it could leave that thread asleep.
        """
        with self._lock:
            if self._is_closed:
                raise PeerLost(self.peer, "the connection is closed")
            self._out.append(outgoing)
            if self._sock is not None:
                self._write()
            return bool(self._out)

    def send_whole(self, data: bytes) -> memoryview:
        """Send a short message in one piece; return what could not be sent.

        Nothing of it is sent if other messages wait.
        """
        with self._lock:
            if self._is_closed:
                raise PeerLost(self.peer, "the connection is closed")
            view = memoryview(data)
            if self._sock is None or self._out:
                return view
            left = view[self._link.try_send(view) :]
            if len(left):
                self._out.append(Outgoing(deque([left]), has_begun=True))
            return left[:0]

    def write(self) -> None:
        """Send what can be sent, and drop messages that are void."""
        with self._lock:
            is_void = [not each.has_begun and each.is_void() for each in self._out]
            dropped = list(compress(self._out, is_void))
            if dropped:
                self._out = deque(each for each in self._out if each not in dropped)
            if not self._is_closed:
                self._write()
        for each in dropped:  # not under the lock: it may send messages
            each.on_void()

    def _write(self) -> None:
        budget = TURN_BYTES
        while self._out and budget > 0:
            outgoing = self._out[0]
            outgoing.has_begun = True  # TLS may keep some, even if it takes none
            parts = outgoing.parts
            while parts:
                if len(parts[0]):
                    sent = self._link.try_send(parts[0])
                    if not sent:
                        return
                    budget -= sent
                    parts[0] = parts[0][sent:]
                if not len(parts[0]):
                    parts.popleft()
            self._out.popleft()

    def has_unsent(self) -> bool:
        """Return whether messages wait."""
        return bool(self._out)

    # -- receiving -----------------------------------------------------------------

    def read(self) -> list[Received]:
        """Return the messages that are complete; raises PeerLost or ProtocolError."""
        with self._lock:
            if not self._is_closed and self._failure is None:
                try:
                    self._fill()
                except PeerError as exc:
                    self._failure = exc
            received, self._received = self._received, []
            if self._failure is not None and not received:
                raise self._failure  # what came before it was returned already
        return received

    def _fill(self) -> None:
        budget, is_drained = TURN_BYTES, False
        while budget > 0:
            if not len(self._buffered) and len(self._target) < DIRECT_BYTES:
                size = 0 if is_drained else self._link.try_recv_into(self._buffer)
                self._buffered = self._buffer[:size]
                is_drained = self._sock is not None and size < BUFFER_BYTES
                budget -= self._take_complete()
            if len(self._buffered):
                size = min(len(self._target), len(self._buffered))
                self._target[:size] = self._buffered[:size]
                self._buffered = self._buffered[size:]
            elif len(self._target) < DIRECT_BYTES:
                break
            else:
                size = self._link.try_recv_into(self._target)
                if not size:
                    break
                is_drained = False  # TLS may have decrypted more than the target takes
            self._target = self._target[size:]
            budget -= size
            while not len(self._target):
                self._target = next(self._parser)
        self._is_hungry = budget <= 0

    def _take_complete(self) -> int:
        """Add the messages without tensors that are complete in the buffer.

        Return their length. The parser gets the others, piece by piece.
        """
        data, at, size = self._buffered, 0, messages.HEAD.size
        if self._target is not self._head:
            return 0
        while len(data) - at >= size:
            head = data[at : at + size]
            lengths = messages.decode_head(head, self._max_bytes, self.peer)
            end = at + size + lengths[0]
            if lengths[1] or end > len(data):
                break
            body = bytes(data[at + size : end])
            message = messages.decode_body(body, self.peer)
            messages.check_tensors(message.tensors, _SIZES, 0, self.peer)
            self._received.append(Received(message))
            at = end
        self._buffered = data[at:]
        return at

    def _parse(self) -> Iterator[memoryview]:
        """Yield the memory to fill next, for ever; add complete messages."""
        while True:
            yield self._head
            lengths = messages.decode_head(self._head, self._max_bytes, self.peer)
            body = bytearray(lengths[0])
            yield memoryview(body)
            message = messages.decode_body(body, self.peer)
            messages.check_tensors(message.tensors, _SIZES, lengths[1], self.peer)
            received = Received(message)
            for spec in message.tensors:
                tensor = empty_tensor(spec)
                received.tensors.append(tensor)
                yield bytes_of(as_array(tensor))
            self._received.append(received)
            del message, received, body  # not until the next message arrives

    # -- waiting -------------------------------------------------------------------

    def arm(self) -> list[tuple[int, int]] | None:
        """See Link."""
        if self._is_closed:
            return []
        if self._is_hungry or self._failure is not None:
            return None
        if isinstance(self._link, SocketLink):
            with self._lock:  # OpenSSL's state is not safe for two threads
                if self._link.has_pending():  # decrypted, so polling does not tell
                    return None
            return self._to_do_both if self._out else self._to_read
        with self._lock:
            try:
                return self._link.arm(sending=bool(self._out), receiving=True)
            except PeerError as exc:  # invalid shared memory; read() raises it
                self._failure = exc
                return None

    def disarm(self) -> None:
        """See Link."""
        if self._sock is None and not self._is_closed:
            with self._lock:
                self._link.disarm()

    def close(self) -> None:
        """Close the link. Messages that wait are void. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            dropped, self._out = self._out, deque()
            self._link.close()
        for outgoing in dropped:
            with contextlib.suppress(Exception):
                outgoing.on_void()


def empty_tensor(spec: TensorSpec) -> Tensor:
    """Return memory for a tensor that has been checked."""
    return torch.empty(spec.shape, dtype=dtype_of(spec.dtype))
