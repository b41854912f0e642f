"""Metrics of this process: counters, gauges and histograms, for people and Prometheus.

    import ringleader
    ringleader.metrics.enable()
    ...
    seen = ringleader.metrics.snapshot()
    seen.value("ringleader_collective_calls_total", operation="all_reduce")

``ringleader run`` turns them on for its workers, and ``ringleader metrics`` shows
those of a machine. All names are in docs/metrics.md.
"""

from ringleader.metrics.exposition import write_page
from ringleader.metrics.process_metrics import (
    disable,
    enable,
    reset,
    set_collector,
    snapshot,
)
from ringleader.metrics.snapshot import Distribution, Snapshot

__all__ = [
    "Distribution",
    "Snapshot",
    "disable",
    "enable",
    "reset",
    "set_collector",
    "snapshot",
    "write_page",
]
