"""The codecs by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringleader.codec.codec import Codec
from ringleader.codec.half_precision import Bf16, Fp16
from ringleader.codec.int8 import Int8
from ringleader.codec.onebit import OneBit
from ringleader.errors import ConfigError

NAMES = ("fp16", "bf16", "int8", "int8-stochastic", "onebit")
"""The names that ``make_codec`` accepts. int8-stochastic optionally takes a seed, as in
"int8-stochastic:7"."""

_CLASSES: dict[str, type[Codec]] = {
    "fp16": Fp16,
    "bf16": Bf16,
    "int8": Int8,
    "onebit": OneBit,
}


def wire_name(name: str) -> str:
    """Return the name of the encoding that the codec ``name`` writes."""
    base = name.partition(":")[0]
    if base not in NAMES:
        raise ConfigError(f"unknown codec {name!r}; choose one of: {', '.join(NAMES)}")
    return base.removesuffix("-stochastic")


def make_codec(name: str, rank: int = 0) -> Codec:
    """Create the codec ``name``. With a seed, ``rank`` selects the random stream."""
    base, _, seed = name.partition(":")
    wire_name(name)
    if base == "int8-stochastic":
        return Int8(_generator(seed, name, rank))
    if seed:
        raise ConfigError(f"codec {name!r}: {base} takes no number")
    return _CLASSES[base]()


def _generator(seed: str, name: str, rank: int) -> np.random.Generator:
    if seed and not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
        raise ConfigError(
            f"codec {name!r}: the seed must be a whole number, not {seed!r}"
        )
    entropy: Any = [int(seed), rank] if seed else None
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
