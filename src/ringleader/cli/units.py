"""Parses and formats sizes, times and rates: 25M, 64KiB, 0.5ms, 1gbit, 125MB/s."""

from __future__ import annotations

import math
import re

from ringleader.errors import ConfigError

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
"""Decimal factors, as for disks and networks; ``BINARY`` has those with an i."""

BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(\S*)\s*", re.ASCII)


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    """Split a text into its number and the unit after it."""
    found = _NUMBER.fullmatch(text)
    if found is None or not math.isfinite(float(found[1])):
        raise ConfigError(
            f"{what}: {text!r} is not a number with a unit like {example}"
        )
    return float(found[1]), found[2]


def _unknown(what: str, text: str, example: str) -> ConfigError:
    return ConfigError(f"{what}: unknown unit in {text!r}; write it like {example}")


def parse_size(text: str, *, what: str = "size") -> int:
    """Parse bytes: ``25M`` -> 25,000,000; ``64KiB`` -> 65,536; no unit is bytes."""
    example = "25M, 64KiB or 100"
    number, unit = _split(text, what, example)
    factor = {**PREFIXES, **BINARY}.get(unit.lower().removesuffix("b"))
    if factor is None:
        raise _unknown(what, text, example)
    return round(number * factor)


def parse_seconds(text: str, *, what: str = "time") -> float:
    """Parse seconds: ``0.5ms`` -> 0.0005; the unit is required, except for 0."""
    example = "0.5ms, 20us or 1s"
    number, unit = _split(text, what, example)
    if number == 0 and not unit:
        return 0.0
    if unit.lower() not in SECONDS:
        raise _unknown(what, text, example)
    return number * SECONDS[unit.lower()]


def parse_rate(text: str, *, what: str = "rate") -> float:
    """Parse bytes per second: ``1gbit`` and ``125MB/s`` -> 125,000,000.

    A lower-case b is a bit and an upper-case B a byte, as in data sheets.
    """
    example = "1gbit, 100mbit or 125MB/s"
    number, unit = _split(text, what, example)
    found = re.fullmatch(r"([kmgtKMGT]?i?)(bit|bits|bps|b|B)(/s)?", unit)
    if found is None or (found[2] in "bB" and not found[3]):
        raise _unknown(what, text, example)
    factor = {**PREFIXES, **BINARY}.get(found[1].lower())
    if factor is None:
        raise _unknown(what, text, example)
    if number == 0:
        raise ConfigError(f"{what}: must be more than 0, got {text!r}")
    return number * factor / (1 if found[2] == "B" else 8)


def parse_counts(text: str, *, what: str, most: int) -> list[int]:
    """Parse counts from 1 to ``most``, in the order given: ``2,8`` -> [2, 8]."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"{what}: {text!r} is not a list of numbers like 2,8,64")
    counts = [int(word) for word in words]
    wrong = [count for count in counts if not 1 <= count <= most]
    if wrong:
        raise ConfigError(f"{what}: {wrong[0]} is not between 1 and {most}")
    return list(dict.fromkeys(counts))


def format_seconds(seconds: float) -> str:
    """Format with three digits and a suitable unit: 4.02 ms, 208 s."""
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    unit = next((u for u in ("s", "ms") if seconds >= SECONDS[u]), "us")
    return f"{seconds / SECONDS[unit]:.3g} {unit}"


def format_bytes(count: int) -> str:
    """Format with a decimal unit: 25 MB."""
    for letter in ("T", "G", "M", "k"):
        factor = PREFIXES[letter.lower()]
        if count >= factor:
            return f"{count / factor:.4g} {letter}B"
    return f"{count} B"


def format_rate(bytes_per_s: float) -> str:
    """Format in bits per second, as usual for networks: 1 Gbit/s."""
    bits = bytes_per_s * 8
    for letter in ("T", "G", "M", "k"):
        factor = PREFIXES[letter.lower()]
        if bits >= factor:
            return f"{bits / factor:.4g} {letter}bit/s"
    return f"{bits:.4g} bit/s"
