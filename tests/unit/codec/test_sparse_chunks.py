"""The sparse codec: which values are kept, how exactly, and the refusal of bad data."""

from __future__ import annotations

import numpy as np
import pytest

from ringleader.codec.codec import Values
from ringleader.codec.sparse_chunks import CHUNK, KEPT, SparseChunks

CODEC = SparseChunks()


def numbers(count: int, seed: int = 0) -> Values:
    chance = np.random.default_rng(seed)
    return chance.standard_normal(count).astype(np.float32)


def through(values: Values) -> Values:
    data = np.full(CODEC.num_bytes(len(values)), 0xA5, np.uint8)
    CODEC.encode(values, data)
    decoded = np.full(len(values), 77, np.float32)
    CODEC.decode(data, decoded)
    return decoded


@pytest.mark.parametrize("count", [0, 1, 5, 63, 65, 4095, 4096, 4097, 10007])
def test_the_largest_of_every_chunk_are_kept(count: int) -> None:
    values = numbers(count)
    decoded = through(values)
    assert CODEC.num_bytes(count) == 120 * -(-count // CHUNK)
    for i in range(0, count, CHUNK):
        chunk, kept = values[i : i + CHUNK], decoded[i : i + CHUNK]
        largest = np.sort(np.abs(chunk))[::-1][:KEPT]
        assert np.count_nonzero(kept) == min(KEPT, len(chunk))
        chosen = np.flatnonzero(kept)
        assert set(np.abs(chunk[chosen])) == set(largest)
        assert np.array_equal(np.sign(kept[chosen]), np.sign(chunk[chosen]))
        # two levels: their means are those of the exact values, in float64
        assert np.isclose(np.abs(kept[chosen]).sum(), largest.sum(dtype=np.float64))
        assert len(set(np.abs(kept[chosen]))) <= 2


def test_two_levels_are_closer_than_one() -> None:
    values = numbers(3 * CHUNK + 11)
    decoded = through(values)
    places = np.flatnonzero(decoded)
    exact = np.abs(values[places]).astype(np.float64)
    error = np.square(exact - np.abs(decoded[places])).mean()
    assert error < 0.5 * exact.var()


def test_error_feedback_sends_everything_in_the_end() -> None:
    """A value that is never large is sent when what was left out has added up."""
    values, residual = numbers(5000) * np.float32(0.01), np.zeros(5000, np.float32)
    values[17] = 5e-3
    total = np.zeros(5000, np.float64)
    for _ in range(400):
        wanted = values + residual
        data = np.empty(CODEC.num_bytes(5000), np.uint8)
        CODEC.encode(wanted, data, residual)
        total += wanted.astype(np.float64) - residual
    assert np.allclose(total / 400, values, atol=0.003)
    assert total[17] > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_spoils_its_chunk_only(bad: float) -> None:
    values = numbers(2 * CHUNK)
    values[5000] = bad
    decoded = through(values)
    assert np.isnan(decoded[CHUNK:]).all()
    assert np.isfinite(decoded[:CHUNK]).all()
    error = np.empty(len(values), np.float32)
    CODEC.encode(values, np.empty(CODEC.num_bytes(len(values)), np.uint8), error)
    assert np.isfinite(error).all()


@pytest.mark.parametrize(
    ("place", "byte"), [(3, 0xFF), (8, 0xFF), (7, 0x80)], ids=["nan", "order", "sign"]
)
def test_data_that_nobody_encoded_is_refused(place: int, byte: int) -> None:
    data = np.empty(CODEC.num_bytes(100), np.uint8)
    CODEC.encode(numbers(100), data)
    data[place] = byte
    if place == 3:  # an exponent of ones and a mantissa: not a number
        data[2] = 0xFF
    if place == 8:  # two equal indices
        data[8:14] = [1, 0x10, 0, 1, 0x10, 0]
    with pytest.raises(ValueError, match="ascend"):
        CODEC.decode(data, np.empty(100, np.float32))


def test_any_bytes_decode_or_are_refused() -> None:
    chance = np.random.default_rng(3)
    for _ in range(50):
        data = chance.integers(0, 256, CODEC.num_bytes(9000), dtype=np.uint8)
        values = np.empty(9000, np.float32)
        try:
            CODEC.decode(data, values)
        except ValueError:
            continue
