"""The Grafana dashboard: its queries use metrics that exist, and Prometheus runs them.

Without Prometheus the names and labels are still compared with the catalog.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringleader.metrics.catalog import METRICS, Kind, Metric
from ringleader.metrics.exposition import write_page
from ringleader.metrics.page_server import PageServer
from ringleader.metrics.process_values import LABELS, ProcessValues
from ringleader.metrics.registry import Registry
from tests.kit.exposition_format import parse
from tests.kit.prometheus import PROMETHEUS, prometheus

FILE = Path(__file__).parents[3] / "examples" / "grafana" / "ringleader.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
TARGETS = [
    (panel["title"], target)
    for panel in BOARD["panels"]
    for target in panel.get("targets", [])
]
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
LABEL_VALUES = {"outcome": ("ok", "failed"), "step": ("encode", "decode")}
"""Values that queries of the dashboard select by."""


def metrics_in(expression: str) -> list[Metric]:
    """The metrics of a query; KeyError for a name that does not exist."""
    found = []
    for name in re.findall(r"\bringleader_\w+", expression):
        base = _SUFFIX.sub("", name)
        is_part = base in METRICS and METRICS[base].kind is Kind.HISTOGRAM
        assert is_part == (base != name) or not is_part, name
        found.append(METRICS[base if is_part else name])
    return found


def labels_in(expression: str) -> set[str]:
    grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", expression))
    selected = ",".join(re.findall(r"\{([^}]*)\}", expression))
    names = re.findall(r"\w+", grouped) + re.findall(r"(\w+)=", selected)
    return set(names)


@pytest.mark.parametrize(("title", "target"), TARGETS)
def test_queries_use_metrics_and_labels_that_exist(
    title: str, target: dict[str, Any]
) -> None:
    expression = target["expr"]
    used = metrics_in(expression)
    assert used, title
    allowed = {*LABELS, *(label for metric in used for label in metric.labels)}
    if any(metric.kind is Kind.HISTOGRAM for metric in used):
        allowed |= {"le"}
    assert labels_in(expression) <= allowed
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    is_grouped = " by (" in expression
    assert shown <= (labels_in(expression) if is_grouped else allowed)
    for metric in used:
        is_rate = f"rate({metric.name}" in expression or "increase(" in expression
        assert is_rate == (metric.kind is not Kind.GAUGE), "rates are of counters"


def test_every_metric_is_on_the_dashboard() -> None:
    used = {
        metric.name for _, target in TARGETS for metric in metrics_in(target["expr"])
    }
    assert used == METRICS.keys()


def test_panels_have_their_own_place_and_number() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels)


class Feed:
    """A page on which every series of every metric grows with each request."""

    def __init__(self) -> None:
        self._registry = Registry()
        self.num_requests = 0

    def page(self) -> str:
        self.num_requests += 1
        for metric in METRICS.values():
            for labels in _label_sets(metric):
                self._feed(metric, labels)
        process = dict.fromkeys(LABELS, "x")
        return write_page([ProcessValues(process, self._registry.snapshot())])

    def _feed(self, metric: Metric, labels: tuple[str, ...]) -> None:
        match metric.kind:
            case Kind.COUNTER:
                self._registry.add(metric, 3, *labels)
            case Kind.GAUGE:
                self._registry.set(metric, self.num_requests, *labels)
            case Kind.HISTOGRAM:
                self._registry.observe(metric, 0.02, *labels)


def _label_sets(metric: Metric) -> Iterator[tuple[str, ...]]:
    for index in range(2):
        yield tuple(
            LABEL_VALUES.get(label, ("a", "b"))[index] for label in metric.labels
        )


@contextmanager
def served(feed: Feed) -> Iterator[int]:
    """Serve the page in a thread; yield its port."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(PageServer(feed.page).serve(sock))

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(60)
        sock.close()


def test_the_feed_of_this_test_is_a_valid_page() -> None:
    assert parse(Feed().page()).keys() == METRICS.keys()


@pytest.mark.slow
@pytest.mark.skipif(
    PROMETHEUS is None, reason="apt-get install --no-install-recommends prometheus"
)
def test_prometheus_answers_every_query_with_data(tmp_path: Path) -> None:
    feed = Feed()
    with served(feed) as page_port, prometheus(tmp_path, page_port) as server:
        assert server.wait_for('up{job="ringleader"} == 1')
        server.wait_for("rate(ringleader_collective_calls_total[5m]) > 0")
        for title, target in TARGETS:
            expression = target["expr"].replace("$__rate_interval", "5m")
            found = server.wait_for(expression)
            values = [float(each["value"][1]) for each in found]
            assert all(value == value and value >= 0 for value in values), title
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if " by (" in expression:
                assert all(shown <= each["metric"].keys() for each in found), title
        metadata = server.query('count({__name__=~"ringleader_.+"})')
        assert float(metadata[0]["value"][1]) > len(METRICS)
