"""The text that Prometheus reads: snapshots of one or more processes as one page.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from ringleader.metrics.catalog import METRICS, Metric
from ringleader.metrics.process_values import ProcessValues
from ringleader.metrics.snapshot import Distribution, Labels, Snapshot, Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def write_page(source: Snapshot | Iterable[ProcessValues]) -> str:
    """Return the page of one snapshot, or of several processes with their labels."""
    if isinstance(source, Snapshot):
        source = [ProcessValues({}, source)]
    processes, lines = list(source), list[str]()
    for metric in METRICS.values():
        samples = [
            line
            for each in processes
            for labels, value in each.snapshot.series(metric).items()
            for line in _lines(metric, each.labels, labels, value)
        ]
        if samples:
            lines.append(f"# HELP {metric.name} {_escape_help(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += samples
    return "".join(f"{line}\n" for line in lines)


def _lines(
    metric: Metric, process: Mapping[str, str], labels: Labels, value: Value
) -> Iterator[str]:
    pairs = {**process, **dict(zip(metric.labels, labels, strict=True))}
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
