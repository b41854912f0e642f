"""The machine that invites: one PIN, one window, and whoever comes to it.

Anybody on the network may connect, so visitors are bounded in number and time, runs
follow one another, and who sends a wrong byte is hung up on without a word. One thread
serves them all; the arithmetic of a run takes it some 20 ms.
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
from ringleader.identity.known import Member
from ringleader.identity.pairing import Host
from ringleader.identity.pairing_tcp import STEP_S, TOTAL_S, WHOLE_BYTES, pack, unpack
from ringleader.identity.pairing_window import Outcome, Window
from ringleader.identity.redacted import Secret

FLOOR_S = 0.25
"""An element is answered no sooner: the arithmetic takes 5 to 30 ms, a little of that
depends on the PIN, and nobody can tell through this."""

MAX_WAITING = 8
"""Visitors that have not begun a run. When another comes, the busiest address loses its
oldest, so that one flooder does not keep everybody else out."""

_NO_DESCRIPTORS_S = 0.05


@dataclass(frozen=True, slots=True)
class PinShown:
    """There is a PIN to show; ``trouble`` says what became of the one before."""

    pin: Secret[str]
    attempts_left: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A machine has been sent the secret; ``has_thanked`` if it says that it has it."""

    member: Member
    has_thanked: bool


Event = PinShown | Joined


class _Stage(Enum):
    """What a visitor has to do next."""

    HELLO = auto()
    ELEMENT = auto()
    WAIT = auto()  # for its turn, or for our answer: it must not speak
    PROOF = auto()
    THANKS = auto()


@dataclass(slots=True, eq=False)
class _Visitor:
    sock: socket.socket
    address: str
    run: Host
    until_s: float
    step_until_s: float
    stage: _Stage = _Stage.HELLO
    inbox: bytearray = field(default_factory=bytearray)
    element: bytes = b""
    """M3, until its turn comes."""
    answer: bytes = b""
    """M4, until it may leave at ``answer_at_s``."""
    answer_at_s: float = 0.0
    member: Member | None = None

    def is_late(self, now_s: float) -> bool:
        return now_s >= min(self.until_s, self.step_until_s)

    def due_s(self) -> float:
        """When something must happen even if it stays silent."""
        late_s = min(self.until_s, self.step_until_s)
        return min(late_s, self.answer_at_s) if self.answer else late_s


