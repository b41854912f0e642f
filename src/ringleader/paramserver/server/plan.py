"""How a training run goes on: decided once, by whoever starts the server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ringleader.errors import ConfigError

Mode = Literal["bulk", "bounded", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)
MAX_WORKERS = 64
"""Present at once. Each may hold one upload in memory."""
MAX_STEPS = 10_000
MAX_ROUNDS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run; the defaults are for friends with home connections."""

    rounds: int
    """Versions to reach; then training is over."""
    workers: int
    """Shards of a round, and how many workers the first round waits for."""
    mode: Mode = "bulk"
    """bulk: rounds of all shards. async: each update when it comes. bounded: the same,
    but nobody runs ahead of the slowest by more than ``staleness``."""
    steps: int = 1
    """Optimizer steps between two exchanges; with one, gradients travel."""
    staleness: int = 8
    """In bounded mode, how many versions an update may be behind."""
    quorum: int = 0
    """Shards that suffice when a round takes too long; 0: more than half."""
    round_timeout_s: float = 120.0
    """How long a round waits for all shards once it began."""
    elastic: bool = False
    """Have as many shards as workers are present, instead of always ``workers``."""
    scale_rate: bool = True
    """Multiply the learning rate by the number of shards (gradients only)."""
    warmup: int = 5
    """Rounds over which that factor grows from 1."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode: {self.mode!r} is none of {', '.join(MODES)}")
        for name, value, least, most in (
            ("rounds", self.rounds, 1, MAX_ROUNDS),
            ("workers", self.workers, 1, MAX_WORKERS),
            ("steps", self.steps, 1, MAX_STEPS),
            ("staleness", self.staleness, 1, 1000),
            ("quorum", self.quorum, 0, self.workers),
            ("warmup", self.warmup, 0, MAX_ROUNDS),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name}: {value} is not between {least} and {most}")
        if not (math.isfinite(self.round_timeout_s) and self.round_timeout_s > 0):
            raise ConfigError("round_timeout_s: must be a number above 0")

    @property
    def is_bulk(self) -> bool:
        """Whether versions are made of whole rounds."""
        return self.mode == "bulk"

    def quorum_of(self, shards: int) -> int:
        """How many of ``shards`` suffice when the round is late."""
        return min(self.quorum, shards) or shards // 2 + 1

    def rate_factor(self, version: int, shards: int) -> float:
        """What learning rates are multiplied by in the round that begins at version.

        Linear scaling with a gradual start (Goyal et al. 2017): ``shards`` times the
        samples allow ``shards`` times the rate, but not in the first rounds. Local
        steps and single updates see one worker's samples, so nothing is scaled there.
        """
        if not (self.scale_rate and self.is_bulk and self.steps == 1):
            return 1.0
        ramp = min(1.0, (version + 1) / self.warmup) if self.warmup else 1.0
        return 1.0 + (shards - 1) * ramp


def age_weight(age: int) -> float:
    """What an update counts that was computed on weights ``age`` versions ago."""
    return 1.0 / (1 + age)
