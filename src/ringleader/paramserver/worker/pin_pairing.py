"""How a worker with a PIN comes to trust a server whose certificate is self-made.

It looks which key the server has, then asks it, over a line that takes this key and no
other, to show that it knows the PIN for that very key
(``identity/pairing/pin_proof.py``). What comes of it is a join link. Nobody in between
learns the PIN: no part of it is sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing, suppress

from ringleader.deadline import Deadline
from ringleader.errors import PeerRefused, PeerUntrusted
from ringleader.identity.pairing.invitation import MIN_ANSWER_S
from ringleader.identity.pairing.pin_proof import PinRequest
from ringleader.identity.secret_value import Secret
from ringleader.identity.server_key import SECRET_BYTES
from ringleader.paramserver.protocol.join_link import (
    RECEIPT_BYTES,
    JoinLink,
    decode,
    encode,
)
from ringleader.paramserver.worker import server_messages
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.server_address import (
    ServerAddress,
    pinning_context,
    recording_context,
)
from ringleader.paramserver.worker.server_messages import Json
from ringleader.paramserver.worker.session import SERVER, Request, Response, Session

PIN_ENTRIES = 3
"""PINs that a user may type; the server counts wrong ones over all workers."""


class PinPairing:
    """Turns the bare address of a place into a whole link. One thread."""

    def __init__(
        self,
        address: ServerAddress,
        observer: Observer,
        pin: Secret[str] | None,
        ask_pin: Callable[[], Secret[str]] | None,
    ) -> None:
        self._address = address
        self._observer = observer
        self._pin = pin
        self._ask_pin = ask_pin
        self._question: PinRequest | None = None
        """Asked and not answered; asking the same again is no second guess."""

    def run(self) -> None:
        """PeerUntrusted if no PIN fits; PeerUnreachable or PeerLost: try again."""
        for left in reversed(range(PIN_ENTRIES)):
            if self._pin is None:
                if self._ask_pin is None:
                    break
                self._pin = self._ask_pin()
            found = self._pair(self._pin)
            if found is not None:
                self._address.use_paired_link(found)
                return
            self._pin = None  # it is not tried again by itself
            if self._ask_pin is not None and left:
                self._observer.noted(self._refused().text)
        raise self._refused()

    def _pair(self, pin: Secret[str]) -> JoinLink | None:
        fingerprint, floor = self._seen(), Deadline.after(MIN_ANSWER_S)
        question = self._question
        if question is None or question.fingerprint != fingerprint:
            self._question = question = PinRequest(pin, fingerprint)
        time.sleep(floor.left_s())  # how long that took depends on the PIN, a little
        answer = self._ask(question)
        self._question = None
        said = answer.json()
        content = question.open(_data(said, "element"), _data(said, "sealed"))
        if content is None or len(content.reveal()) != SECRET_BYTES + RECEIPT_BYTES:
            return None
        code, receipt = content.reveal()[:SECRET_BYTES], content.reveal()[SECRET_BYTES:]
        return JoinLink(
            self._address.link.url,
            fingerprint,
            Secret(encode(code)),
            Secret(encode(receipt)),
        )

    def _seen(self) -> bytes:
        """The fingerprint of whoever answers there now. Nothing is sent to it."""
        found: list[bytes] = []
        looking = closing(
            Session(self._address, self._observer, recording_context(found))
        )
        with looking as session, suppress(PeerUntrusted):
            session.send_once(Request("GET", "/v1/status"))
        if not found or not found[-1]:
            url = self._address.link.url
            text = f"{url} has a key for which no PIN can vouch; use the join link"
            raise PeerUntrusted(SERVER, text)
        return found[-1]

    def _ask(self, question: PinRequest) -> Response:
        body = json.dumps({"element": encode(question.element)}).encode()
        headers = {"Content-Type": "application/json"}
        asking = closing(
            Session(
                self._address, self._observer, pinning_context(question.fingerprint)
            )
        )
        # A stranger's words are not shown: they might send the user elsewhere.
        with asking as session, suppress(PeerRefused):
            answer = session.send_once(Request("POST", "/v1/pair", headers, body))
            if answer.status == 200:
                return answer
        url = self._address.link.url
        text = f"{url} takes no PIN, or none after too many wrong ones"
        raise PeerRefused(SERVER, f"{text}; use the join link")

    def _refused(self) -> PeerUntrusted:
        text = "the PIN is wrong, or somebody sits between here and"
        where = self._address.link.url
        return PeerUntrusted(
            SERVER, f"{text} {where}; check the PIN, or use the join link"
        )


def _data(said: Json, name: str) -> bytes:
    return decode(server_messages.text_of(said, name)) or b""
