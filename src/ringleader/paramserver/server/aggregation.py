"""Combines the updates of a round into one: their mean, or a rule for strangers.

The mean follows whatever one worker sends. The trimmed mean and the median, coordinate
by coordinate and with one vote per worker (Yin et al. 2018), do not: a minority cannot
move a coordinate beyond the values of honest workers. They need all updates of a round
in memory at once; the mean needs only their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest, Vector

Rule = Literal["mean", "trimmed", "median"]
RULES: tuple[Rule, ...] = get_args(Rule)
MIN_WORKERS = 3
"""Workers that a round needs before a minority can be told from the others."""
_PIECE = 1 << 16
"""Values per call of numpy, few enough to stay in the second-level cache."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How the updates of a round become one."""

    rule: Rule = "mean"
    clip: float = 0.0
    """Scale down a worker's update whose norm is above this multiple of the median
    norm of the round; 0: never."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"--aggregate {self.rule}: none of {', '.join(RULES)}")
        if not (self.clip == 0 or 1 <= self.clip < math.inf):
            text = f"--clip {self.clip:g}: must be 1 or more, or 0 for no clipping"
            raise ConfigError(text)

    @property
    def is_robust(self) -> bool:
        """True if it compares the workers of a round with each other."""
        return self.rule != "mean" or self.clip > 0


class RoundUpdates(Protocol):
    """The updates of a round, until they are combined."""

    @property
    def aggregation(self) -> Aggregation:
        """How they are combined."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if no update was added."""
        ...

    def add(self, worker: str, update: Update, samples: float) -> None:
        """Add an update of a worker."""
        ...

    def combine(self) -> Update:
        """Return the one update that they become, and begin the next round."""
        ...


def collect(aggregation: Aggregation, manifest: Manifest) -> RoundUpdates:
    """Begin a round."""
    if aggregation.is_robust:
        return HeldUpdates(aggregation)
    return UpdateSum(manifest)


class UpdateSum:
    """Sums updates, weighted by samples, in float64: their order does not matter."""

    def __init__(self, manifest: Manifest) -> None:
        self.aggregation = Aggregation()
        self._parameters = np.zeros(manifest.num_parameters, np.float64)
        self._buffers = np.zeros(manifest.num_buffers, np.float64)
        self._samples = 0.0

    @property
    def is_empty(self) -> bool:
        """True if no update was added."""
        return not self._samples

    def add(self, worker: str, update: Update, samples: float) -> None:
        """Add an update; all workers count alike."""
        _add(self._parameters, update.parameters, samples)
        _add(self._buffers, update.buffers, samples)
        self._samples += samples

    def combine(self) -> Update:
        """Return the mean over all samples, and begin again with none."""
        factor, self._samples = 1.0 / self._samples, 0.0
        sums = (self._parameters, self._buffers)
        parameters, buffers = (_scaled(total, factor) for total in sums)
        for total in sums:
            total.fill(0.0)
        return Update(parameters, buffers)


class HeldUpdates:
    """Holds the updates of each worker. A worker with several shards has one vote."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self._parts: dict[str, list[tuple[float, Update]]] = {}

    @property
    def is_empty(self) -> bool:
        """True if no update was added."""
        return not self._parts

    def add(self, worker: str, update: Update, samples: float) -> None:
        """Hold an update."""
        self._parts.setdefault(worker, []).append((samples, update))

    def combine(self) -> Update:
        """Clip and combine the means of the workers, and begin again with none."""
        held, self._parts = list(self._parts.values()), {}
        parameters = [[(n, update.parameters) for n, update in own] for own in held]
        buffers = [[(n, update.buffers) for n, update in own] for own in held]
        return Update(
            combine_vectors(self.aggregation, parameters),
            combine_vectors(self.aggregation, buffers),
        )


def combine_vectors(
    aggregation: Aggregation, workers: Sequence[Sequence[tuple[float, Vector]]]
) -> Vector:
    """Combine the vectors of each worker, which come with their numbers of samples."""
    samples = [sum(n for n, _ in own) for own in workers]
    size = len(workers[0][0][1])
    out = np.empty(size, np.float32)
    scales = _clip_scales(aggregation.clip, workers, size)
    for i in range(0, size, _PIECE):
        stack = _worker_means(workers, slice(i, i + _PIECE)) * scales[:, None]
        out[i : i + _PIECE] = _combined(aggregation.rule, stack, samples)
    return out


def trim_count(workers: int) -> int:
    """Return how many workers the trimmed mean ignores at either end: a quarter."""
    return max(1, workers // 4) if workers >= MIN_WORKERS else 0


def _combined(rule: Rule, stack: _Floats, samples: Sequence[float]) -> _Floats:
    if rule == "mean":
        return np.average(stack, axis=0, weights=samples)
    if rule == "median":
        return np.asarray(np.median(stack, axis=0))
    cut = trim_count(len(stack))
    kept: _Floats = np.sort(stack, axis=0)[cut : len(stack) - cut]
    return np.asarray(kept.mean(axis=0))


def _worker_means(
    workers: Sequence[Sequence[tuple[float, Vector]]], piece: slice
) -> _Floats:
    """Return a piece of each worker's mean over its shards, one row per worker."""
    return np.stack(
        [
            np.average(
                [vector[piece].astype(np.float64) for _, vector in parts],
                axis=0,
                weights=[n for n, _ in parts],
            )
            for parts in workers
        ]
    )


def _clip_scales(
    clip: float, workers: Sequence[Sequence[tuple[float, Vector]]], size: int
) -> _Floats:
    """Return the factors that bring all norms to ``clip`` times their median."""
    if not clip or len(workers) < MIN_WORKERS:
        return np.ones(len(workers))
    squares = np.zeros(len(workers))
    for i in range(0, size, _PIECE):
        squares += np.square(_worker_means(workers, slice(i, i + _PIECE))).sum(axis=1)
    norms = np.sqrt(squares)
    limit = clip * float(np.median(norms))
    return np.minimum(1.0, limit / np.maximum(norms, 1e-300))


def _add(total: _Floats, vector: Vector, samples: float) -> None:
    for i in range(0, len(vector), _PIECE):
        piece = vector[i : i + _PIECE].astype(np.float64)
        piece *= samples
        total[i : i + _PIECE] += piece


def _scaled(total: _Floats, factor: float) -> Vector:
    out = np.empty(len(total), np.float32)
    for i in range(0, len(total), _PIECE):
        np.multiply(
            total[i : i + _PIECE], factor, out[i : i + _PIECE], casting="same_kind"
        )
    return out
