"""Random numbers that are the same on every machine, for all time.

Ranks draw the indices of a random sparsification, and the start of a low-rank basis,
each for itself: they must draw the same. numpy may change its streams with a version,
and two machines rarely have the same one. So numbers are hashes of what they are for
and of their position (splitmix64), in integer arithmetic only.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from ringleader.engine.arrays import Array

Hashes = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def purpose(seed: int, step: int, name: str) -> int:
    """64 bits that stand for one use: other numbers for each seed, step and name."""
    text = struct.pack("<QQ", seed % 2**64, step % 2**64) + name.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def hashes(start: int, count: int) -> Hashes:
    """``count`` random numbers of 64 bits for the purpose ``start``."""
    x = np.arange(1, count + 1, dtype=np.uint64)
    x *= _STEP
    x += np.uint64(start)
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def spread(start: int, total: int, count: int) -> NDArray[np.int64]:
    """``count`` different indices below ``total``, ascending: one from each of equal
    shares, which every index of a share has the same chance to be.
    """
    edges = np.arange(count + 1, dtype=np.uint64) * np.uint64(total)
    edges //= np.uint64(max(count, 1))
    high = hashes(start, count) >> _HALF
    return (edges[:-1] + (high * np.diff(edges) >> _HALF)).astype(np.int64)


def signed(start: int, count: int) -> Array:
    """``count`` float32 values between -1 and 1, of 24 random bits."""
    whole = (hashes(start, count) >> np.uint64(40)).astype(np.float32)
    return whole * np.float32(2**-23) - np.float32(1)
