"""Registry: counts events, and collects what others count themselves.

There are two ways to feed a metric. Rare events call ``add``, ``set`` or ``observe``.
What happens ten thousand times a second is counted by its owner, without a lock, and
added by a source when somebody looks: a function that writes its values into the
``Tally`` of a snapshot. ``retire`` keeps the last values of a source that ends.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable

from ringleader.metrics import catalog
from ringleader.metrics.catalog import Kind, Metric
from ringleader.metrics.snapshot import Distribution, Labels, Series, Snapshot


class Tally:
    """Values under construction; sources add to it."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()

    def _series(self, metric: Metric, labels: Labels) -> Series:
        assert len(labels) == len(metric.labels), metric.name
        return self.snapshot.values.setdefault(metric.name, {})

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a counter, or to a gauge that several sources share."""
        series = self._series(metric, labels)
        before = series.get(labels, 0.0)
        assert not isinstance(before, Distribution)
        series[labels] = before + value

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge, or a counter that is counted elsewhere."""
        self._series(metric, labels)[labels] = float(value)

    def merge(self, metric: Metric, value: Distribution, *labels: str) -> None:
        """Add the observations of a histogram."""
        series = self._series(metric, labels)
        before = series.get(labels)
        if before is not None:
            assert isinstance(before, Distribution)
            value = before.plus(value)
        series[labels] = value

    def add_all(self, snapshot: Snapshot) -> None:
        """Add the counters and histograms of ``snapshot``."""
        for metric, series in snapshot:
            for labels, value in series.items():
                if isinstance(value, Distribution):
                    self.merge(metric, value, *labels)
                elif metric.kind is Kind.COUNTER:
                    self.add(metric, value, *labels)


Source = Callable[[Tally], None]
"""Adds its values to a tally; called from any thread, must not wait."""


class Registry:
    """The metrics of one process. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._lock = threading.Lock()
        self._direct = Tally()
        self._sources: list[Source] = []
        self._baseline = Snapshot()
        self._clock_s = clock_s
        self._start_s = clock_s()

    # -- feeding -------------------------------------------------------------------

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add to a counter."""
        assert metric.kind is Kind.COUNTER
        assert value >= 0
        with self._lock:
            self._direct.add(metric, value, *labels)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        assert metric.kind is Kind.GAUGE
        with self._lock:
            self._direct.put(metric, value, *labels)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Count one value of a histogram."""
        with self._lock:
            self._direct.merge(metric, one_value(metric, value), *labels)

    def add_source(self, source: Source) -> None:
        """Collect ``source`` in every snapshot from now on."""
        with self._lock:
            self._sources.append(source)

    def retire(self, source: Source) -> None:
        """Keep the counters of ``source`` as they are now and ask it no more."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                last = Tally()
                source(last)
                self._direct.add_all(last.snapshot)

    # -- reading -------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """All values, counted from the start of the process or the last reset."""
        with self._lock:
            return self._collect().since(self._baseline)

    def reset(self) -> None:
        """Count everything from 0 again; gauges stay what they are."""
        with self._lock:
            self._baseline = self._collect()
            self._start_s = self._clock_s()

    def _collect(self) -> Snapshot:
        tally = Tally()
        for name, series in self._direct.snapshot.values.items():
            tally.snapshot.values[name] = dict(series)
        for source in self._sources:
            source(tally)
        tally.put(catalog.START_TIME, self._start_s)
        return tally.snapshot


def one_value(metric: Metric, value: float) -> Distribution:
    """A distribution of one observation."""
    counts = [0] * (len(metric.buckets) + 1)
    counts[bisect_left(metric.buckets, value)] = 1
    return Distribution(tuple(counts), value)
