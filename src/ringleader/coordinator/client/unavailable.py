"""Why a coordinator cannot be reached, in words: gRPC tells it in those of its code."""

from __future__ import annotations

BROKE = "the connection broke"
_NO_ANSWER = "no answer; is it running, and does a firewall let the port through?"
_REASONS = (
    (
        "connection refused",
        "nothing listens there (connection refused); start it with 'ringleader "
        "coordinator', or correct the address",
    ),
    ("domain name not found", "the name cannot be resolved"),
    ("hostname lookup", "the name cannot be resolved"),
    ("dns resolution failed", "the name cannot be resolved"),
    ("no route to host", "there is no route to it"),
    ("network is unreachable", "there is no route to it"),
    ("timed out", _NO_ANSWER),
    ("timeout", _NO_ANSWER),
    ("tcp handshaker shutdown", _NO_ANSWER),
    ("handshake read failed", _NO_ANSWER),
    ("connection reset", BROKE),
    ("socket closed", BROKE),
    ("goaway", "it is ending"),
)
_TLS_WORDS = ("tls handshake failed", "ssl_error", "certificate", "hostname verif")
NOT_TRUSTED = (
    "no certificate that both sides trust: it serves another cluster, or was started "
    "with certificates of its own (--tls-ca) or with --plaintext, and this side was not"
)


def is_about_trust(details: str) -> bool:
    """Return whether a connection failed because of certificates."""
    return any(word in details.lower() for word in _TLS_WORDS)


def reason(details: str) -> str:
    """Return a short reason for ``details`` of gRPC's UNAVAILABLE."""
    text = details.lower()
    return next((said for word, said in _REASONS if word in text), details[:200])
