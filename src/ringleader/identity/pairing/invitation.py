"""Invitation is the inviting machine's side of pairing: one PIN, one window of time.

Anybody on the network may connect, so attempts are bounded in number and time, runs
follow one another, and a peer that sends a wrong byte is disconnected without an
answer. One thread serves all; the arithmetic of a run takes about 20 ms.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from ringleader.errors import PeerError, PeerUntrusted, ProtocolError
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.pairing.attempt_window import AttemptWindow, InvitationOutcome
from ringleader.identity.pairing.join_client import (
    STEP_S,
    TOTAL_S,
    WHOLE_BYTES,
    pack,
    unpack,
)
from ringleader.identity.pairing.protocol import PairingHost
from ringleader.identity.secret_value import Secret

MIN_ANSWER_S = 0.25
"""An element is answered no sooner: the arithmetic takes 5 to 30 ms, a little of
that depends on the PIN, and this delay hides it."""

MAX_WAITING = 8
"""Connections that have not begun a run. When another arrives, the busiest address
loses its oldest, so that one flooder does not keep everybody else out."""

_NO_DESCRIPTORS_S = 0.05


@dataclass(frozen=True, slots=True)
class PinShown:
    """There is a PIN to show; ``trouble`` tells why the one before failed."""

    pin: Secret[str]
    attempts_left: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A machine was sent the secret; ``has_thanked`` if it confirmed."""

    member: KnownNode
    has_thanked: bool


InvitationEvent = PinShown | Joined


class _Stage(Enum):
    """What a joining machine has to send next."""

    HELLO = auto()
    ELEMENT = auto()
    WAIT = auto()  # it waits for its turn or our answer, and must send nothing
    PROOF = auto()
    THANKS = auto()


@dataclass(slots=True, eq=False)
class _JoinAttempt:
    """One connection of a machine that wants to join."""

    sock: socket.socket
    address: str
    run: PairingHost
    until_s: float
    step_until_s: float
    stage: _Stage = _Stage.HELLO
    inbox: bytearray = field(default_factory=bytearray)
    element: bytes = b""
    """M3, until its turn comes."""
    answer: bytes = b""
    """M4, until it may be sent at ``answer_at_s``."""
    answer_at_s: float = 0.0
    member: KnownNode | None = None

    def is_late(self, now_s: float) -> bool:
        return now_s >= min(self.until_s, self.step_until_s)

    def due_s(self) -> float:
        """Return when something must happen even if it stays silent."""
        late_s = min(self.until_s, self.step_until_s)
        return min(late_s, self.answer_at_s) if self.answer else late_s


