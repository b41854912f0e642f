"""Random numbers that depend only on a seed: the same on every machine and version.

Every rank draws the indices of random-k sparsification and the initial low-rank basis
for itself, and all must draw the same. numpy may change its streams between versions,
and machines rarely have the same version. These numbers are hashes (splitmix64) of a
seed and a position, computed in integer arithmetic only.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from ringleader.engine.arrays import Array

UInt64s = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def derive_seed(seed: int, step: int, name: str) -> int:
    """Return a 64-bit seed for one use: a hash of ``seed``, ``step`` and ``name``."""
    text = struct.pack("<QQ", seed % 2**64, step % 2**64) + name.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def random_uint64(seed: int, count: int) -> UInt64s:
    """Return ``count`` random 64-bit integers."""
    x = np.arange(1, count + 1, dtype=np.uint64)
    x *= _STEP
    x += np.uint64(seed)
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def stratified_indices(seed: int, total: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` distinct indices below ``total``, ascending.

    The range is cut into ``count`` equal strata, and one index is drawn uniformly from
    each.
    """
    edges = np.arange(count + 1, dtype=np.uint64) * np.uint64(total)
    edges //= np.uint64(max(count, 1))
    high = random_uint64(seed, count) >> _HALF
    return (edges[:-1] + (high * np.diff(edges) >> _HALF)).astype(np.int64)


def uniform_signed(seed: int, count: int) -> Array:
    """Return ``count`` float32 values between -1 and 1, with 24 random bits each."""
    whole = (random_uint64(seed, count) >> np.uint64(40)).astype(np.float32)
    return whole * np.float32(2**-23) - np.float32(1)
