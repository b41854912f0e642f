"""The facts about an update that come in the headers of its request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateKey:
    """Which update this is; the same for all repetitions of it."""

    version: int
    shard: int
    first_batch: int


@dataclass(frozen=True, slots=True)
class UpdateHeaders:
    """What a worker says about its update, beside the update."""

    key: UpdateKey
    samples: int
    loss: float
    codec: str
