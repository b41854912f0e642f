"""Snapshot: the values of all metrics of one process at one moment."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringleader.errors import ConfigError
from ringleader.metrics.catalog import METRICS, Kind, Metric

MAX_BYTES = 4 << 20
"""Longest snapshot that is read; a rank with 100 peers writes 100 KB."""
MAX_SERIES = 20_000
MAX_LABEL = 200
"""Longest value of a label."""

Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of the catalog."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram: observations per bucket, not added up, and their sum.

    The last bucket has no upper bound.
    """

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the observations; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    def minus(self, other: Distribution) -> Distribution:
        """What was observed since ``other``."""
        counts = tuple(a - b for a, b in zip(self.counts, other.counts, strict=True))
        return Distribution(counts, self.sum - other.sum)

    def plus(self, other: Distribution) -> Distribution:
        """The observations of both."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Distribution(counts, self.sum + other.sum)

    def quantile(self, q: float, bounds: tuple[float, ...]) -> float:
        """Upper bound of the bucket with the nearest-rank quantile ``q``; 0 if empty.

        It is infinite if that observation lies beyond the last bound.
        """
        rank, seen = max(1, math.ceil(q * self.count)), 0
        for bound, count in zip((*bounds, math.inf), self.counts, strict=True):
            seen += count
            if seen >= rank:
                return bound
        return 0.0


Value = float | Distribution
Series = dict[Labels, Value]


@dataclass(slots=True)
class Snapshot:
    """Values by metric and labels. Metrics without a value are not in it."""

    values: dict[str, Series] = field(default_factory=dict)

    def series(self, metric: Metric) -> Mapping[Labels, Value]:
        """All values of a metric by labels."""
        return self.values.get(metric.name, {})

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series of ``name`` with these labels; 0 if there is none.

        For a histogram it is the number of observations.
        """
        metric = _metric(name)
        unknown = labels.keys() - set(metric.labels)
        if unknown:
            raise ConfigError(f"{name} has labels {metric.labels}, not {unknown}")
        total = 0.0
        for found, value in self.series(metric).items():
            pairs = dict(zip(metric.labels, found, strict=True))
            if labels.items() <= pairs.items():
                total += value.count if isinstance(value, Distribution) else value
        return total

    def distribution(self, name: str, **labels: str) -> Distribution:
        """The observations of all series of a histogram with these labels."""
        metric = _metric(name)
        total = Distribution((0,) * (len(metric.buckets) + 1), 0.0)
        for found, value in self.series(metric).items():
            pairs = dict(zip(metric.labels, found, strict=True))
            if labels.items() <= pairs.items() and isinstance(value, Distribution):
                total = total.plus(value)
        return total

    def since(self, earlier: Snapshot) -> Snapshot:
        """Counters and histograms since ``earlier``; gauges as they are."""
        result = Snapshot()
        for name, series in self.values.items():
            before = earlier.values.get(name, {})
            is_gauge = METRICS[name].kind is Kind.GAUGE
            result.values[name] = {
                labels: value
                if is_gauge or labels not in before
                else _minus(value, before[labels])
                for labels, value in series.items()
            }
        return result

    def to_json(self) -> bytes:
        """The snapshot as JSON, for ``from_json``."""
        values = {
            name: [[list(labels), _plain(value)] for labels, value in series.items()]
            for name, series in self.values.items()
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Snapshot:
        """Read a snapshot; ConfigError if it is none or breaks a limit."""
        if len(data) > MAX_BYTES:
            raise ConfigError(f"metrics: {len(data)} bytes; {MAX_BYTES} are accepted")
        try:
            values = json.loads(data)
            found = {str(name): _series(name, rows) for name, rows in values.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise ConfigError(f"metrics: not a snapshot ({exc})") from exc
        if sum(map(len, found.values())) > MAX_SERIES:
            raise ConfigError(f"metrics: more than {MAX_SERIES} series")
        return cls(found)

    def __iter__(self) -> Iterator[tuple[Metric, Mapping[Labels, Value]]]:
        """Yield the metrics that have a value, in the order of the catalog."""
        for name, metric in METRICS.items():
            if self.values.get(name):
                yield metric, self.values[name]


def _metric(name: str) -> Metric:
    if name not in METRICS:
        raise ConfigError(f"there is no metric {name!r}; see docs/metrics.md")
    return METRICS[name]


def _minus(value: Value, before: Value) -> Value:
    if isinstance(value, Distribution):
        assert isinstance(before, Distribution)
        return value.minus(before)
    assert not isinstance(before, Distribution)
    return value - before


def _plain(value: Value) -> float | list[Any]:
    return [*value.counts, value.sum] if isinstance(value, Distribution) else value


def _series(name: object, rows: list[Any]) -> Series:
    metric = METRICS.get(str(name))
    if metric is None:
        raise ValueError(f"{str(name)[:80]!r} is no metric")
    return {_labels(metric, labels): _value(metric, plain) for labels, plain in rows}


def _labels(metric: Metric, labels: list[Any]) -> Labels:
    found = tuple(str(each) for each in labels)
    if len(found) != len(metric.labels) or any(len(each) > MAX_LABEL for each in found):
        raise ValueError(f"labels of {metric.name}")
    return found


def _value(metric: Metric, plain: Any) -> Value:  # noqa: ANN401 - any JSON
    if metric.kind is not Kind.HISTOGRAM:
        return _number(plain)
    *counts, total = plain
    if len(counts) != len(metric.buckets) + 1:
        raise ValueError(f"buckets of {metric.name}")
    return Distribution(tuple(int(_number(each)) for each in counts), _number(total))


def _number(plain: Any) -> float:  # noqa: ANN401
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise TypeError("a value is not a number")
    number = float(plain)
    if not math.isfinite(number):
        raise ValueError("a value is not finite")
    return number
