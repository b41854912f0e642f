"""The text that Prometheus reads: snapshots of one or more processes as one page.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from ringleader.metrics.catalog import METRICS, Metric
from ringleader.metrics.snapshot import Distribution, Labels, Snapshot, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Extra = Mapping[str, str]
"""Labels that name the process of a snapshot."""


def write_page(snapshots: Sequence[tuple[Extra, Snapshot]]) -> str:
    """Return the page with all series; each snapshot's have its labels in addition."""
    lines: list[str] = []
    for metric in METRICS.values():
        samples = [
            line
            for extra, snapshot in snapshots
            for labels, value in snapshot.series(metric).items()
            for line in _lines(metric, extra, labels, value)
        ]
        if samples:
            lines.append(f"# HELP {metric.name} {_escape_help(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += samples
    return "".join(f"{line}\n" for line in lines)


def _lines(metric: Metric, extra: Extra, labels: Labels, value: Value) -> Iterator[str]:
    pairs = {**extra, **dict(zip(metric.labels, labels, strict=True))}
    if not isinstance(value, Distribution):
        yield f"{metric.name}{_braces(pairs)} {_number(value)}"
        return
    bounds = (*metric.buckets, math.inf)
    for bound, count in zip(bounds, accumulate(value.counts), strict=True):
        bucket = {**pairs, "le": _number(bound)}
        yield f"{metric.name}_bucket{_braces(bucket)} {count}"
    yield f"{metric.name}_sum{_braces(pairs)} {_number(value.sum)}"
    yield f"{metric.name}_count{_braces(pairs)} {value.count}"


def _braces(pairs: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs.items())
    return f"{{{inner}}}" if inner else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
