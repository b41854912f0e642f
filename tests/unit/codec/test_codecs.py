"""Codecs: accuracy, size, and the refusal of invalid data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.codec.codec import BLOCK, Codec, Data, Values
from ringleader.codec.registry import NAMES, make_codec, wire_name
from ringleader.errors import ConfigError

LENGTHS = (0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5000)
SCALED = ("int8", "int8-stochastic:1", "onebit")


def numbers(count: int, seed: int = 0) -> Values:
    chance = np.random.default_rng(seed)
    return chance.standard_normal(count).astype(np.float32)


def coded(codec: Codec, values: Values) -> Data:
    """Encode into memory that is not zero before."""
    data = np.full(codec.num_bytes(len(values)), 0xA5, np.uint8)
    with np.errstate(all="ignore"):  # as the engine does
        codec.encode(values, data)
    return data


def back(codec: Codec, data: Data, count: int) -> Values:
    values = np.full(count, 77, np.float32)
    with np.errstate(all="ignore"):
        codec.decode(data, values)
    return values


def through(name: str, values: Values) -> Values:
    codec = make_codec(name)
    return back(codec, coded(codec, values), len(values))


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_bytes_follows_from_the_number_of_values(name: str) -> None:
    for count in LENGTHS:
        blocks = -(-count // BLOCK)
        expected = {
            "fp16": 2 * count,
            "bf16": 2 * count,
            "int8": count + 4 * blocks,
            "onebit": -(-count // 8) + 4 * blocks,
        }
        assert make_codec(name).num_bytes(count) == expected[wire_name(name)], count


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_halves_are_what_torch_makes_of_them(name: str, dtype: torch.dtype) -> None:
    for count in LENGTHS:
        values = numbers(count) * 1000
        want = torch.from_numpy(values).to(dtype).to(torch.float32).numpy()
        assert np.array_equal(through(name, values), want), count


def test_int8_is_within_half_a_step_of_its_block() -> None:
    for count in LENGTHS:
        values = numbers(count) * np.float32(3)
        got = through("int8", values)
        for i in range(0, count, BLOCK):
            block = values[i : i + BLOCK].astype(np.float64)
            step = np.abs(block).max() / 127
            assert np.abs(got[i : i + BLOCK] - block).max() <= step * 0.50001, count


def test_int8_has_no_bias() -> None:
    """Truncation would shrink all values by 2 %."""
    values = numbers(1 << 18)
    got = through("int8", values)
    size = np.abs(values.astype(np.float64)).sum()
    assert abs(np.abs(got.astype(np.float64)).sum() / size - 1) < 1e-3
    error = np.sqrt(np.mean((got - values.astype(np.float64)) ** 2))
    assert error < 0.0086, "truncation has twice as much"


def test_stochastic_rounding_is_right_on_average() -> None:
    values = np.full(1 << 16, 0.3, np.float32)
    values[::BLOCK] = 127  # a step is 1: the others become 0 or 1
    got = through("int8-stochastic:5", values)
    small = np.delete(got, np.arange(0, len(got), BLOCK))
    assert set(np.unique(small)) == {0.0, 1.0}
    assert abs(float(small.mean()) - 0.3) < 0.01


def test_stochastic_rounding_repeats_with_its_seed_and_differs_by_rank() -> None:
    values = numbers(5000)
    one, again, other = (
        coded(make_codec("int8-stochastic:9", rank), values) for rank in (0, 0, 1)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("count", LENGTHS[1:])
def test_onebit_keeps_signs_and_the_mean_size(count: int) -> None:
    """0 must not become minus the scale, and an empty block must not become NaN."""
    values = numbers(count)
    values[0] = 0
    got = through("onebit", values)
    assert got[0] > 0 or count == 1
    assert np.array_equal(np.signbit(got), np.signbit(values))
    for i in range(0, count, BLOCK):
        mean = np.abs(values[i : i + BLOCK].astype(np.float64)).mean()
        assert np.allclose(np.abs(got[i : i + BLOCK]), mean, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_what_is_lost_is_told_and_is_always_a_number(name: str, bad: float) -> None:
    values = numbers(3 * BLOCK + 5)
    values[BLOCK + 17] = bad
    codec, lost = make_codec(name), np.full(len(values), 77, np.float32)
    data = np.empty(codec.num_bytes(len(values)), np.uint8)
    with np.errstate(all="ignore"):
        codec.encode(values, data, lost)
        missing = values - back(codec, data, len(values))
    assert np.array_equal(lost, np.where(np.isfinite(missing), missing, 0))
    assert lost.any()


@pytest.mark.parametrize("name", NAMES)
def test_zero_stays_zero(name: str) -> None:
    assert not through(name, np.zeros(2 * BLOCK + 3, np.float32)).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1e-40, 1e-35, 1e-20, 1e20, 3e38])
def test_very_small_and_very_large_values_come_back_finite(
    name: str, scale: float
) -> None:
    values = np.clip(numbers(BLOCK), -1, 1) * np.float32(scale)
    got = through(name, values).astype(np.float64)
    if name == "fp16" and scale > 1:
        assert np.isinf(got).any(), "beyond 65504 float16 has nothing else"
        return
    # int8 may round the largest of all up to infinity: one step beyond the range.
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= 1.01 * scale


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_halves_carry_what_is_not_finite(name: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert np.array_equal(through(name, values), values, equal_nan=True)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_becomes_nan_and_no_other_does(
    name: str, bad: float
) -> None:
    values = numbers(3 * BLOCK + 5)
    values[BLOCK + 17] = bad
    got = through(name, values)
    assert np.isnan(got[BLOCK : 2 * BLOCK]).all()
    rest = np.concatenate([got[:BLOCK], got[2 * BLOCK :]])
    assert np.isfinite(rest).all()


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("scale", [np.nan, -1.0, -np.inf])
def test_a_scale_that_none_could_have_is_refused(name: str, scale: float) -> None:
    codec = make_codec(name)
    data = coded(codec, numbers(2 * BLOCK))
    data[4:8].view(np.float32)[0] = scale
    with pytest.raises(ValueError, match="scale"):
        back(codec, data, 2 * BLOCK)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(NAMES), st.binary(max_size=3000), st.integers(0, 2500))
def test_any_bytes_are_read_or_refused(name: str, junk: bytes, count: int) -> None:
    codec = make_codec(name)
    size = codec.num_bytes(count)
    data = np.frombuffer(junk.ljust(size, b"\x81")[:size], np.uint8).copy()
    try:
        assert len(back(codec, data, count)) == count
    except ValueError as exc:
        assert "scale" in str(exc)  # noqa: PT017 - either is right


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(NAMES),
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=40),
)
def test_what_was_written_is_always_readable(name: str, given: list[float]) -> None:
    through(name, np.array(given, np.float32))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("int4", "unknown codec 'int4'; choose one of: fp16"),
        ("int8:3", "int8 takes no number"),
        ("int8-stochastic:x", "the seed must be a whole number, not 'x'"),
        ("", "unknown codec ''"),
    ],
)
def test_a_wrong_name_is_told(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_codec(name)
