"""Checksums of small files: one changed bit would be another key or another cluster.

The struct of such a file has a field ``sha256``: the SHA-256 of its JSON, computed
while the field is empty.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

_T = TypeVar("_T", bound=msgspec.Struct)


def with_checksum(content: _T) -> _T:
    """Return the same content with its checksum."""
    return msgspec.structs.replace(content, sha256=_checksum(content))


def verify_checksum(content: msgspec.Struct) -> None:
    """Raise ValueError if the content is not what was stored."""
    if getattr(content, "sha256", "") != _checksum(content):
        raise ValueError("its checksum does not match")


def _checksum(content: msgspec.Struct) -> str:
    blank = msgspec.structs.replace(content, sha256="")
    return hashlib.sha256(msgspec.json.encode(blank)).hexdigest()
