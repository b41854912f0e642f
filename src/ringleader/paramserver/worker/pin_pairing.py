"""The worker's side of pairing: verifies a self-signed server certificate by a PIN.

The worker first looks which key the server has. Then it asks the server, over a
connection that accepts this key and no other, to prove that it knows the PIN for that
very key (``identity/pairing/pin_proof.py``). The result is a join link. No part of the
PIN is sent, so nobody in between can learn it.
"""

from __future__ import annotations

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
from ringleader.paramserver.protocol.messages import (
    PairAnswer,
    PairRequest,
    encode_message,
)
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.pinned_tls import pinning_context, recording_context
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import JSON, Request, Session

PIN_ENTRIES = 3
"""PINs that a user may type. The server counts wrong ones over all workers."""


class PinPairing:
    """Completes the bare address of a server to a join link. One thread."""

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
        """A question without an answer yet; to repeat it costs no PIN attempt."""

    def run(self) -> None:
        """Pair, and set the link of the address.

        Raises PeerUntrusted if no PIN is right; PeerUnreachable or PeerLost if it may
        be tried again.
        """
        for left in reversed(range(PIN_ENTRIES)):
            if self._pin is None:
                if self._ask_pin is None:
                    break
                self._pin = self._ask_pin()
            found = self._pair(self._pin)
            if found is not None:
                self._address.use_paired_link(found)
                return
            self._pin = None  # a wrong PIN is not tried again
            if self._ask_pin is not None and left:
                self._observer.noted(self._wrong_pin().text)
        raise self._wrong_pin()

    def _pair(self, pin: Secret[str]) -> JoinLink | None:
        fingerprint, floor = self._look_up_key(), Deadline.after(MIN_ANSWER_S)
        question = self._question
        if question is None or question.fingerprint != fingerprint:
            self._question = question = PinRequest(pin, fingerprint)
        time.sleep(floor.left_s())  # the time to compute it depends on the PIN
        answer = self._ask(question)
        self._question = None
        element, sealed = decode(answer.element) or b"", decode(answer.sealed) or b""
        content = question.open(element, sealed)
        if content is None or len(content.reveal()) != SECRET_BYTES + RECEIPT_BYTES:
            return None
        code, receipt = content.reveal()[:SECRET_BYTES], content.reveal()[SECRET_BYTES:]
        return JoinLink(
            self._address.link.url,
            fingerprint,
            Secret(encode(code)),
            Secret(encode(receipt)),
        )

    def _look_up_key(self) -> bytes:
        """Return the fingerprint of the server's key, without sending it anything."""
        found: list[bytes] = []
        context = recording_context(found)
        opened = closing(Session.open(self._address, self._observer, context))
        with opened as session, suppress(PeerUntrusted):
            session.send_once(Request("GET", "/v1/status"))
        if not found or not found[-1]:
            url = self._address.link.url
            text = f"a PIN cannot verify the kind of key that {url} has"
            raise PeerUntrusted(SERVER, f"{text}; use the join link")
        return found[-1]

    def _ask(self, question: PinRequest) -> PairAnswer:
        body = encode_message(PairRequest(element=encode(question.element)))
        context = pinning_context(question.fingerprint)
        opened = closing(Session.open(self._address, self._observer, context))
        # The text of an unverified server is not shown: it might mislead the user.
        with opened as session, suppress(PeerRefused):
            response = session.send_once(Request("POST", "/v1/pair", JSON, body))
            if response.status == 200:
                return response.decode(PairAnswer)
        url = self._address.link.url
        text = f"{url} takes no PIN, or none after too many wrong ones"
        raise PeerRefused(SERVER, f"{text}; use the join link")

    def _wrong_pin(self) -> PeerUntrusted:
        url = self._address.link.url
        text = f"the PIN is wrong, or another computer intercepts connections to {url}"
        return PeerUntrusted(SERVER, f"{text}; check the PIN, or use the join link")