@dataclass(slots=True)
class Invitation:
    """One open window. Call ``serve`` once; everything runs in its thread."""

    server: socket.socket
    """Listening and non-blocking; its owner closes it."""
    window: AttemptWindow
    new_run: Callable[[str], PairingHost]
    """address -> the host's side of a run with the machine at that address."""
    record: Callable[[KnownNode], None]
    """Called before the secret is sent."""
    tell: Callable[[InvitationEvent], None]
    _selector: selectors.BaseSelector = field(init=False)
    _attempts: list[_JoinAttempt] = field(default_factory=list)
    _current: _JoinAttempt | None = None
    """The only attempt in a run."""

    def serve(self) -> InvitationOutcome:
        """Let one machine join; return when one has, or when none can any more."""
        self.tell(PinShown(self.window.pin, self.window.attempts_left))
        self._selector = selectors.DefaultSelector()
        try:
            self._selector.register(self.server, selectors.EVENT_READ)
            while True:
                outcome = self.window.outcome(time.monotonic())
                if outcome is not None and self._current is None:
                    return outcome
                self._turn()
        finally:
            for attempt in self._attempts:
                attempt.sock.close()
            self._selector.close()

    def _turn(self) -> None:
        """Wait for the next event or deadline, and handle it."""
        due_s = [attempt.due_s() for attempt in self._attempts]
        if self._current is None:
            due_s.append(self.window.until_s)
        for key, _ in self._selector.select(max(0.0, min(due_s) - time.monotonic())):
            if key.data is None:
                self._accept()
            elif key.data in self._attempts:
                self._guard(key.data, self._receive)
        for attempt in list(self._attempts):
            self._guard(attempt, self._handle_due)
        if self._current is None:
            self._begin_next()

    def _guard(
        self, attempt: _JoinAttempt, act: Callable[[_JoinAttempt], None]
    ) -> None:
        """Call ``act``; disconnect an attempt that violates the protocol."""
        try:
            act(attempt)
        except PeerUntrusted as exc:
            self._drop(attempt, exc.text)
        except (OSError, PeerError):
            self._drop(attempt, "an attempt was broken off")

    def _accept(self) -> None:
        try:
            sock, address = self.server.accept()
        except BlockingIOError:  # the peer is gone already
            return
        except OSError:
            time.sleep(_NO_DESCRIPTORS_S)
            return
        sock.setblocking(False)
        now_s = time.monotonic()
        who = str(address[0])
        attempt = _JoinAttempt(
            sock, who, self.new_run(who), now_s + TOTAL_S, now_s + STEP_S
        )
        self._attempts.append(attempt)
        self._selector.register(sock, selectors.EVENT_READ, attempt)
        self._make_room()

    def _make_room(self) -> None:
        waiting = [v for v in self._attempts if v is not self._current]
        if len(waiting) > MAX_WAITING:
            busiest = Counter(v.address for v in waiting).most_common(1)[0][0]
            oldest = next(v for v in waiting if v.address == busiest)
            self._drop(oldest, "")

    def _receive(self, attempt: _JoinAttempt) -> None:
        block = attempt.sock.recv(WHOLE_BYTES + 1 - len(attempt.inbox))
        if not block or attempt.stage is _Stage.WAIT:
            raise ProtocolError(
                attempt.address, "hung up or sent a message out of turn"
            )
        attempt.inbox += block
        frame = unpack(attempt.inbox, attempt.address)
        if frame is not None:
            attempt.step_until_s = time.monotonic() + STEP_S
            self._answer(attempt, frame)

    def _answer(self, attempt: _JoinAttempt, frame: bytes) -> None:
        match attempt.stage:
            case _Stage.HELLO:
                self._send(attempt, attempt.run.answer_hello(frame), _Stage.ELEMENT)
            case _Stage.ELEMENT:
                attempt.run.check_element(frame)
                attempt.element = frame
                attempt.stage = _Stage.WAIT
            case _Stage.PROOF:
                attempt.member = attempt.run.hear_proof(frame)
                self.record(attempt.member)
                self.window.succeed()
                self._send(attempt, attempt.run.welcome(), _Stage.THANKS)
            case _:
                self._finish(attempt, has_thanked=attempt.run.hear_thanks(frame))

    def _begin_next(self) -> None:
        """Start the run of the attempt that has waited longest."""
        ready = [v for v in self._attempts if v.element]
        pin = self.window.begin(time.monotonic()) if ready else None
        if pin is None:
            return
        attempt = self._current = ready[0]
        begun_s = time.monotonic()
        attempt.step_until_s = attempt.answer_at_s = begun_s + MIN_ANSWER_S
        attempt.step_until_s += STEP_S

        def compute(_: _JoinAttempt) -> None:
            attempt.answer = attempt.run.answer_element(attempt.element, pin)
            attempt.element = b""

        self._guard(attempt, compute)

    def _handle_due(self, attempt: _JoinAttempt) -> None:
        """Do what has fallen due."""
        now_s = time.monotonic()
        if attempt.is_late(now_s):
            raise ProtocolError(attempt.address, "took too long")
        if attempt.answer and now_s >= attempt.answer_at_s:
            answer, attempt.answer = attempt.answer, b""
            self._send(attempt, answer, _Stage.PROOF)

    def _send(self, attempt: _JoinAttempt, frame: bytes, then: _Stage) -> None:
        """Send a reply of at most 514 bytes; the buffer of an honest peer is empty."""
        whole = pack(frame)
        if attempt.sock.send(whole) != len(whole):
            raise ProtocolError(attempt.address, "does not read our messages")
        attempt.stage = then

    def _finish(self, attempt: _JoinAttempt, *, has_thanked: bool) -> None:
        """End the run of a machine that has joined."""
        self._forget(attempt)
        self._current = None
        assert attempt.member is not None
        self.tell(Joined(attempt.member, has_thanked))

    def _drop(self, attempt: _JoinAttempt, trouble: str) -> None:
        """Disconnect. A run that ends this way has tested its PIN."""
        if attempt.member is not None:
            self._finish(attempt, has_thanked=False)
            return
        self._forget(attempt)
        if attempt is not self._current:
            return
        self._current = None
        self.window.fail()
        if self.window.is_open(time.monotonic()):
            left = self.window.attempts_left
            self.tell(PinShown(self.window.pin, left, trouble))

    def _forget(self, attempt: _JoinAttempt) -> None:
        self._attempts.remove(attempt)
        self._selector.unregister(attempt.sock)
        attempt.sock.close()
