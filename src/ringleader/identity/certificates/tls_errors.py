"""Translation of OpenSSL's handshake errors into errors that say what to do."""

from __future__ import annotations

import ssl

from ringleader.errors import PeerError, PeerLost, PeerUntrusted

_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")

_REASONS = (
    (
        _PLAIN,
        "does not speak TLS and we do; is it another program, or is "
        "RINGLEADER_CREDENTIALS not set there?",
    ),
    (
        ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS"),
        "does not speak TLS 1.3, and nothing older is safe",
    ),
    (
        ("UNRECOGNIZED_NAME",),
        "refused the connection: it is in another cluster (other secret?), or it uses "
        "the cluster's certificates and we use the user's",
    ),
    (
        ("CALLBACK_FAILED",),  # our own check of the server name said no
        "does not know our secret: a stranger, or in another cluster (other secret?)",
    ),
    (
        ("DID_NOT_RETURN_A_CERTIFICATE",),
        "showed no certificate; one from our authority is required",
    ),
    (
        ("CERTIFICATE_REQUIRED",),
        "requires a certificate, and this process showed none",
    ),
    (
        ("ALERT_CERTIFICATE_EXPIRED",),
        "does not accept our certificate: it has expired",
    ),
    (
        ("ALERT_UNSUPPORTED_CERTIFICATE",),
        "does not accept our certificate: its extended key usage lacks clientAuth or "
        "serverAuth",
    ),
    (
        ("ALERT_BAD_CERTIFICATE",),
        "does not accept our certificate: it is for another host than was dialled, or "
        "not valid yet",
    ),
    (
        ("VERIFY_FAILED",),
        "its certificate is not from this cluster (other secret?) or authority",
    ),
    (
        ("ALERT_UNKNOWN_CA", "ALERT_CERTIFICATE", "DECRYPT_ERROR"),
        "does not accept our certificate: it is in another cluster (other secret?) or "
        "trusts another authority",
    ),
)
"""(parts of OpenSSL's names, what they mean here); the first match counts."""


_VERIFY_REASONS = {
    9: "its certificate is not valid yet; is a clock wrong?",
    10: "its certificate has expired",
    26: "its certificate may not be used for this side of a connection",
    62: "its certificate is for another host",
    64: "its certificate is for another address",
}
"""Error codes of OpenSSL's verification; other codes mean an unknown authority."""


def name_of(exc: ssl.SSLError) -> str:
    """Return OpenSSL's name of an error."""
    return (exc.reason or str(exc)).upper().replace(" ", "_")


def is_plain(exc: ssl.SSLError) -> bool:
    """Return whether the other side does not speak TLS at all."""
    return any(word in name_of(exc) for word in _PLAIN)


def explain(peer: int | str, exc: ssl.SSLError) -> PeerError:
    """Return our error for a failed handshake, or a failed first read after it."""
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerLost(peer, "hung up during the handshake")
    name = name_of(exc)
    known = next((t for words, t in _REASONS if any(w in name for w in words)), "")
    if isinstance(exc, ssl.SSLCertVerificationError):
        known = _VERIFY_REASONS.get(exc.verify_code, known) + f": {exc.verify_message}"
    return PeerUntrusted(peer, known or f"could not prove who it is ({name})")
