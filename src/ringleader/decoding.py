"""Decodes messages of a type with msgspec, from any number of threads.

msgspec looks at a type when it is used first, and keeps what it found. While one thread
does that, another one that uses the same type reads the half of it, and the process
dies (msgspec 0.22, 2026-11-18). So the first use of each type is here, under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

_first_uses = threading.RLock()
_used: set[object] = set()


def from_msgpack(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Return the ``kind`` that ``data`` encodes; raises as msgspec does."""
    return in_turn(kind, lambda: msgspec.msgpack.decode(data, type=kind))


def from_json(data: bytes | memoryview | str, kind: type[_T]) -> _T:
    """Return the ``kind`` that ``data`` encodes; raises as msgspec does."""
    return in_turn(kind, lambda: msgspec.json.decode(data, type=kind))


def in_turn(kind: Any, use: Callable[[], _T]) -> _T:  # noqa: ANN401 - any type hint
    """Return ``use()``, which may be the first one of a type: one thread at a time.

    ``use`` must run no code of users, which could wait for another thread.
    """
    if kind in _used:
        return use()
    with _first_uses:
        result = use()
        _used.add(kind)
    return result
