"""Sizes, times and rates are parsed and formatted; invalid ones are rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringleader.cli import units
from ringleader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("100", 100),
        ("100B", 100),
        ("25M", 25_000_000),
        ("25MB", 25_000_000),
        ("25 mb", 25_000_000),
        ("64KiB", 65_536),
        ("64k", 64_000),
        ("1.5Gi", 3 * 2**29),
        ("2T", 2 * 10**12),
    ],
)
def test_sizes_are_decimal_unless_they_say_binary(text: str, count: int) -> None:
    assert units.parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5ms", 0.0005), ("20us", 20e-6), ("1 s", 1.0), (".5S", 0.5), ("0", 0.0)],
)
def test_times_have_a_unit(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1gbit", 125e6),
        ("1Gbit/s", 125e6),
        ("1Gbps", 125e6),
        ("100mbit", 12.5e6),
        ("125MB/s", 125e6),
        ("1000Mb/s", 125e6),
        ("1GiB/s", 2**30),
        ("800bit", 100),
    ],
)
def test_rates_are_bytes_per_second_whatever_they_were(
    text: str, bytes_per_s: float
) -> None:
    assert units.parse_rate(text) == pytest.approx(bytes_per_s)


def test_counts_keep_their_order_and_lose_their_doubles() -> None:
    assert units.parse_counts("8, 2,8", what="--nodes", most=10) == [8, 2]


BAD: list[tuple[Callable[[str], object], str]] = [
    *((units.parse_size, t) for t in ("", "M", "25X", "-1", "1e400", "nan", "1 2")),
    *((units.parse_seconds, t) for t in ("", "5", "1h", "-1ms", "ms", "inf")),
    *((units.parse_rate, t) for t in ("", "1", "1gb", "1GB", "0mbit", "1ibit", "fast")),
    *(
        (lambda text: units.parse_counts(text, what="--nodes", most=10), t)
        for t in ("", "2,,3", "2;3", "0", "11", "-2", "2.5", "\u0662")
    ),
]


@pytest.mark.parametrize(("parse", "text"), BAD)
def test_what_cannot_be_read_is_a_sentence(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (5e-7, "0.5 us"),
        (0.0005, "500 us"),
        (0.00402, "4.02 ms"),
        (0.2131, "213 ms"),
        (208.13, "208 s"),
        (16428.4, "16428 s"),
    ],
)
def test_times_are_written_with_three_digits(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


def test_sizes_and_rates_are_written_as_they_are_typed() -> None:
    assert units.format_bytes(25_000_000) == "25 MB"
    assert units.format_bytes(12) == "12 B"
    assert units.format_rate(125e6) == "1 Gbit/s"
    assert units.format_rate(12.5e6) == "100 Mbit/s"
    assert units.format_rate(100) == "800 bit/s"
