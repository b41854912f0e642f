"""Which samples a step takes, and how the position advances when it is delivered.

One order of all samples per epoch, a cursor in it, and a debt: positions before the
cursor whose step was delivered without them. A step takes the debt first, then the
positions at the cursor, ``global_batch`` in all, and cuts them into quanta of
``micro_batch``. The last step of an epoch takes what is left; nothing is padded,
dropped or carried into the next epoch. All functions are pure and all members hold the
same state, so they agree on the samples of a step without a message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ringleader.data.permutation import Permutation
from ringleader.errors import ConfigError, InternalError
from ringleader.training.data.intervals import (
    Interval,
    Intervals,
    num_positions,
    split,
    union,
)
from ringleader.training.data.stream_state import StreamSpec

MAX_QUANTA: Final = 4096
"""Quanta of a step: one machine that is left must be able to hold all of them."""

_BLOCK: Final = 4096
"""Positions whose samples are computed at once: that takes as long as for 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """What the order of the samples and the size of a step follow from.

    The same on all members: it belongs to the layout that a newcomer must match.
    """

    num_samples: int
    global_batch: int
    """Samples of a step, of all members together."""
    micro_batch: int
    """Samples of a quantum, the unit of work that one member computes at once."""
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    """None: without end."""
    stream: StreamSpec | None = None
    """Set for streamed data, of which positions count the samples that may be read."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ConfigError("the dataset is empty")
        if not 1 <= self.micro_batch <= self.global_batch:
            raise ConfigError(
                f"micro_batch={self.micro_batch} and global_batch={self.global_batch}: "
                "use 1 <= micro_batch <= global_batch"
            )
        if self.num_quanta > MAX_QUANTA:
            raise ConfigError(
                f"micro_batch={self.micro_batch} cuts a step into {self.num_quanta} "
                f"quanta; use a micro_batch with at most {MAX_QUANTA}"
            )
        if self.epochs is not None and self.epochs < 0:
            raise ConfigError(f"epochs={self.epochs}: use None or a number from 0")

    @property
    def num_quanta(self) -> int:
        """Quanta of a full step."""
        return -(-min(self.global_batch, self.num_samples) // self.micro_batch)

    @classmethod
    def of_stream(
        cls, stream: StreamSpec, micro_batch: int, epochs: int | None = 1
    ) -> DataSpec:
        """Return the spec of streamed data, in which every quantum reads a shard."""
        return cls(
            num_samples=1 << 62,
            global_batch=stream.num_slots * micro_batch,
            micro_batch=micro_batch,
            seed=stream.seed,
            shuffle=False,
            epochs=epochs,
            stream=stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """The position in the data; part of the replicated state."""

    epoch: int = 0
    cursor: int = 0
    """Positions of this epoch that steps have taken, debt included."""
    debt: Intervals = ()
    """Positions before the cursor that are still to be delivered."""
    samples: int = 0
    """Samples delivered since the training began."""

    def to_plain(self) -> dict[str, Any]:
        """Return numbers and lists, for checkpoints and newcomers."""
        debt = [list(interval) for interval in self.debt]
        names = ("epoch", "cursor", "samples")
        return {**{name: getattr(self, name) for name in names}, "debt": debt}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], spec: DataSpec) -> DataState:
        """Return the state that ``to_plain`` gave. Raises ConfigError otherwise."""
        try:
            debt = union(Interval(int(a), int(b)) for a, b in plain["debt"])
            state = cls(
                epoch=int(plain["epoch"]),
                cursor=int(plain["cursor"]),
                debt=debt,
                samples=int(plain["samples"]),
            )
        except (InternalError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a valid position in the data: {error!r}") from error
        ends = (0, *(position for interval in debt for position in interval))
        if min(state.epoch, state.samples, *ends) < 0:
            raise ConfigError(f"position in the data below 0: {state}")
        last = spec.num_samples if debt else spec.num_samples - 1
        if not ends[-1] <= state.cursor <= last:
            raise ConfigError(f"position {state} of {spec.num_samples} samples")
        return state


@dataclass(frozen=True, slots=True)
class Quantum:
    """A micro-batch of a step: the unit that one member computes at once."""

    index: int
    """Its number in the step."""
    epoch: int
    intervals: Intervals

    @property
    def num_samples(self) -> int:
        """Samples of this quantum; fewer than ``micro_batch`` only in the last one."""
        return num_positions(self.intervals)


def is_over(spec: DataSpec, state: DataState) -> bool:
    """Return whether all epochs have been delivered."""
    return spec.epochs is not None and state.epoch >= spec.epochs


@lru_cache(maxsize=8)  # asked for several times a step
def quanta(spec: DataSpec, state: DataState) -> tuple[Quantum, ...]:
    """Return the quanta of the next step; none if the training is over."""
    if is_over(spec, state):
        return ()
    rest, _ = _taken(spec, state)
    cut: list[Quantum] = []
    while rest:
        intervals, rest = split(rest, spec.micro_batch)
        cut.append(Quantum(len(cut), state.epoch, intervals))
    return tuple(cut)


def sample_indices(spec: DataSpec, quantum: Quantum) -> list[int]:
    """Return the indices of the quantum's samples in the dataset."""
    if not spec.shuffle:
        return [i for begin, end in quantum.intervals for i in range(begin, end)]
    found: list[int] = []
    for begin, end in quantum.intervals:
        for block in range(begin // _BLOCK, (end - 1) // _BLOCK + 1):
            start = block * _BLOCK
            order = _order(spec.num_samples, spec.seed, quantum.epoch, block)
            part = order[max(begin - start, 0) : end - start]
            found += part.tolist()
    return found


@lru_cache(maxsize=64)  # 2 MB; members, their workers and prefetching are close by
def _order(
    num_samples: int, seed: int, epoch: int, block: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the samples at the positions of one block of an epoch's order."""
    begin = block * _BLOCK
    positions = np.arange(begin, min(begin + _BLOCK, num_samples), dtype=np.int64)
    return Permutation(num_samples, seed, epoch)(positions)


def advance(
    spec: DataSpec, state: DataState, dropped: Collection[int] = ()
) -> DataState:
    """Return the state after a step was delivered without the quanta ``dropped``.

    Their positions become debt, which the next step takes first. An epoch ends when
    its debt is paid, too.
    """
    step = quanta(spec, state)
    if not step or len(set(dropped)) >= len(step):
        raise InternalError(f"a step without samples at {state}")
    lost = union(*(step[index].intervals for index in dropped))
    taken, rest = _taken(spec, state)
    debt = union(rest, lost)
    after = replace(
        state,
        cursor=state.cursor + _fresh(spec, state),
        debt=debt,
        samples=state.samples + num_positions(taken) - num_positions(lost),
    )
    if after.cursor < spec.num_samples or debt:
        return after
    return replace(after, epoch=state.epoch + 1, cursor=0)


def _taken(spec: DataSpec, state: DataState) -> tuple[Intervals, Intervals]:
    """Return the positions of the next step, debt first, and the debt left over."""
    paid, rest = split(state.debt, spec.global_batch)
    fresh = Interval(state.cursor, state.cursor + _fresh(spec, state))
    return (*paid, fresh) if fresh.begin < fresh.end else paid, rest


def _fresh(spec: DataSpec, state: DataState) -> int:
    """Return how many positions at the cursor the next step takes."""
    room = max(0, spec.global_batch - num_positions(state.debt))
    return min(room, spec.num_samples - state.cursor)
