"""Admits workers by the code of the join link or by a PIN, and issues their tokens.

Tokens have 256 bits and are kept as hashes. A wrong PIN spends one of a few attempts of
the whole server, whatever address it comes from. Codes and tokens need no attempt, so
an attacker who spends all of them locks out no worker that has joined or has the link.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link

PIN_ATTEMPTS = 10
"""Wrong PINs until the server refuses all PINs. A person mistypes two or three times;
an attacker guesses a PIN of four digits at one server in a thousand."""
MAX_PIN_CHARACTERS = 128
_TOKEN_BYTES = 32


class AdmissionResult(Enum):
    """The decision on a request to join."""

    ADMITTED = "welcome"
    UNKNOWN = "unknown"
    LOCKED = "locked"


@dataclass(slots=True)
class Admission:
    """Decides who may join, and knows the tokens of those that did. One thread."""

    secret: Secret[bytes]
    pin: Secret[str] | None = None
    is_open: bool = False
    """Admit everybody; only for servers that listen on this machine alone."""
    pin_attempts_left: int = PIN_ATTEMPTS
    fingerprint: bytes = b""
    """Fingerprint of the server's key, which pairing by PIN verifies."""
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pin is not None:
            length = len(self.pin.reveal())
            if not 1 <= length <= MAX_PIN_CHARACTERS:
                text = f"a PIN has 1 to {MAX_PIN_CHARACTERS} characters, not {length}"
                raise ConfigError(f"--pin: {text}")

    def is_join_code(self, code: str | None) -> bool:
        """Return whether this is the code of the join link."""
        data = join_link.decode(code or "") or b""
        return hmac.compare_digest(self._mac(data), self._mac(self.secret.reveal()))

    def admit(self, code: str | None, pin: str | None) -> AdmissionResult:
        """Decide whether a worker with this code or PIN may join."""
        if self.is_open or self.is_join_code(code):
            return AdmissionResult.ADMITTED
        if code is not None or pin is None or self.pin is None:
            return AdmissionResult.UNKNOWN
        return self._check_pin(pin)

    def _check_pin(self, pin: str) -> AdmissionResult:
        if (
            not self.spend_pin_attempt()
        ):  # spent before the comparison, so it cannot be skipped
            return AdmissionResult.LOCKED
        assert self.pin is not None
        theirs, ours = self._mac(pin.encode()), self._mac(self.pin.reveal().encode())
        if not hmac.compare_digest(theirs, ours):
            return AdmissionResult.UNKNOWN
        self.refund_pin_attempt()
        return AdmissionResult.ADMITTED

    def spend_pin_attempt(self) -> bool:
        """Spend a PIN attempt; return False if none is left."""
        if self.pin_attempts_left <= 0:
            return False
        self.pin_attempts_left -= 1
        return True

    def refund_pin_attempt(self) -> None:
        """Return an attempt, because the PIN was right."""
        self.pin_attempts_left += 1

    def _mac(self, data: bytes) -> bytes:
        """Hash to a fixed length, so that all comparisons take equally long."""
        return hmac.digest(self._key, data, "sha256")

    def issue_token(self, worker: str) -> tuple[str, str]:
        """Issue a token in place of the worker's old one; return it and its hash."""
        token = join_link.encode(secrets.token_bytes(_TOKEN_BYTES))
        digest = sha256_hex(token)
        self.add_token(digest, worker)
        return token, digest

    def add_token(self, digest: str, worker: str) -> None:
        """Add a token by its hash, in place of the worker's old one."""
        self.revoke_tokens(worker)
        self._tokens[digest] = worker

    def revoke_tokens(self, worker: str) -> None:
        """End the tokens of a worker."""
        self._tokens = {d: w for d, w in self._tokens.items() if w != worker}

    def revoke_all_tokens(self) -> None:
        """End the tokens of all workers; they join again."""
        self._tokens.clear()

    def worker_of(self, token: str) -> str | None:
        """Return the worker with this token, or None.

        The token is looked up by its hash, so timing reveals nothing about it.
        """
        return self._tokens.get(sha256_hex(token))

    @property
    def tokens(self) -> dict[str, str]:
        """The hashes of all tokens, and their workers."""
        return dict(self._tokens)


def sha256_hex(text: str) -> str:
    """Return the hash by which tokens and nonces are kept."""
    return hashlib.sha256(text.encode()).hexdigest()
