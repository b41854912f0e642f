"""The parts of a worker that need no network: pauses, bodies, terms, feedback."""

from __future__ import annotations

from pathlib import Path

import httpx2
import numpy as np
import pytest
from torch import nn

from ringleader.errors import ConfigError, PeerLost, PeerRefused, ProtocolError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.worker import server_messages
from ringleader.paramserver.worker.error_feedback import ErrorFeedback
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Progress, WorkTotals
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import Response, TryLater, _checked, pause_s
from ringleader.paramserver.worker.transfers import DownloadedWeights
from ringleader.paramserver.worker.worker import Worker

WORK = {
    "kind": "step",
    "version": 12,
    "shard": 1,
    "shards": 2,
    "first_batch": 25,
    "steps": 1,
    "batch_size": 32,
    "lr": 0.02,
}


def test_pauses_grow_to_half_a_minute_and_never_beyond() -> None:
    longest = [pause_s(n, 1.0) for n in (1, 2, 3, 7, 100, 10**6)]

    assert longest == [0.5, 1.0, 2.0, 30.0, 30.0, 30.0]
    assert pause_s(1, 0.0) == 0.25


def headers(**values: str) -> httpx2.Headers:
    return httpx2.Headers({n.replace("_", "-"): value for n, value in values.items()})


def test_a_body_goes_on_where_it_broke_off() -> None:
    body = ResponseBody(10)
    body.begin(200, headers(ETag='"7-none"'))
    body.add(b"abcd")

    assert body.resume_headers() == {"Range": "bytes=4-", "If-Range": '"7-none"'}
    body.begin(206, headers(Content_Range="bytes 4-9/10"))
    body.add(b"efghij")
    assert bytes(body.data) == b"abcdefghij"
    with pytest.raises(ProtocolError, match="more than 10 bytes"):
        body.add(b"k")


def test_a_body_that_changed_begins_anew() -> None:
    body = ResponseBody(10)
    body.begin(200, headers(ETag='"7-none"'))
    body.add(b"abcd")
    body.begin(200, headers(ETag='"8-none"'))

    assert (bytes(body.data), body.etag) == (b"", '"8-none"')
    body.add(b"xy")
    with pytest.raises(PeerLost, match="another place"):
        body.begin(206, headers(Content_Range="bytes 4-9/10"))
    assert body.resume_headers() == {}


def test_an_assignment_is_taken_as_it_is_meant() -> None:
    assignment = server_messages.assignment_of(WORK)

    assert (assignment.version, assignment.shard, assignment.first_batch) == (12, 1, 25)
    assert list(assignment.batches) == [25]


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": "12"},
        {"version": True},
        {"version": 1.0},
        {"shards": 0},
        {"steps": 0},
        {"steps": 10**9},
        {"batch_size": 1 << 30},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"lr": -1},
        {"lr": None},
        {"lr": "0.1"},
        {"lr": 10**400},
    ],
    ids=str,
)
def test_an_assignment_that_makes_no_sense_is_refused(
    change: dict[str, object],
) -> None:
    with pytest.raises(ProtocolError):
        server_messages.assignment_of({**WORK, **change})


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"], ids=len)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        server_messages.parse(text)


