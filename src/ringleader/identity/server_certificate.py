"""ServerCertificate: the user's certificate for a parameter server, with rotation."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.identity import server_key
from ringleader.identity.certificates import user_context
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem


class ServerCertificate:
    """A certificate and its key in files; new ones count from the next connection."""

    def __init__(
        self, source: RotatingPem, on_key: Callable[[bytes], None] = lambda _: None
    ) -> None:
        self._source = source
        self.on_key = on_key
        """Called with the fingerprint of the key when it may have changed."""
        self._use(source.current())

    @classmethod
    def load(cls, cert: Path | None, key: Path | None) -> ServerCertificate | None:
        """Read the files; None if none are given, ConfigError if one is missing."""
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            missing = "--tls-cert" if cert is None else "--tls-key"
            raise ConfigError(f"{missing} is missing: give --tls-cert and --tls-key")
        return cls(RotatingPem.of_server(cert, key))

    @property
    def fingerprint(self) -> bytes:
        """Fingerprint of the key, for pairing by PIN; empty if it is not P-256."""
        leaf = self._pem.certificate.decode().partition("-----END CERTIFICATE-----")
        try:
            return server_key.fingerprint_of(
                ssl.PEM_cert_to_DER_cert("".join(leaf[:2]))
            )
        except ValueError:
            return b""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for the next connection."""
        found = self._source.current()
        if found is not self._pem:
            self._use(found)
            self.on_key(self.fingerprint)
        return self._context

    def _use(self, pem: PemCredentials) -> None:
        # A new context: an old one would keep a certificate with another kind of key.
        self._context = user_context.http_context(pem)
        self._pem = pem
