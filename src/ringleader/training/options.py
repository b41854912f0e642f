"""Options of an elastic run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringleader.errors import ConfigError
from ringleader.membership.steps.decide import Partition
from ringleader.rounds.outer_step import OuterStep
from ringleader.training.data.assignment import OnLoss
from ringleader.training.data.efficiency import Traffic
from ringleader.training.low_comm.method import LowComm, parse
from ringleader.training.state.state_watch import EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user chose, beside model, optimizer and data."""

    seed: int = 0
    clip: float | None = None
    scheduler: Any = None
    scaler: Any = None
    extra_state: dict[str, Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Options of torch's DataLoader: num_workers, prefetch_factor, pin_memory."""
    checkpoint: str | os.PathLike[str] | None = None
    """Folder of the checkpoints; by default that of ``ringleader run --checkpoint``."""
    keep: int = 3
    """Checkpoints that stay in the folder."""
    codec: str | None = None
    low_comm: str | None = None
    """Rounds of local steps: "diloco:50" or "sparseloco:30"; None: every step."""
    outer: tuple[float, float] | None = None
    """Rate and momentum of the step after each round; None: those of the method."""
    on_loss: OnLoss = "refill"
    partition: Partition = "continue"
    min_members: int = 1
    min_members_wait_s: float = 60.0

    @property
    def rounds(self) -> LowComm | None:
        """The method of rounds of local steps; None: every step is exchanged."""
        if self.low_comm is None:
            return None
        method = parse(self.low_comm)
        if self.outer is None:
            return method
        rate, momentum = self.outer
        return replace(method, outer=OuterStep(rate, momentum))

    @property
    def sent_codec(self) -> str | None:
        """The codec of contributions: the user's, or the one of the method."""
        if self.codec is None:
            return self.rounds.codec if self.rounds else None
        return None if self.codec == "none" else self.codec

    def shared(self) -> dict[str, str]:
        """Return what must be equal on all machines, or their steps would differ."""
        return {
            "low_comm": str(self.low_comm),
            "outer": str(self.rounds.outer) if self.rounds else "",
            "codec": str(self.sent_codec),
            "clip": str(self.clip),
            "on_loss": self.on_loss,
            "partition": self.partition,
            "scaler": type(self.scaler).__qualname__,
            "scheduler": type(self.scheduler).__qualname__,
        }

    @property
    def watch_every(self) -> int:
        """Versions between two digests of a slice of the state."""
        return EVERY if self.rounds is None else 1

    def traffic(self, num_bytes: int) -> Traffic:
        """Return what is exchanged in each version, of gradients of so many bytes."""
        return Traffic(num_bytes, self.sent_codec, is_rounds=self.rounds is not None)

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("on_loss", self.on_loss, ("refill", "shrink")),
            ("partition", self.partition, ("continue", "majority")),
        ):
            if value not in choices:
                text = f"elastic: {name}={value!r}; use {' or '.join(choices)}"
                raise ConfigError(text)
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"elastic: clip={self.clip}; use a number above 0")
        if self.keep < 1:
            raise ConfigError(f"elastic: keep={self.keep}; use 1 or more")
        if self.outer is not None and self.low_comm is None:
            raise ConfigError("elastic: outer= belongs to low_comm=")
        if self.rounds is not None and self.scaler is not None:
            raise ConfigError("elastic: low_comm and scaler exclude each other")
        if self.min_members < 1:
            raise ConfigError(f"elastic: min_members={self.min_members}; use 1 or more")
