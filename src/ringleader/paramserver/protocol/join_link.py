"""The join link: the address of a server, the fingerprint of its key, a secret code."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit, urlunsplit

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.server_key import FINGERPRINT_BYTES, SECRET_BYTES

RECEIPT_BYTES = 16
JOIN_SCHEME = "Join"
"""``Authorization: Join CODE`` marks requests before joining as those of a worker."""
_PINNED = 1
_PLAIN = 2


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A parsed join link, or a bare address. Only ``url`` may be shown or logged."""

    url: str
    fingerprint: bytes | None = None
    """16 bytes of SHA-256 of the server's public key; None: verify its certificate."""
    code: Secret[str] | None = None
    """The code for ``/v1/join``; None if a PIN must be used."""
    receipt: Secret[str] | None = None
    """The receipt of pairing, if the code came from there."""

    @property
    def is_bare(self) -> bool:
        """True if it is an address and nothing else."""
        return self.fingerprint is None and self.code is None


def build(url: str, secret: bytes, fingerprint: bytes | None) -> Secret[str]:
    """Build the link with which workers join."""
    head = bytes([_PLAIN if fingerprint is None else _PINNED])
    return Secret(f"{url}/#{encode(head + (fingerprint or b'') + secret)}")


def parse(text: str) -> JoinLink:
    """Parse a link or a bare address, as a person pasted it; ConfigError if invalid."""
    parts = _address(text.strip())
    if parts is None:
        raise ConfigError(
            "this is not the address of a server; one looks like https://host"
        )
    url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    if not parts.fragment:
        return JoinLink(url)
    fingerprint, secret = _split(parts.fragment)
    if fingerprint is not None and parts.scheme != "https":
        raise ConfigError("the link is for https, but its address begins with http:")
    return JoinLink(url, fingerprint, Secret(encode(secret)))


def encode(data: bytes) -> str:
    """Encode bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes | None:
    """Decode what ``encode`` returned; None if it is anything else."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if encode(data) == text else None


def _address(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    is_bare = not parts.query and parts.username is None
    is_ours = parts.scheme in ("http", "https") and has_host and is_bare
    return parts if is_ours else None


def _split(fragment: str) -> tuple[bytes | None, bytes]:
    data = decode(fragment) or b""
    if data[:1] == bytes([_PLAIN]) and len(data) == 1 + SECRET_BYTES:
        return None, data[1:]
    if (
        data[:1] == bytes([_PINNED])
        and len(data) == 1 + FINGERPRINT_BYTES + SECRET_BYTES
    ):
        return data[1 : 1 + FINGERPRINT_BYTES], data[1 + FINGERPRINT_BYTES :]
    raise ConfigError("the link is incomplete: copy it again, up to its end")
