"""Schedules of a pipeline: which micro-batches are alive, how long a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringleader.errors import ConfigError


class ScheduleName(StrEnum):
    """Orders of the forwards and backwards of the micro-batches of a step."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule for a number of ranks; stage ``i`` is on rank ``i % ranks``."""

    name: ScheduleName
    ranks: int
    microbatches: int
    stages_per_rank: int = 1

    @property
    def stages(self) -> int:
        """The number of stages of the whole pipeline."""
        return self.ranks * self.stages_per_rank

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages of a rank, in the order of the model."""
        return list(range(rank, self.stages, self.ranks))

    def live_microbatches(self, rank: int) -> int:
        """Return how many forwards of a rank wait for their backward, at most.

        With several stages per rank, each of them counts: two micro-batches in two
        stages are four.
        """
        total = self.microbatches * self.stages_per_rank
        if self.name is ScheduleName.GPIPE:
            return total
        if self.name is ScheduleName.ONE_F_ONE_B:
            return min(total, self.ranks - rank)
        rounds = max(1, self.microbatches // self.ranks)
        per_round = self.microbatches // rounds
        warmup = (self.stages_per_rank - 1) * per_round + 2 * (self.ranks - 1 - rank)
        return min(total, warmup + 1)

    def step_seconds(self, stage_seconds: Sequence[float]) -> float:
        """Predict the time of a step from the time of a micro-batch in each stage.

        The slowest rank works all the time, but for the start and the end of the step,
        while the first micro-batch comes to it and the last one goes back. Sending is
        not counted: it overlaps with computing unless the network is the bottleneck.
        """
        busy = max(
            sum(stage_seconds[stage] for stage in self.stages_of(rank))
            for rank in range(self.ranks)
        )
        fill = (sum(stage_seconds) - busy) / self.stages_per_rank
        return self.microbatches * busy + fill

    def check(self) -> None:
        """Raise ConfigError if torch cannot run it."""
        if self.microbatches < 1:
            raise ConfigError(f"microbatches={self.microbatches}: at least 1 is needed")
        if self.name is not ScheduleName.INTERLEAVED:
            if self.stages_per_rank != 1:
                text = f"stages_per_rank={self.stages_per_rank}: {self.name} has one"
                raise ConfigError(f"{text} stage per rank; use schedule='interleaved'")
            if self.name is ScheduleName.ONE_F_ONE_B and self.microbatches < self.ranks:
                text = f"microbatches={self.microbatches}: 1f1b needs at least one for"
                raise ConfigError(f"{text} each of the {self.ranks} stages")
            return
        if self.stages_per_rank < 2:
            text = "schedule='interleaved' needs stages_per_rank of 2 or more"
            raise ConfigError(f"{text}; with 1, use schedule='1f1b'")
        rounds = max(1, self.microbatches // self.ranks)
        if self.microbatches % rounds:
            text = f"microbatches={self.microbatches}: interleaved needs a multiple of"
            raise ConfigError(f"{text} the {self.ranks} ranks")