def test_texts_of_the_server_cannot_upset_a_terminal() -> None:
    assert server_messages.text_of({"a": "x\x1b[2J\ny"}, "a") == "x [2J y"


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"error": "full", "message": "too many"}', TryLater),
        (502, b"<html>Bad Gateway", TryLater),
        (404, b"<html>no such tunnel", TryLater),
        (404, b'{"error": "tunnel not found", "message": "ask its owner"}', TryLater),
        (302, b"", TryLater),
        (400, b'{"error": "malformed", "message": "a bug"}', PeerRefused),
        (403, b'{"error": "quarantined", "message": "rubbish"}', PeerRefused),
        (413, b'{"error": "large", "message": "too large"}', PeerRefused),
    ],
)
def test_answers_are_worth_another_try_or_are_not(
    status: int, body: bytes, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        _checked(Response(status, httpx2.Headers(JSON), body))


@pytest.mark.parametrize(
    ("asked", "pause_s"),
    [
        ("7", 7),
        ("0", 0),
        ("99999999999", 300),
        ("9" * 5000, 300),
        ("nan", 0),
        ("inf", 0),
        ("-1", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
    ids=range(8),
)
def test_a_server_that_asks_for_time_gets_it(asked: str, pause_s: float) -> None:
    headers = httpx2.Headers({**JSON, "Retry-After": asked})

    with pytest.raises(TryLater) as caught:
        _checked(Response(429, headers, b'{"error": "busy", "message": "slow down"}'))
    assert caught.value.pause_s == pause_s


TERMS = {
    "worker": "w1",
    "token": "x" * 43,
    "version": 0,
    "rounds": 60,
    "mode": "async",
    "seed": 0,
    "manifest": "0" * 64,
    "codecs": ["none"],
    "codec": "none",
    "weights_codec": "none",
    "task": "digits",
}


@pytest.mark.parametrize(
    "change",
    [
        {"token": ""},
        {"token": "\u00e9"},
        {"token": "two words"},
        {"token": "x" * 300},
        {"codecs": "none"},
        {"codecs": [1]},
        {"rounds": 10**30},
    ],
    ids=str,
)
def test_terms_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        server_messages.terms_of({**TERMS, **change})


def test_names_of_codecs_cannot_upset_a_terminal() -> None:
    terms = server_messages.terms_of({**TERMS, "codecs": ["a\x1b[2J"]})
    assert terms.codecs == ("a [2J",)


class _Done:
    """An errand that has come back."""

    def __init__(self, weights: DownloadedWeights) -> None:
        self._weights = weights

    def result(self) -> DownloadedWeights:
        return self._weights


@pytest.mark.parametrize(("mode", "version"), [("async", 9), ("bulk", 8)])
def test_weights_that_came_ahead_are_not_fetched_again(mode: str, version: int) -> None:
    """Outside rounds they may be newer than what was assigned meanwhile."""
    settings = WorkerSettings(name="test", device="cpu")
    worker = Worker(settings, ServerAddress(["http://127.0.0.1:9"]), Silent())
    worker._terms = server_messages.terms_of({**TERMS, "mode": mode})
    worker._held = DownloadedWeights(5, '"5-none"', {})
    worker._ahead = _Done(DownloadedWeights(version, "", {}))  # type: ignore[assignment]
    assignment = server_messages.assignment_of({**WORK, "version": 8})

    found = worker._weights_of(assignment)
    assert found is not None
    assert found.version == version
    assert worker._weights_of(assignment) is found, (
        "nor when the same version comes again"
    )
    worker.session.close()


class Silent:
    """Watches, and tells nobody."""

    def joined(self, terms: server_messages.Terms, device: str) -> None: ...
    def stepped(self, progress: Progress) -> None: ...
    def waiting(self, reason: str, pause_s: float) -> None: ...
    def reconnected(self) -> None: ...
    def noted(self, text: str) -> None: ...


@pytest.mark.parametrize(
    "link", ["https://xn--\u00e9", "https://a..b", f"https://{'a' * 64}"]
)
def test_addresses_that_nobody_can_have_are_refused(link: str) -> None:
    with pytest.raises(ConfigError):
        ServerAddress([link])


@pytest.mark.parametrize("codec", ["int8", "onebit", "topk:0.05", "bf16"])
def test_what_a_codec_leaves_out_arrives_later(codec: str) -> None:
    """The sum of what the server saw follows the sum of what was meant."""
    model = nn.Linear(50, 40)
    manifest = Manifest.of(model)
    feedback = ErrorFeedback(manifest, codec)
    dice = np.random.default_rng(4)
    meant = np.zeros(manifest.num_parameters)
    seen = np.zeros(manifest.num_parameters)
    fixed = dice.normal(size=manifest.num_parameters).astype(np.float32)
    for _ in range(60):
        body = feedback.pack(Update(fixed, np.zeros(0, np.float32)))
        found = bodies.read_update(manifest, body, feedback.wire_name)
        feedback.counted()
        meant += fixed
        seen += found.parameters

    off = np.linalg.norm(meant - seen) / np.linalg.norm(meant)
    assert off < {"int8": 2e-4, "bf16": 2e-4, "onebit": 0.2, "topk:0.05": 0.3}[codec]


def test_an_update_that_does_not_count_leaves_no_debt() -> None:
    manifest = Manifest.of(nn.Linear(50, 40))
    feedback = ErrorFeedback(manifest, "onebit")
    dice = np.random.default_rng(5)
    values = dice.normal(size=manifest.num_parameters).astype(np.float32)
    update = Update(values, np.zeros(0, np.float32))

    assert feedback.pack(update) == feedback.pack(update)
    feedback.counted()
    assert feedback.pack(update) != ErrorFeedback(manifest, "onebit").pack(update)


def test_a_place_turns_to_the_next_link(tmp_path: Path) -> None:
    address = ServerAddress(["https://a.example", "https://b.example"])

    assert address.link.url == "https://a.example"
    assert address.try_next()
    assert address.link.url == "https://b.example"
    assert address.try_next()
    assert address.link.url == "https://a.example"


def test_a_place_is_read_from_its_file_again(tmp_path: Path) -> None:
    file = tmp_path / "link"
    with pytest.raises(ConfigError, match="cannot be read"):
        ServerAddress([], file)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="it is empty"):
        ServerAddress([], file)
    file.write_text("https://a.example\n")
    address = ServerAddress([], file)

    assert not address.try_next()
    file.write_text("")  # somebody is writing
    assert not address.try_next()
    assert address.link.url == "https://a.example"
    file.write_text("https://b.example")
    assert address.try_next()
    assert address.link.url == "https://b.example"


@pytest.mark.parametrize(
    ("link", "is_readable"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://localhost:8000", False),
        ("https://far.example", False),
        ("http://far.example", True),
    ],
)
def test_plain_lines_to_elsewhere_are_noticed(link: str, is_readable: bool) -> None:
    assert ServerAddress([link]).is_plaintext is is_readable


def test_time_left_follows_from_the_pace() -> None:
    totals = WorkTotals(version=10)
    assert totals.left_s(100) is None
    totals.first_version, totals.version = 10, 40
    totals.began_s -= 30

    left_s = totals.left_s(100)
    assert left_s == pytest.approx(60, rel=0.05)
