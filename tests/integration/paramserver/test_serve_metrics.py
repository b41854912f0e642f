"""``GET /metrics`` of the server: fed by real requests, no secret, no name."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from ringleader.metrics.exposition import CONTENT_TYPE
from ringleader.paramserver.server.http.server_metrics import endpoint_of
from tests.kit.exposition_format import Family, parse
from tests.kit.param_server import WorkerClient, server


def value(page: dict[str, Family], name: str, **labels: str) -> float:
    """The sum over the series of a metric with these labels."""
    samples = page[name].samples.items()
    return sum(v for (_, at), v in samples if labels.items() <= dict(at).items())


def test_the_page_counts_requests_bytes_and_updates(tmp_path: Path) -> None:
    with server(tmp_path, rounds=3) as served:
        anna = WorkerClient(served.url, served.code)
        joined = anna.join(name="Anna's laptop")
        for _ in range(2):
            anna.work(0.0)
            anna.step()
        stranger = httpx2.get(f"{served.url}/v1/invented/by/me", trust_env=False)
        assert stranger.status_code == 404
        answer = httpx2.get(f"{served.url}/metrics", trust_env=False, timeout=60)
        traffic = served.training.traffic
        anna.close()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == CONTENT_TYPE
    for secret in ("Anna", joined.json()["token"], served.code, "127.0.0.1"):
        assert secret not in answer.text
    page = parse(answer.text)
    requests = "ringleader_server_requests_total"
    assert value(page, requests, endpoint="join", status="2xx") == 1
    assert value(page, requests, endpoint="updates", status="2xx") == 2
    assert value(page, requests, endpoint="other", status="4xx") == 1
    assert value(page, "ringleader_server_updates_total", verdict="accept") == 2
    assert value(page, "ringleader_server_version") == 2
    assert value(page, "ringleader_server_workers") == 1
    received = value(page, "ringleader_server_received_bytes_total", endpoint="updates")
    assert received == sum(traffic.received.values()) > 0
    sent = value(page, "ringleader_server_sent_bytes_total", endpoint="weights")
    assert sent == sum(traffic.sent.values())
    counts = page["ringleader_server_request_seconds"].samples
    name = "ringleader_server_request_seconds_count"
    assert counts[name, frozenset({("endpoint", "updates")})] == 2


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/updates/3/1", "updates"),
        ("/v1/weights/12", "weights"),
        ("/v1/join", "join"),
        ("/", "other"),
        ("/v1/joins", "other"),
        ("/v2/join", "other"),
        ("/v1/join\n", "other"),
    ],
)
def test_strangers_cannot_make_series(path: str, endpoint: str) -> None:
    assert endpoint_of(path) == endpoint
