"""load_credentials: the certificates with which ranks are connected."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.settings import LinkSettings
from ringleader.transport.tls_credentials import TlsCredentials

_loaded: dict[object, TlsCredentials] = {}
"""At most one, by what it was loaded from."""


def load_credentials(links: LinkSettings) -> TlsCredentials | None:
    """Load the certificates, the user's before the cluster's; None: plain TCP.

    As long as the files stay as they are, the result is the same object, by which the
    groups of a process find that they can share a listener. Raises ConfigError if a
    file cannot be used; it never falls back to plain TCP.
    """
    if links.tls is None and not links.credentials:
        return None
    try:
        # Imported here, so that plain groups do not need cryptography.
        from ringleader.identity.credentials import Credentials
        from ringleader.identity.user_credentials import UserCredentials
    except ImportError as exc:
        name = "RINGLEADER_CREDENTIALS" if links.tls is None else "RINGLEADER_TLS_CERT"
        text = f"{name} is set, and {exc.name} is not installed"
        raise ConfigError(text) from exc
    # The user's certificates read their files again by themselves.
    key = links.tls or _state_of(links.credentials)
    if key not in _loaded:
        loaded: TlsCredentials
        if links.tls is not None:
            loaded = UserCredentials.load(links.tls)
        else:
            loaded = Credentials.from_file(Path(links.credentials))
        _loaded.clear()
        _loaded[key] = loaded
    return _loaded[key]


def _state_of(path: str) -> tuple[object, ...]:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return path, found.st_ino, found.st_mtime_ns, found.st_mode, found.st_uid
    return (path,)
