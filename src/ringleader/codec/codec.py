"""What a codec is, and which there are.

A codec turns a run of float32 values into bytes whose number depends on how many values
there are and on nothing else. So both sides know how much travels before it does, no
length is ever read from a peer, and nothing is allocated on a peer's word.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ConfigError

Values = NDArray[np.float32]
Data = NDArray[np.uint8]

BLOCK = 2048
"""Values that share a scale. More save time and cost precision: int8 loses 0.83 % of a
normal distribution with these, 0.88 % with 4096, and 0.79 % with 1024, which take 1.3
times as long."""

NAMES = ("fp16", "bf16", "int8", "int8-stochastic", "onebit")
"""What ``make`` knows; int8-stochastic may end in a seed: "int8-stochastic:7"."""


class Codec(Protocol):
    """One way to write values. Keeps scratch memory, so one thread at a time."""

    name: str
    """On the wire: how to read it. Rounding differently is the same codec."""

    def num_bytes(self, count: int) -> int:
        """How many bytes ``count`` values take."""
        ...

    def encode(self, values: Values, data: Data, lost: Values | None = None) -> None:
        """Write ``values`` to ``data``, which has exactly the right length.

        ``lost`` gets what ``decode`` will not give back, 0 where that is not a number.
        """
        ...

    def decode(self, data: Data, values: Values) -> None:
        """Read what ``encode`` wrote; ValueError for what it never writes."""
        ...


def leave(values: Values, kept: Values, lost: Values, telling: Values) -> None:
    """Write what is not kept of ``values`` to ``lost``, which may be ``kept``.

    ``telling`` is finite if all is; what is not a number would stay for ever.
    """
    np.subtract(values, kept, lost)
    if not np.isfinite(np.add.reduce(telling)):
        lost[~np.isfinite(lost)] = 0


def wire_name(name: str) -> str:
    """How the data of the codec ``name`` is called on the wire."""
    base = name.partition(":")[0]
    if base not in NAMES:
        raise ConfigError(f"there is no codec {name!r}; there are: {', '.join(NAMES)}")
    return base.removesuffix("-stochastic")


def make(name: str, rank: int = 0) -> Codec:
    """The codec called ``name``; ranks that round by chance draw different numbers."""
    from ringleader.codec import halves, int8, onebit

    base, _, seed = name.partition(":")
    wire_name(name)
    if base == "int8-stochastic":
        return int8.Int8(_generator(seed, name, rank))
    if seed:
        raise ConfigError(f"codec {name!r}: {base} takes no number")
    kinds: dict[str, type[Codec]] = {
        "fp16": halves.Fp16,
        "bf16": halves.Bf16,
        "int8": int8.Int8,
        "onebit": onebit.OneBit,
    }
    return kinds[base]()


def _generator(seed: str, name: str, rank: int) -> np.random.Generator:
    if seed and not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
        raise ConfigError(f"codec {name!r}: the seed is a whole number, not {seed!r}")
    entropy: Any = [int(seed), rank] if seed else None
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
