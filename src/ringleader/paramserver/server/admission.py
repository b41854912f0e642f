"""Who may come in: the code of the join link, a PIN with a budget, and tokens.

Tokens are 256 bits and kept as hashes. Guessing a PIN spends a budget that belongs to
the whole server, whatever addresses the guesses come from; neither codes nor tokens
touch it, so a vandal who burns it locks out nobody who is in or has the link.
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
"""Wrong PINs until the server stops listening to PINs: a typist makes two or three, a
guesser of four digits gets in once in a thousand servers."""
MAX_PIN_CHARACTERS = 128
_TOKEN_BYTES = 32


class AdmissionResult(Enum):
    """What the entrance says."""

    ADMITTED = "welcome"
    UNKNOWN = "unknown"
    LOCKED = "locked"


@dataclass(slots=True)
class Admission:
    """Lets workers in. One thread."""

    secret: Secret[bytes]
    pin: Secret[str] | None = None
    is_open: bool = False
    """Lets everybody in; only for servers that listen on this machine alone."""
    pin_attempts_left: int = PIN_ATTEMPTS
    fingerprint: bytes = b""
    """Of the server's key, for which a PIN can vouch."""
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pin is not None:
            length = len(self.pin.reveal())
            if not 1 <= length <= MAX_PIN_CHARACTERS:
                raise ConfigError(f"PIN: 1 to {MAX_PIN_CHARACTERS} characters go")

    def is_join_code(self, code: str | None) -> bool:
        """Whether this is the code of the join link."""
        data = join_link.decode(code or "") or b""
        return hmac.compare_digest(self._mac(data), self._mac(self.secret.reveal()))

    def admit(self, code: str | None, pin: str | None) -> AdmissionResult:
        """Whether a stranger may join."""
        if self.is_open or self.is_join_code(code):
            return AdmissionResult.ADMITTED
        if code is not None or pin is None or self.pin is None:
            return AdmissionResult.UNKNOWN
        return self._try(pin)

    def _try(self, pin: str) -> AdmissionResult:
        if (
            not self.spend_pin_attempt()
        ):  # before the compare: nothing can interrupt in favour
            return AdmissionResult.LOCKED
        assert self.pin is not None
        theirs, ours = self._mac(pin.encode()), self._mac(self.pin.reveal().encode())
        if not hmac.compare_digest(theirs, ours):
            return AdmissionResult.UNKNOWN
        self.refund_pin_attempt()
        return AdmissionResult.ADMITTED

    def spend_pin_attempt(self) -> bool:
        """Take an attempt from the budget of the PIN; False if none is left."""
        if self.pin_attempts_left <= 0:
            return False
        self.pin_attempts_left -= 1
        return True

    def refund_pin_attempt(self) -> None:
        """It was no wrong PIN."""
        self.pin_attempts_left += 1

    def _mac(self, data: bytes) -> bytes:
        """Equal lengths for all, so that comparing takes equally long."""
        return hmac.digest(self._key, data, "sha256")

    def issue_token(self, worker: str) -> tuple[str, str]:
        """A new token for a worker, and its hash for the records; an old one ends."""
        token = join_link.encode(secrets.token_bytes(_TOKEN_BYTES))
        digest = sha256_hex(token)
        self.add_token(digest, worker)
        return token, digest

    def add_token(self, digest: str, worker: str) -> None:
        """A token by its hash."""
        self.revoke_tokens(worker)
        self._tokens[digest] = worker

    def revoke_tokens(self, worker: str) -> None:
        """The tokens of a worker end."""
        self._tokens = {d: w for d, w in self._tokens.items() if w != worker}

    def worker_of(self, token: str) -> str | None:
        """The worker with this token. Found by its hash: timing tells nothing."""
        return self._tokens.get(sha256_hex(token))

    @property
    def tokens(self) -> dict[str, str]:
        """Hashes of tokens and whose they are."""
        return dict(self._tokens)


def sha256_hex(text: str) -> str:
    """How tokens and nonces are kept."""
    return hashlib.sha256(text.encode()).hexdigest()
