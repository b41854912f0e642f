"""The plan of a training run: its settings, chosen when the server is started."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.messages import MAX_STEPS, MODES, Mode
from ringleader.paramserver.server.aggregation import MIN_WORKERS, Aggregation

MAX_WORKERS = 64
"""Workers present at once. Each may hold one upload in memory."""
MAX_ROUNDS = 10_000_000
AUTO_STEPS = range(10, 501)
"""Steps between two exchanges that are chosen by what was measured."""
LOCAL_STEPS = 50
"""Steps between two exchanges of rounds mode, unless others are chosen."""
MAX_SHARE = 8
"""In rounds mode, the most steps of a fast worker, as a multiple of the usual ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a run; the defaults suit workers with home connections."""

    rounds: int
    """Version at which training is over."""
    workers: int
    """Shards of a round, and number of workers that the first round waits for."""
    mode: Mode = "bulk"
    """bulk: a round of all shards makes a version. rounds: so does a round in which
    each worker makes its own steps, as many as its speed allows; late ones still count.
    async: each update makes one when it arrives. bounded: like async, but no update may
    be older than ``staleness``."""
    steps: int = 1
    """Optimizer steps of a worker between two exchanges; with 1, it sends gradients."""
    is_auto: bool = False
    """In rounds mode, choose ``AUTO_STEPS`` so that rounds take all workers the same
    time, and exchanges 5 % of it at most; ``steps`` is where that begins."""
    staleness: int = 8
    """In bounded mode, the versions that an update may be behind."""
    quorum: int = 0
    """Shards that suffice when a round has timed out; 0: more than half. In rounds
    mode, updates after which the others have ``grace_s`` left; 0: half."""
    grace_s: float = 30.0
    """In rounds mode, seconds that a round waits for others after its quorum."""
    round_timeout_s: float = 120.0
    """Seconds that a round waits for all shards after it began."""
    elastic: bool = False
    """Make as many shards as workers are present, instead of ``workers``."""
    scale_rate: bool = True
    """Multiply the learning rate by the number of shards (gradients only)."""
    warmup: int = 5
    """Rounds over which that factor grows from 1 to its full value."""
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 - it is immutable
    """How the updates of a round become one."""

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
        if not (math.isfinite(self.grace_s) and self.grace_s >= 0):
            raise ConfigError("grace_s: must be a number of 0 or more")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.is_auto and not self.is_local:
            raise ConfigError("--steps auto needs --mode rounds")
        if self.aggregation.is_robust and not self.is_bulk:
            text = "--aggregate and --clip compare the workers of a round"
            raise ConfigError(f"{text}: they need --mode bulk, not {self.mode}")
        if self.aggregation.is_robust and self.workers < MIN_WORKERS:
            text = f"--aggregate and --clip need --workers {MIN_WORKERS} or more"
            why = "with fewer, a wrong update cannot be told from a right one"
            raise ConfigError(f"{text}: {why}")

    @property
    def is_bulk(self) -> bool:
        """True if a version is made of a whole round."""
        return self.mode == "bulk"

    @property
    def is_local(self) -> bool:
        """True if workers keep their optimizers, and share a round by their speeds."""
        return self.mode == "rounds"

    @property
    def waits_for_nobody(self) -> bool:
        """True if each update closes a round, so that most others come late."""
        is_single = self.quorum == 1 < self.workers
        return self.is_local and is_single and not self.grace_s

    @property
    def has_differences(self) -> bool:
        """True if updates are differences of weights instead of gradients."""
        return self.is_local or self.steps > 1

    @property
    def most_steps(self) -> int:
        """The most steps that a worker is asked to make between two exchanges."""
        usual = AUTO_STEPS[-1] if self.is_auto else self.steps
        return min(MAX_STEPS, MAX_SHARE * usual) if self.is_local else self.steps

    def quorum_of(self, shards: int) -> int:
        """Return how many of ``shards`` suffice, after a while, to close a round."""
        half = -(-shards // 2) if self.is_local else shards // 2 + 1
        return min(self.quorum, shards) or half

    def least_workers(self, shards: int) -> int:
        """Return how many different workers a round of ``shards`` needs.

        A robust rule needs as many as the quorum, and at least three: else a few fast
        workers could compute most shards, and decide the result alone.
        """
        if not self.aggregation.is_robust:
            return 1
        return max(MIN_WORKERS, self.quorum_of(shards))

    def rate_factor(self, version: int, shards: int) -> float:
        """Return the factor for learning rates in the round that begins at ``version``.

        Linear scaling with a gradual warm-up (Goyal et al. 2017): ``shards`` times the
        samples allow ``shards`` times the rate, but not in the first rounds. Local
        steps and single updates use the samples of one worker, so they are not scaled.
        """
        if not (self.scale_rate and self.is_bulk and self.steps == 1):
            return 1.0
        ramp = min(1.0, (version + 1) / self.warmup) if self.warmup else 1.0
        return 1.0 + (shards - 1) * ramp


def age_weight(age: int) -> float:
    """Return the weight of an update computed on weights ``age`` versions old."""
    return 1.0 / (1 + age)
