"""Secret wraps a value so that it is never printed by accident."""

from __future__ import annotations

import hmac
from typing import Generic, NoReturn, SupportsIndex, TypeVar

from ringleader.errors import InternalError

_T = TypeVar("_T", bound=bytes | str)


class Secret(Generic[_T]):
    """Bytes or text that are shown only by an explicit ``reveal``.

    Some tools print the locals of every frame in a traceback, logs format whatever they
    are given, and pickles travel: a secret is ``<secret>`` in all of them.
    """

    __slots__ = ("_value",)

    def __init__(self, value: _T) -> None:
        self._value = value

    def reveal(self) -> _T:
        """Return the value. Use it within an expression, not in a variable."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_as_bytes(self._value), _as_bytes(other._value))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickling; ``copy`` and ``deepcopy`` use this method too."""
        raise InternalError("a secret is neither pickled nor copied")


def _as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
