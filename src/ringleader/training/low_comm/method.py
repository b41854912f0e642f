"""Methods of training with little communication by name: diloco:50, sparseloco:30."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.errors import ConfigError
from ringleader.rounds.outer_step import NESTEROV, PLAIN, OuterStep
from ringleader.rounds.round_length import MAX_STEPS

SPARSE = SparseChunks.name
"""Codec of SparseLoCo."""


@dataclass(frozen=True, slots=True)
class LowComm:
    """A method with its number of steps."""

    steps: int
    """Steps of the global batch in one round, of all members together."""
    outer: OuterStep
    codec: str


def parse(name: str) -> LowComm:
    """Parse the name of a method; ConfigError says what is wrong with it."""
    method, _, number = name.partition(":")
    known = {"diloco": (50, NESTEROV, "int8"), "sparseloco": (30, PLAIN, SPARSE)}
    if method not in known:
        text = f"elastic: low_comm={name!r}; use 'diloco:50' or 'sparseloco:30'"
        raise ConfigError(text)
    usual, outer, codec = known[method]
    is_number = number.isascii() and number.isdigit() and len(number) < 9
    steps = int(number) if is_number else usual
    if (number and not is_number) or not 1 <= steps <= MAX_STEPS:
        text = f"the steps of a round are a number from 1 to {MAX_STEPS}"
        raise ConfigError(f"elastic: low_comm={name!r}: {text}")
    return LowComm(steps, outer, codec)