@dataclass(slots=True)
class Invitation:
    """One open window. ``serve`` is called once; everything runs in its thread."""

    server: socket.socket
    """Listening and not blocking; its owner closes it."""
    window: Window
    new_run: Callable[[str], Host]
    """address -> the host's side of a run with whoever comes from there."""
    record: Callable[[Member], None]
    """Called before the secret leaves."""
    tell: Callable[[Event], None]
    _selector: selectors.BaseSelector = field(init=False)
    _visitors: list[_Visitor] = field(default_factory=list)
    _current: _Visitor | None = None
    """The only one in a run."""

    def serve(self) -> Outcome:
        """Let one machine join; returns when one has, or when none can any more."""
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
            for visitor in self._visitors:
                visitor.sock.close()
            self._selector.close()

    def _turn(self) -> None:
        """Wait for something to happen, or to fall due, and see to it."""
        due_s = [visitor.due_s() for visitor in self._visitors]
        if self._current is None:
            due_s.append(self.window.until_s)
        for key, _ in self._selector.select(max(0.0, min(due_s) - time.monotonic())):
            if key.data is None:
                self._accept()
            elif key.data in self._visitors:
                self._with_patience(key.data, self._hear)
        for visitor in list(self._visitors):
            self._with_patience(visitor, self._remind)
        if self._current is None:
            self._begin_next()

    def _with_patience(
        self, visitor: _Visitor, act: Callable[[_Visitor], None]
    ) -> None:
        """Do something with a visitor; whoever misbehaves is shown out."""
        try:
            act(visitor)
        except PeerUntrusted as exc:
            self._drop(visitor, exc.text)
        except (OSError, PeerError):
            self._drop(visitor, "an attempt was broken off")

    def _accept(self) -> None:
        try:
            sock, address = self.server.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError:
            time.sleep(_NO_DESCRIPTORS_S)
            return
        sock.setblocking(False)
        now_s = time.monotonic()
        who = str(address[0])
        visitor = _Visitor(
            sock, who, self.new_run(who), now_s + TOTAL_S, now_s + STEP_S
        )
        self._visitors.append(visitor)
        self._selector.register(sock, selectors.EVENT_READ, visitor)
        self._make_room()

    def _make_room(self) -> None:
        waiting = [v for v in self._visitors if v is not self._current]
        if len(waiting) > MAX_WAITING:
            busiest = Counter(v.address for v in waiting).most_common(1)[0][0]
            oldest = next(v for v in waiting if v.address == busiest)
            self._drop(oldest, "")

    def _hear(self, visitor: _Visitor) -> None:
        block = visitor.sock.recv(WHOLE_BYTES + 1 - len(visitor.inbox))
        if not block or visitor.stage is _Stage.WAIT:
            raise ProtocolError(visitor.address, "hung up or spoke out of turn")
        visitor.inbox += block
        frame = unpack(visitor.inbox, visitor.address)
        if frame is not None:
            visitor.step_until_s = time.monotonic() + STEP_S
            self._answer(visitor, frame)

    def _answer(self, visitor: _Visitor, frame: bytes) -> None:
        match visitor.stage:
            case _Stage.HELLO:
                self._send(visitor, visitor.run.answer_hello(frame), _Stage.ELEMENT)
            case _Stage.ELEMENT:
                visitor.run.check_element(frame)
                visitor.element = frame
                visitor.stage = _Stage.WAIT
            case _Stage.PROOF:
                visitor.member = visitor.run.hear_proof(frame)
                self.record(visitor.member)
                self.window.succeed()
                self._send(visitor, visitor.run.welcome(), _Stage.THANKS)
            case _:
                self._part(visitor, has_thanked=visitor.run.hear_thanks(frame))

    def _begin_next(self) -> None:
        """Start the run of whoever has waited longest."""
        ready = [v for v in self._visitors if v.element]
        pin = self.window.begin(time.monotonic()) if ready else None
        if pin is None:
            return
        visitor = self._current = ready[0]
        begun_s = time.monotonic()
        visitor.step_until_s = visitor.answer_at_s = begun_s + FLOOR_S
        visitor.step_until_s += STEP_S

        def compute(_: _Visitor) -> None:
            visitor.answer = visitor.run.answer_element(visitor.element, pin)
            visitor.element = b""

        self._with_patience(visitor, compute)

    def _remind(self, visitor: _Visitor) -> None:
        """Do what has fallen due."""
        now_s = time.monotonic()
        if visitor.is_late(now_s):
            raise ProtocolError(visitor.address, "took too long")
        if visitor.answer and now_s >= visitor.answer_at_s:
            answer, visitor.answer = visitor.answer, b""
            self._send(visitor, answer, _Stage.PROOF)

    def _send(self, visitor: _Visitor, frame: bytes, then: _Stage) -> None:
        """A reply of at most 514 bytes; the buffer of an honest socket is empty."""
        whole = pack(frame)
        if visitor.sock.send(whole) != len(whole):
            raise ProtocolError(visitor.address, "does not read")
        visitor.stage = then

    def _part(self, visitor: _Visitor, *, has_thanked: bool) -> None:
        """Say goodbye to the machine that has joined."""
        self._forget(visitor)
        self._current = None
        assert visitor.member is not None
        self.tell(Joined(visitor.member, has_thanked))

    def _drop(self, visitor: _Visitor, trouble: str) -> None:
        """Hang up. A run that ends so has tested its PIN."""
        if visitor.member is not None:
            self._part(visitor, has_thanked=False)
            return
        self._forget(visitor)
        if visitor is not self._current:
            return
        self._current = None
        self.window.fail()
        if self.window.is_open(time.monotonic()):
            left = self.window.attempts_left
            self.tell(PinShown(self.window.pin, left, trouble))

    def _forget(self, visitor: _Visitor) -> None:
        self._visitors.remove(visitor)
        self._selector.unregister(visitor.sock)
        visitor.sock.close()
