"""A keyed permutation of 0..n-1 that is computed where it is needed.

A Feistel network permutes the numbers of 2k bits; a number outside of 0..n-1 is
permuted again until it falls inside (cycle walking), at most four times on average. So
any rank computes any part of the shuffled order without a list of all samples.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_ROUNDS = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


class Permutation:
    """The order of ``n`` samples that follows from a seed and an epoch."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half_bits = max(1, -(-max(n - 1, 1).bit_length() // 2))
        text = f"ringleader order {n} {seed} {epoch}".encode()
        digest = hashlib.blake2b(text, digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __call__(self, positions: Indices) -> Indices:
        """Return the samples at these positions of the order."""
        values = self._encrypt(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            values[outside] = self._encrypt(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64)

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right, key) & mask)
        return (left << bits) | right


def _mixed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return numbers of which every bit depends on all bits of value and key."""
    mixed = (values ^ key) * _MULTIPLIER  # wraps around, as it should
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    return mixed ^ (mixed >> np.uint64(32))
