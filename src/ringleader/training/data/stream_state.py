"""Streamed data: which shard each quantum of a step reads, and where it goes on.

The dataset is a list of shard readers of unknown length. A step has a fixed number of
slots, one per quantum, and each slot reads one shard from beginning to end, then takes
the next one that nobody reads. With each delivered step travels the state of every
reader that was used, so a member that takes over a slot continues where the delivered
steps ended. The quanta of a step follow from the delivered state alone, not from who
computes them. Pure functions.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ringleader.data.permutation import Permutation
from ringleader.errors import ConfigError

IDLE: Final = -1
"""The shard of a slot for which none is left in this epoch."""

MAX_STATES_BYTES: Final = 64 * 1024
"""States of the readers that one member used in a step: a position, not a buffer."""

_HEAD = struct.Struct("<HI?I")


class Read(NamedTuple):
    """What a quantum took from its shard."""

    slot: int
    num_samples: int
    is_exhausted: bool
    state: bytes
    """The encoded state of the reader behind its last sample."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one slot reads."""

    shard: int
    state: bytes = b""
    """The reader's state; empty at the beginning of the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """The settings that decide the order of the shards; the same on all members."""

    num_shards: int
    num_slots: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_slots <= self.num_shards:
            raise ConfigError(
                f"{self.num_shards} shards for {self.num_slots} quanta of a step: each "
                "quantum reads a shard of its own; use a larger micro_batch or cut the "
                "data into more shards"
            )

    def order(self, epoch: int) -> list[int]:
        """Return the shards in the order in which they are opened."""
        positions = np.arange(self.num_shards, dtype=np.int64)
        if self.shuffle:
            positions = Permutation(self.num_shards, self.seed, epoch)(positions)
        return [int(shard) for shard in positions]


@dataclass(frozen=True, slots=True)
class StreamState:
    """Position in streamed data; part of the replicated state."""

    slots: tuple[Slot, ...]
    epoch: int = 0
    num_opened: int = field(default=0, kw_only=True)
    """Shards of this epoch that slots have taken."""

    def to_plain(self) -> dict[str, Any]:
        """Return numbers, strings and lists, for checkpoints and newcomers."""
        slots = [[s.shard, base64.b64encode(s.state).decode()] for s in self.slots]
        return {"epoch": self.epoch, "num_opened": self.num_opened, "slots": slots}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], spec: StreamSpec) -> StreamState:
        """Return the state that ``to_plain`` gave. Raises ConfigError otherwise."""
        try:
            slots = [Slot(int(n), base64.b64decode(str(s))) for n, s in plain["slots"]]
            epoch, num_opened = int(plain["epoch"]), int(plain["num_opened"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"not a valid position in streamed data: {error!r}"
            ) from error
        shards = [slot.shard for slot in slots if slot.shard != IDLE]
        is_valid = len(slots) == spec.num_slots and len(set(shards)) == len(shards)
        is_valid = is_valid and all(0 <= n < spec.num_shards for n in shards)
        if not is_valid or epoch < 0 or not 0 <= num_opened <= spec.num_shards:
            raise ConfigError(f"position in streamed data does not fit {spec}")
        return cls(tuple(slots), epoch, num_opened=num_opened)


def first_state(spec: StreamSpec, epoch: int = 0) -> StreamState:
    """Return the state at the beginning of an epoch."""
    shards = spec.order(epoch)[: spec.num_slots]
    slots = tuple(Slot(shard) for shard in shards)
    return StreamState(slots, epoch, num_opened=spec.num_slots)


def advance_stream(
    spec: StreamSpec, state: StreamState, reads: Iterable[Read]
) -> StreamState:
    """Return the state after a step with these reads was delivered.

    A slot whose shard is exhausted takes the next one. The epoch ends when no slot has
    a shard.
    """
    slots = list(state.slots)
    order = spec.order(state.epoch)
    num_opened = state.num_opened
    for read in sorted(reads):
        if not read.is_exhausted:
            slots[read.slot] = replace(slots[read.slot], state=read.state)
        elif num_opened < spec.num_shards:
            slots[read.slot] = Slot(order[num_opened])
            num_opened += 1
        else:
            slots[read.slot] = Slot(IDLE)
    if all(slot.shard == IDLE for slot in slots):
        return first_state(spec, state.epoch + 1)
    return StreamState(tuple(slots), state.epoch, num_opened=num_opened)


def encode_reads(reads: Sequence[Read]) -> bytes:
    """Return the reads of one member for the sideband.

    Raises ConfigError if the readers' states are too large.
    """
    parts = []
    for slot, num_samples, is_exhausted, state in reads:
        parts += [_HEAD.pack(slot, num_samples, is_exhausted, len(state)), state]
    data = b"".join(parts)
    if len(data) > MAX_STATES_BYTES:
        raise ConfigError(
            f"states of {len(reads)} shard readers have {len(data)} bytes; at most "
            f"{MAX_STATES_BYTES} travel with a step: state_dict() must return a "
            "position, not data"
        )
    return data


def decode_reads(data: bytes, spec: StreamSpec, micro_batch: int) -> list[Read]:
    """Return the reads that a member sent. Raises ConfigError if they are invalid."""
    reads: list[Read] = []
    start = 0
    while start < len(data):
        if start + _HEAD.size > len(data):
            raise ConfigError("states of shard readers are cut off")
        slot, num_samples, is_exhausted, size = _HEAD.unpack_from(data, start)
        start += _HEAD.size
        state = data[start : start + size]
        start += size
        is_valid = slot < spec.num_slots and num_samples <= micro_batch
        if not is_valid or len(state) < size:
            raise ConfigError(f"state of the shard reader of quantum {slot} is invalid")
        reads.append(Read(slot, num_samples, is_exhausted, state))
    return reads
