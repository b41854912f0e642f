"""The page for Prometheus, read by a parser that shares no code with the writer."""

from __future__ import annotations

import pytest

from ringleader.metrics import catalog
from ringleader.metrics.exposition import write_page
from ringleader.metrics.process_values import ProcessValues
from ringleader.metrics.registry import Registry
from ringleader.metrics.snapshot import Snapshot
from tests.kit.exposition_format import parse

CALL = ("all_reduce", "ring", "none")


def test_a_page_has_every_series_of_all_processes() -> None:
    one, two = Registry(lambda: 1.5), Registry(lambda: 1e9)
    for registry, count in ((one, 2), (two, 3)):
        registry.add(catalog.CALLS, count, *CALL, "ok")
        registry.observe(catalog.CALL_SECONDS, 0.3, *CALL)
        registry.observe(catalog.CALL_SECONDS, 99.0, *CALL)
    odd = 'back\\slash "quote"\nline, {x="y"}'
    two.set(catalog.PEER_LATENCY, 1.25e-7, odd)
    pages = parse(
        write_page(
            [
                ProcessValues({"rank": "0"}, one.snapshot()),
                ProcessValues({"rank": "1"}, two.snapshot()),
            ]
        )
    )
    assert pages.keys() == {
        *(catalog.CALLS.name, catalog.CALL_SECONDS.name),
        *(catalog.PEER_LATENCY.name, catalog.START_TIME.name),
    }
    calls = pages[catalog.CALLS.name]
    assert (calls.kind, calls.help) == ("counter", catalog.CALLS.help)
    named = dict(zip(catalog.CALLS.labels, (*CALL, "ok"), strict=True))
    assert calls.samples == {
        (catalog.CALLS.name, frozenset({**named, "rank": "0"}.items())): 2,
        (catalog.CALLS.name, frozenset({**named, "rank": "1"}.items())): 3,
    }
    latency = pages[catalog.PEER_LATENCY.name].samples
    labels = frozenset({"rank": "1", "peer": odd}.items())
    assert latency == {(catalog.PEER_LATENCY.name, labels): 1.25e-7}
    times = pages[catalog.CALL_SECONDS.name].samples
    name = f"{catalog.CALL_SECONDS.name}_bucket"
    below = dict(zip(catalog.CALL, CALL, strict=True)) | {"rank": "0"}
    assert times[name, frozenset({**below, "le": "0.25"}.items())] == 0
    assert times[name, frozenset({**below, "le": "0.5"}.items())] == 1
    assert times[name, frozenset({**below, "le": "+Inf"}.items())] == 2
    starts = pages[catalog.START_TIME.name].samples.values()
    assert sorted(starts) == [1.5, 1e9]


def test_nothing_measured_is_an_empty_page() -> None:
    assert write_page([]) == write_page(Snapshot()) == ""


@pytest.mark.parametrize(
    "text",
    [
        "a 1",
        "a 1\n",
        "# TYPE a counter\nb 1\n",
        "# TYPE a counter\na 1\na 1\n",
        '# TYPE a counter\na{x="1" 1\n',
        '# TYPE a counter\na{x="1",x="2"} 1\n',
        "# TYPE a teller\n",
        '# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_count 1\n',
        '# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_parser_of_these_tests_refuses_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse(text)
