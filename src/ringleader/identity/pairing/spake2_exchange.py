"""SPAKE2: two machines that know one PIN agree on a key; a guesser has one try.

The group arithmetic is pure Python, so its time depends a little on the PIN. Callers
must bound the number of runs and answer no sooner than after a fixed time.
"""

from __future__ import annotations

from typing import Final, Literal

import spake2
from cryptography.hazmat.primitives import constant_time

from ringleader.identity.secret_value import Secret

ELEMENT_BYTES: Final = 33
Side = Literal["J", "H"]
"""J joins, H hosts."""

_PRIME = 2**255 - 19
_SIDE_BYTE: dict[Side, bytes] = {"J": b"A", "H": b"B"}
_PASSWORD = "ringleader/v1/pair/pin\0"


def is_element(raw: bytes, side: Side) -> bool:
    """Return whether bytes from ``side`` may be a point; the library is too generous.

    It accepts three encodings of the neutral element. They break nothing, but no honest
    peer sends them.
    """
    if len(raw) != ELEMENT_BYTES or raw[:1] != _SIDE_BYTE[side]:
        return False
    y = int.from_bytes(raw[1:], "little") & ((1 << 255) - 1)
    return 1 < y < _PRIME - 1


class Spake2Exchange:
    """One side of one run; ``opening`` hashes what both sides have sent before."""

    def __init__(self, side: Side, pin: Secret[str], opening: bytes) -> None:
        kind = spake2.SPAKE2_A if side == "J" else spake2.SPAKE2_B
        self._other: Side = "H" if side == "J" else "J"
        self._run = kind(
            (_PASSWORD + pin.reveal()).encode(), idA=b"J" + opening, idB=b"H" + opening
        )
        self.element: bytes = self._run.start()

    def key(self, other: bytes) -> Secret[bytes] | None:
        """Return the key, equal on both sides if the PINs are; None for garbage.

        A wrong PIN is not noticed here: it only gives another key.
        """
        if not is_element(other, self._other):
            return None
        if constant_time.bytes_eq(other[1:], self.element[1:]):
            return None
        try:
            return Secret(bytes(self._run.finish(other)))
        except Exception:  # noqa: BLE001 (the library raises many kinds; all mean no)
            return None
