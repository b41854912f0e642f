"""Registry and Snapshot: adding up, reset, sources, limits of what is read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.metrics import catalog
from ringleader.metrics.catalog import METRICS, Kind
from ringleader.metrics.process_values import LABELS
from ringleader.metrics.registry import Registry, Tally, one_value
from ringleader.metrics.snapshot import MAX_BYTES, Distribution, Snapshot

CALLS, SECONDS = catalog.CALLS.name, catalog.CALL_SECONDS.name
CALL = ("all_reduce", "ring", "none")


def test_counters_gauges_and_histograms_add_up() -> None:
    registry = Registry(clock_s=lambda: 7.0)
    registry.add(catalog.CALLS, 2, *CALL, "ok")
    registry.add(catalog.CALLS, 3, *CALL, "ok")
    registry.add(catalog.CALLS, 1, "barrier", "exchange", "none", "failed")
    registry.set(catalog.VIEW_MEMBERS, 4)
    registry.set(catalog.VIEW_MEMBERS, 3)
    for value in (1e-5, 1.1e-5, 2.0, 100.0):
        registry.observe(catalog.CALL_SECONDS, value, *CALL)
    seen = registry.snapshot()
    assert seen.value(CALLS) == 6
    assert seen.value(CALLS, operation="all_reduce") == 5
    assert seen.value(CALLS, outcome="failed") == 1
    assert seen.value(CALLS, operation="reduce") == 0
    assert seen.value(catalog.VIEW_MEMBERS.name) == 3
    assert seen.value(catalog.START_TIME.name) == 7
    times = seen.distribution(SECONDS, operation="all_reduce")
    assert times.count == 4
    assert times.sum == pytest.approx(102.000021)
    assert times.mean == pytest.approx(25.500005, rel=1e-6)
    assert (times.counts[0], times.counts[1], times.counts[-1]) == (1, 1, 1)


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    bounds = (1.0, 2.0, 3.0)
    ten = Distribution((5, 4, 0, 1), 20.0)
    ranks = [0.0, 0.1, 0.5, 0.51, 0.9, 0.91, 0.99, 1.0]
    found = [ten.quantile(q, bounds) for q in ranks]
    assert found == [1, 1, 1, 2, 2, math.inf, math.inf, math.inf]
    assert Distribution((0, 0, 0, 0), 0.0).quantile(0.99, bounds) == 0


def test_reset_counts_everything_from_zero_and_keeps_gauges() -> None:
    registry = Registry()
    counted = [10]

    def source(tally: Tally) -> None:
        tally.add(catalog.CALL_BYTES, counted[0], *CALL)
        tally.merge(catalog.CALL_SECONDS, one_value(catalog.CALL_SECONDS, 1.0), *CALL)
        tally.add(catalog.GROUPS, 1)

    registry.add_source(source)
    registry.add(catalog.CALLS, 2, *CALL, "ok")
    registry.reset()
    seen = registry.snapshot()
    assert seen.value(catalog.CALL_BYTES.name) == seen.value(CALLS) == 0
    assert seen.value(SECONDS) == seen.distribution(SECONDS).sum == 0
    assert seen.value(catalog.GROUPS.name) == 1
    counted[0] = 13
    registry.add(catalog.CALLS, 1, *CALL, "ok")
    seen = registry.snapshot()
    assert (seen.value(catalog.CALL_BYTES.name), seen.value(CALLS)) == (3, 1)


def test_a_source_that_ends_leaves_its_counters() -> None:
    registry = Registry()

    def source(tally: Tally) -> None:
        tally.add(catalog.CALL_BYTES, 5, *CALL)
        tally.merge(catalog.CALL_SECONDS, one_value(catalog.CALL_SECONDS, 1.0), *CALL)
        tally.add(catalog.GROUPS, 1)

    for _ in range(2):
        registry.add_source(source)
        registry.retire(source)
    registry.retire(source)  # nothing to retire
    seen = registry.snapshot()
    assert seen.value(catalog.CALL_BYTES.name) == 10
    assert seen.value(SECONDS) == 2
    assert seen.value(catalog.GROUPS.name) == 0


def test_a_snapshot_survives_json() -> None:
    registry = Registry()
    registry.add(catalog.CALLS, 2, *CALL, "ok")
    registry.observe(catalog.CALL_SECONDS, 0.3, *CALL)
    registry.set(catalog.PEER_LATENCY, 0.25, 'a "node" \\ with\nlines')
    seen = registry.snapshot()
    assert Snapshot.from_json(seen.to_json()) == seen


BUCKETS = [0] * (len(catalog.CALL_BUCKETS_S) + 1)
BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "too long": b" " * (MAX_BYTES + 1),
    "unknown": b'{"ringleader_other": []}',
    "labels": json.dumps({CALLS: [[["x"], 1]]}).encode(),
    "long label": json.dumps({CALLS: [[["x" * 201, *"abc"], 1]]}).encode(),
    "value": json.dumps({CALLS: [[[*"abcd"], "1"]]}).encode(),
    "bool": json.dumps({CALLS: [[[*"abcd"], True]]}).encode(),
    "infinite": json.dumps({CALLS: [[[*"abcd"], math.inf]]}).encode(),
    "buckets": json.dumps({SECONDS: [[[*"abc"], [1, 2, 3.0]]]}).encode(),
    "bucket": json.dumps({SECONDS: [[[*"abc"], [*BUCKETS[1:], None, 1]]]}).encode(),
    "rows": json.dumps({CALLS: 3}).encode(),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_snapshot_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="metrics: "):
        Snapshot.from_json(BAD[kind])


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no metric .*see docs/metrics\.md"):
        Snapshot().value("ringleader_colective_calls_total")
    with pytest.raises(ConfigError, match="operatoin"):
        Snapshot().value(CALLS, operatoin="barrier")


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"ringleader_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith(".")
        assert not {"le", *LABELS} & set(metric.labels), "they name the process"
        for word in ("_ms", "_us", "milli", "_mb", "_kb"):
            assert word not in name, "base units: seconds and bytes"


def test_the_documentation_lists_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(ringleader_\w+)` \| (.*?) \|", page, re.MULTILINE))
    assert rows.keys() == METRICS.keys()
    for name, labels in rows.items():
        found = tuple(re.findall(r"`(\w+)`", labels))
        assert found == METRICS[name].labels, name
