"""The server's side of pairing: a worker and the server prove the PIN to each other.

It is used if the server's certificate is self-signed, so that only the PIN can tell the
worker that it talks to the right server. ``identity/pairing/pin_proof.py`` defines the
exchange. It hands over the code of the join link and a receipt. Each exchange spends a
PIN attempt. The receipt refunds it when its worker joins, so only wrong PINs cost one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ringleader.identity.pairing import pin_proof
from ringleader.identity.pairing.invitation import MIN_ANSWER_S
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.protocol.messages import PairAnswer
from ringleader.paramserver.server.admission import Admission
from ringleader.paramserver.server.http import request_parsing
from ringleader.paramserver.server.http.responses import (
    SOON,
    json_response,
    locked,
    malformed,
    refusal,
)

PENDING_S = 60.0
"""Time to join after pairing: enough for a few tries on a bad connection."""


@dataclass(slots=True, eq=False)
class PendingPairing:
    """One exchange that no join has followed yet; at most one per PIN attempt."""

    receipt: Secret[bytes]
    expires_s: float
    answer: PairAnswer | None = None
    """The answer to repeated requests. None while it is computed, and if the element
    was invalid."""


class PinPairings:
    """Handles pairing requests. Used by the event loop only."""

    def __init__(
        self, admission: Admission, limit_stranger: Callable[[Request], None]
    ) -> None:
        self._admission = admission
        self._limit_stranger = limit_stranger
        self._open: dict[bytes, PendingPairing] = {}

    async def pair(self, request: Request) -> Response:
        """Handle POST /v1/pair."""
        self._limit_stranger(request)
        element = await request_parsing.read_element(request)
        pin = self._admission.pin
        if pin is None:
            raise refusal(401, "unknown", "this server has no PIN: use the join link")
        pairing, is_new = self.begin(element, time.monotonic())
        if is_new:
            content = Secret(self._admission.secret.reveal() + pairing.receipt.reveal())
            found, _ = await asyncio.gather(
                asyncio.to_thread(
                    pin_proof.answer_pin_request,
                    pin,
                    self._admission.fingerprint,
                    element,
                    content,
                ),
                asyncio.sleep(MIN_ANSWER_S),
            )
            if found is None:
                raise malformed("'element' is not a SPAKE2 element")
            ours, sealed = map(join_link.encode, found)
            pairing.answer = PairAnswer(element=ours, sealed=sealed)
        if pairing.answer is None:
            raise refusal(
                429,
                "busy",
                "the answer to this request is being computed",
                headers=SOON,
            )
        return json_response(pairing.answer)

    def begin(self, element: bytes, now_s: float) -> tuple[PendingPairing, bool]:
        """Spend a PIN attempt and record the exchange, or raise a refusal.

        Returns the exchange, and whether it is new: a repeated element tests no other
        PIN, and costs nothing.
        """
        self._open = {e: p for e, p in self._open.items() if now_s < p.expires_s}
        found = self._open.get(element)
        if found is not None:
            return found, False
        if not self._admission.spend_pin_attempt():
            if self._open:  # their joins may refund attempts in a moment
                text = "too many workers try their PINs at once"
                raise refusal(429, "busy", text, headers=SOON)
            raise locked()
        made = PendingPairing(
            Secret(secrets.token_bytes(join_link.RECEIPT_BYTES)), now_s + PENDING_S
        )
        self._open[element] = made
        return made, True

    def redeem(self, receipt: str | None, now_s: float) -> None:
        """Refund the PIN attempt of a worker that joined with this receipt."""
        data = join_link.decode(receipt or "") or b""
        for element, pairing in list(self._open.items()):
            matches = hmac.compare_digest(pairing.receipt.reveal(), data)
            if matches and now_s < pairing.expires_s:
                del self._open[element]
                self._admission.refund_pin_attempt()
