"""The joining machine's side of pairing over TCP, and the framing of messages.

A stranger may answer, so messages, each step and the whole run are bounded.
``invitation`` is the other side.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import (
    DeadlineExceeded,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.node_key import NodeKey
from ringleader.identity.pairing.messages import MAX_FRAME_BYTES
from ringleader.identity.pairing.protocol import (
    PIN_REFUSED,
    PairingJoiner,
    PairingResult,
)
from ringleader.identity.secret_value import Secret

STEP_S = 10.0
TOTAL_S = 30.0
"""A run takes half a second; this leaves room for slow boards and lost packets."""

PIN_DIGITS = 6
_LENGTH_BYTES = 2
WHOLE_BYTES = _LENGTH_BYTES + MAX_FRAME_BYTES
_CLOSED = "hung up; it serves others, or its pairing is over: run 'ringleader invite'"


def new_pin() -> Secret[str]:
    """Return six random digits."""
    return Secret(f"{secrets.randbelow(10**PIN_DIGITS):0{PIN_DIGITS}}")


def pack(frame: bytes) -> bytes:
    """Return a message as it travels: its length, then itself."""
    assert 0 < len(frame) <= MAX_FRAME_BYTES
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame


def unpack(inbox: bytearray, peer: str) -> bytes | None:
    """Return the message in ``inbox``; None while it is incomplete.

    The sides take turns, so nothing may follow a message.
    """
    if len(inbox) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(inbox[:_LENGTH_BYTES], "big")
    if not 0 < length <= MAX_FRAME_BYTES:
        raise ProtocolError(peer, f"frame of {length} bytes, at most {MAX_FRAME_BYTES}")
    if len(inbox) > _LENGTH_BYTES + length:
        raise ProtocolError(peer, "speaks out of turn")
    if len(inbox) < _LENGTH_BYTES + length:
        return None
    frame = bytes(inbox[_LENGTH_BYTES:])
    inbox.clear()
    return frame


def join_at(
    address: tuple[str, int], key: NodeKey, name: str, pin: Secret[str]
) -> PairingResult:
    """Ask the inviting machine for the cluster secret; ends within half a minute.

    Raises PeerUntrusted if the PIN was wrong, or another machine answered.
    """
    peer = f"{address[0]}:{address[1]}"
    total = Deadline.after(TOTAL_S)
    try:
        sock = socket.create_connection(address, min(STEP_S, total.left_s()))
    except OSError as exc:
        text = f"cannot be reached ({exc.strerror or exc}); does it invite?"
        raise PeerUnreachable(peer, text) from exc
    with sock:
        line = _Connection(sock, peer, total)
        joiner = PairingJoiner(key, name, pin, peer=peer)
        m2 = line.ask(joiner.hello())
        m4 = line.ask(joiner.answer_hello(m2))
        m6 = line.ask(joiner.answer_element(m4), is_proof=True)
        m7, welcome = joiner.answer_welcome(m6)
        line.send(m7)
        return welcome


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    peer: str
    total: Deadline
    _inbox: bytearray = field(default_factory=bytearray)

    def ask(self, frame: bytes, *, is_proof: bool = False) -> bytes:
        """Send a message and return the answer. Hanging up on a proof means refusal."""
        step = Deadline.after(min(STEP_S, self.total.left_s()))
        try:
            self._send(frame, step)
            answer = self._receive(step)
        except TimeoutError as exc:
            text = f"did not answer in {step.after_s:.0f} s"
            raise DeadlineExceeded(self.peer, text) from exc
        except OSError:  # some systems reset the connection when they close
            answer = None
        if answer is None and is_proof:
            raise PeerUntrusted(self.peer, PIN_REFUSED)
        if answer is None:
            raise PeerRefused(self.peer, _CLOSED)
        return answer

    def send(self, frame: bytes) -> None:
        """Send the last message; nothing depends on its arrival."""
        try:
            self._send(frame, Deadline.after(min(STEP_S, self.total.left_s())))
        except OSError:
            return

    def _send(self, frame: bytes, step: Deadline) -> None:
        self.sock.settimeout(max(step.left_s(), 0.001))
        self.sock.sendall(pack(frame))

    def _receive(self, step: Deadline) -> bytes | None:
        """Return the next message; None at the end of the stream."""
        while (frame := unpack(self._inbox, self.peer)) is None:
            if step.is_over():
                raise TimeoutError
            self.sock.settimeout(max(step.left_s(), 0.001))
            block = self.sock.recv(WHOLE_BYTES + 1 - len(self._inbox))
            if not block:
                return None
            self._inbox += block
        return frame
