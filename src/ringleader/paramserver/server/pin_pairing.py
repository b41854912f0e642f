"""The server's side of joining by PIN where only the PIN vouches for the server's key.

``identity/pairing/pin_proof.py`` has the exchange. What it hands over is the code of
the join link, and a receipt. Each exchange spends an attempt of the PIN's budget; the
receipt gets it back when its worker joins, so only those who did not know the PIN have
spent one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ringleader.identity.pairing import pin_proof
from ringleader.identity.pairing.invitation import MIN_ANSWER_S
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.server import request_parsing
from ringleader.paramserver.server.admission import Admission
from ringleader.paramserver.server.request_parsing import (
    SOON,
    locked,
    malformed,
    refusal,
)

PENDING_S = 60.0
"""How long a worker may take from here to its join: a few tries on a bad line."""


@dataclass(slots=True, eq=False)
class PendingPairing:
    """One exchange; there are at most as many as attempts."""

    receipt: Secret[bytes]
    expires_s: float
    answer: dict[str, str] | None = None
    """For repetitions; None: it is being computed, or the element was garbage."""


class PinPairings:
    """Exchanges that no join has followed yet. The event loop only."""

    def __init__(
        self, admission: Admission, limit_stranger: Callable[[Request], None]
    ) -> None:
        self._admission = admission
        self._limit_stranger = limit_stranger
        self._open: dict[bytes, PendingPairing] = {}

    async def pair(self, request: Request) -> Response:
        """POST /v1/pair."""
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
                raise malformed("the element is none")
            ours, sealed = map(join_link.encode, found)
            pairing.answer = {"element": ours, "sealed": sealed}
        if pairing.answer is None:
            raise refusal(429, "busy", "this is being answered", headers=SOON)
        return JSONResponse(pairing.answer)

    def begin(self, element: bytes, now_s: float) -> tuple[PendingPairing, bool]:
        """Spend an attempt, or refuse; the same element again is no other guess."""
        self._open = {e: p for e, p in self._open.items() if now_s < p.expires_s}
        found = self._open.get(element)
        if found is not None:
            return found, False
        if not self._admission.spend_pin_attempt():
            if self._open:  # a crowd of friends may get theirs back in a moment
                text = "too many try their PINs at once"
                raise refusal(429, "busy", text, headers=SOON)
            raise locked()
        made = PendingPairing(
            Secret(secrets.token_bytes(join_link.RECEIPT_BYTES)), now_s + PENDING_S
        )
        self._open[element] = made
        return made, True

    def redeem(self, receipt: str | None, now_s: float) -> None:
        """Who was handed this has joined: it was no guess."""
        data = join_link.decode(receipt or "") or b""
        for element, pairing in list(self._open.items()):
            is_it = hmac.compare_digest(pairing.receipt.reveal(), data)
            if is_it and now_s < pairing.expires_s:
                del self._open[element]
                self._admission.refund_pin_attempt()
