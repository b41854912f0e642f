"""The compression schemes by name.

none                        float32, uncompressed
bf16, fp16                  two bytes per value
int8, int8-stochastic       one byte per value, rounded to nearest or stochastically
onebit                      one bit per value
topk:0.01, topk-exact:0.01  the largest 1 % of each parameter
randomk:0.01                a random 1 % of each parameter
powersgd:2                  matrices as products of rank 2
auto                        a codec or none, as the measured network suggests
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ringleader.errors import ConfigError


class Method(Enum):
    """The methods that schemes are built on."""

    NONE = "none"
    CODEC = "codec"
    TOP = "topk"
    RANDOM = "randomk"
    LOW_RANK = "powersgd"


_PLAIN = {
    "none": Method.NONE,
    "bf16": Method.CODEC,
    "fp16": Method.CODEC,
    "int8": Method.CODEC,
    "int8-stochastic": Method.CODEC,
    "onebit": Method.CODEC,
    "auto": Method.CODEC,
}
_RATIO = {
    "topk": Method.TOP,
    "topk-exact": Method.TOP,
    "randomk": Method.RANDOM,
}
NAMES = (*_PLAIN, *(f"{name}:0.01" for name in _RATIO), "powersgd:2")
"""Every scheme, with an example number if it takes one."""

MAX_RANK = 256
"""With a higher rank the orthogonalization costs more than the saved bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A parsed scheme."""

    name: str
    """The name as the user wrote it."""
    method: Method
    codec: str = ""
    ratio: float = 1.0
    """The share of a parameter's values that is sent."""
    is_exact: bool = False
    """Whether top-k selection is exact or by a sampled threshold."""
    rank: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether only selected values are sent."""
        return self.method in (Method.TOP, Method.RANDOM)


def parse(name: str) -> Scheme:
    """Parse the name of a scheme; ConfigError says what is wrong with it."""
    if not isinstance(name, str):
        raise ConfigError(f"compression: a scheme is a string, not {name!r}")
    base, colon, number = name.partition(":")
    if base in _PLAIN:
        if colon:
            raise ConfigError(f"compression: {base!r} takes no number, as in {name!r}")
        method = _PLAIN[base]
        return Scheme(
            name=name, method=method, codec=base if method is Method.CODEC else ""
        )
    if base in _RATIO:
        return Scheme(
            name=name,
            method=_RATIO[base],
            ratio=_ratio(name, base, number),
            is_exact=base == "topk-exact",
        )
    if base == "powersgd":
        return Scheme(name=name, method=Method.LOW_RANK, rank=_rank(name, number))
    raise ConfigError(
        f"compression: unknown scheme {name!r}; choose one of: {', '.join(NAMES)}"
    )


def _ratio(name: str, base: str, number: str) -> float:
    try:
        ratio = float(number)
    except ValueError:
        ratio = -1.0
    if not 0 < ratio <= 1:  # false for NaN as well
        text = "the share of values to send must be above 0 and at most 1"
        raise ConfigError(f"compression: {name!r}: {text}, as in '{base}:0.01'")
    return ratio


def _rank(name: str, number: str) -> int:
    is_number = number.isascii() and number.isdigit()
    if not is_number or not 1 <= int(number) <= MAX_RANK:
        text = f"the rank must be a whole number from 1 to {MAX_RANK}"
        raise ConfigError(f"compression: {name!r}: {text}, as in 'powersgd:2'")
    return int(number)
