"""Authentication by server name (SNI), before a server sends its certificate.

The client puts a nonce and a MAC over it into the server name of the TLS hello. A
client that lacks the cluster secret gets an alert of seven bytes instead of a
certificate, so a stranger costs little and learns nothing by which to recognise a
cluster. This hides the server; it does not authenticate the client: mutual TLS follows
in every case.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import threading
from collections import OrderedDict
from hashlib import sha256

from ringleader.identity.secret_value import Secret

SUFFIX = ".k.internal"
MAX_NONCES = 4096
"""Nonces that a server remembers, 64 KiB. An older name can be replayed; that shows
the certificate to the one who recorded it and opens nothing."""

_NONCE_BYTES = 16
_MAC_BYTES = 16
_CHARACTERS = 52


def new_server_name(key: Secret[bytes], label: str) -> str:
    """Return a new server name for a server that is announced by this label."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    raw = nonce + _mac(key, nonce, label)
    return base64.b32encode(raw).decode().rstrip("=").lower() + SUFFIX


class SniVerifier:
    """Verifies server names. Any thread may call it; it remembers nonces per
    process."""

    def __init__(self, key: Secret[bytes]) -> None:
        self._key = key
        self._labels: tuple[str, ...] = ("",)
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def set_labels(self, *labels: str) -> None:
        """Set the labels by which we are announced, beside the empty one."""
        self._labels = ("", *labels)

    def admits(self, name: str | None) -> bool:
        """Return whether a server name is valid and was not used before."""
        raw = _decode(name or "")
        if raw is None:
            return False
        nonce, mac = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
        macs = [_mac(self._key, nonce, label) for label in self._labels]
        if not any(hmac.compare_digest(mac, each) for each in macs):
            return False
        with self._lock:  # after the MAC: strangers must not evict our nonces
            if nonce in self._seen:
                return False
            self._seen[nonce] = None
            if len(self._seen) > MAX_NONCES:
                self._seen.popitem(last=False)
        return True


def _decode(name: str) -> bytes | None:
    text = name.removesuffix(SUFFIX)
    if text == name or len(text) != _CHARACTERS or not text.isascii():
        return None
    try:
        return base64.b32decode(text.upper() + "====")
    except ValueError:
        return None


def _mac(key: Secret[bytes], nonce: bytes, label: str) -> bytes:
    message = b"knock1" + nonce + label.encode()
    return hmac.digest(key.reveal(), message, sha256)[:_MAC_BYTES]
