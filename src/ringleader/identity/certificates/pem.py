"""PemCredentials: a certificate, its key and its authorities."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.identity.secret_value import Secret


@dataclass(frozen=True, slots=True, eq=False)
class PemCredentials:
    """Certificate, private key and authorities of one end of a TLS connection."""

    authority: bytes
    """Certificates of all authorities that may have signed the peer's."""
    certificate: bytes
    """Our certificate, followed by its intermediate certificates."""
    key: Secret[bytes]
    """Private key of our certificate, not encrypted."""
    host_name: str = ""
    """The name that a server must prove; empty: the one by which it was dialled."""
