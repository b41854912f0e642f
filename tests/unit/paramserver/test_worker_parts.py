"""The parts of a worker that need no network, and the messages it decodes."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import numpy as np
import pytest
from torch import nn

from ringleader.errors import ConfigError, PeerLost, PeerRefused, ProtocolError
from ringleader.paramserver.protocol import bodies, messages
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.protocol.messages import Assignment, JoinAnswer
from ringleader.paramserver.worker.agreement import (
    MAX_BATCH_RATIO,
    check_assignment,
    check_join,
    check_rejoin,
)
from ringleader.paramserver.worker.error_feedback import ErrorFeedback
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Progress, WorkTotals
from ringleader.paramserver.worker.refusals import MAX_IN_A_ROW, Refusals
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import (
    Response,
    TryLater,
    _checked,
    backoff_s,
)
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
    longest = [backoff_s(n, 1.0) for n in (1, 2, 3, 7, 100, 10**6)]

    assert longest == [0.5, 1.0, 2.0, 30.0, 30.0, 30.0]
    assert backoff_s(1, 0.0) == 0.25


def headers(**values: str) -> httpx2.Headers:
    return httpx2.Headers({n.replace("_", "-"): value for n, value in values.items()})


def test_a_broken_download_resumes() -> None:
    body = ResponseBody(10)
    body.begin(200, headers(ETag='"7-none"'))
    body.add(b"abcd")

    assert body.resume_headers() == {"Range": "bytes=4-", "If-Range": '"7-none"'}
    body.begin(206, headers(Content_Range="bytes 4-9/10"))
    body.add(b"efghij")
    assert bytes(body.data) == b"abcdefghij"
    with pytest.raises(ProtocolError, match="more than 10 bytes"):
        body.add(b"k")


def test_a_body_that_changed_starts_over() -> None:
    body = ResponseBody(10)
    body.begin(200, headers(ETag='"7-none"'))
    body.add(b"abcd")
    body.begin(200, headers(ETag='"8-none"'))

    assert (bytes(body.data), body.etag) == (b"", '"8-none"')
    body.add(b"xy")
    with pytest.raises(PeerLost, match="another offset"):
        body.begin(206, headers(Content_Range="bytes 4-9/10"))
    assert body.resume_headers() == {}


def response(message: object) -> Response:
    """Build a response with JSON, or with what JSON does not allow, such as NaN."""
    return Response(200, httpx2.Headers(JSON), json.dumps(message).encode())


def test_an_assignment_is_decoded() -> None:
    assignment = response(WORK).decode(Assignment)

    assert (assignment.version, assignment.shard, assignment.first_batch) == (12, 1, 25)
    assert list(assignment.batches) == [25]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "stop"},
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
def test_an_invalid_assignment_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(
        ProtocolError, match="the server: its response 200 is not valid"
    ):
        response({**WORK, **change}).decode(Assignment)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"], ids=len)
def test_a_body_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        Response(200, httpx2.Headers(JSON), text).decode(JoinAnswer)


def test_control_characters_of_the_server_do_not_reach_a_terminal() -> None:
    text = "x\x1b[2J\ny"
    refusal = response({"error": "stale", "message": text}).refusal()

    assert refusal is not None
    assert refusal.message == "x [2J y"
    assert response({**RUN, "task": text}).decode(JoinAnswer).task == "x [2J y"
    row = messages.Difference(part=text, server=text, worker=None)
    assert (row.part, row.server, row.worker) == ("x [2J y", "x [2J y", None)


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
def test_responses_are_retried_or_raised(
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
def test_retry_after_is_respected(asked: str, pause_s: float) -> None:
    headers = httpx2.Headers({**JSON, "Retry-After": asked})

    with pytest.raises(TryLater) as caught:
        _checked(Response(429, headers, b'{"error": "busy", "message": "slow down"}'))
    assert caught.value.pause_s == pause_s


RUN = {
    "worker": "w1",
    "token": "x" * 43,
    "version": 0,
    "rounds": 60,
    "mode": "async",
    "shards": 1,
    "steps": 1,
    "batch_size": 32,
    "max_update_bytes": 1 << 20,
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
        {"worker": "w0"},
        {"worker": "w1\x1b"},
        {"token": ""},
        {"token": "\u00e9"},
        {"token": "two words"},
        {"token": "line\n"},
        {"token": "x" * 300},
        {"mode": "fast"},
        {"codecs": "none"},
        {"codecs": [1]},
        {"codecs": ["a\x1b[2J"]},
        {"codecs": ["none"] * 1000},
        {"manifest": "0" * 63},
        {"task": "x" * 300},
        {"rounds": 10**30},
    ],
    ids=str,
)
def test_invalid_settings_of_a_run_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        response({**RUN, **change}).decode(JoinAnswer)


def test_what_was_agreed_at_joining_bounds_what_comes_later() -> None:
    agreed = response({**RUN, "steps": 5}).decode(JoinAnswer)
    check_join(agreed, 32, 0)
    for more, limit in ((33 * MAX_BATCH_RATIO, 0), (33, 32)):
        large = response({**RUN, "batch_size": more}).decode(JoinAnswer)
        with pytest.raises(ConfigError, match=f"--max-batch-size {more}"):
            check_join(large, 32, limit)
        check_join(large, 32, more)
    for change in ({"batch_size": 32, "steps": 5}, {"batch_size": 1, "steps": 1}):
        check_rejoin(agreed, response({**RUN, **change}).decode(JoinAnswer))
        check_assignment(agreed, response({**WORK, **change}).decode(Assignment))
    for change in ({"batch_size": 33}, {"steps": 6}):
        with pytest.raises(ProtocolError, match="was agreed at joining"):
            check_rejoin(agreed, response({**RUN, **change}).decode(JoinAnswer))
        with pytest.raises(ProtocolError, match="was agreed at joining"):
            check_assignment(agreed, response({**WORK, **change}).decode(Assignment))


def test_refused_updates_end_a_worker_before_they_fill_its_log() -> None:
    noted: list[str] = []
    observer = SilentObserver()
    observer.noted = noted.append  # type: ignore[method-assign, assignment]
    refusals = Refusals(observer)
    for _ in range(3):
        for _ in range(MAX_IN_A_ROW - 1):
            refusals.add(7, "its norm is too large")
        refusals.reset()
    assert noted == ["version 7: update refused: its norm is too large"]
    for _ in range(MAX_IN_A_ROW - 1):
        refusals.add(7, "its norm is too large")
    with pytest.raises(PeerRefused, match="10 updates in a row"):
        refusals.add(7, "its norm is too large")


def test_a_newer_server_may_add_fields_to_its_answers() -> None:
    assert response({**RUN, "new": 1}).decode(JoinAnswer).worker == "w1"


def test_tokens_and_codes_are_not_shown() -> None:
    join = messages.JoinRequest(task={}, code="secret", pin="secret", receipt="secret")

    assert "secret" not in repr(join)
    assert "x" * 43 not in repr(response(RUN).decode(JoinAnswer))


class FinishedCall:
    """A background call that has ended."""

    def __init__(self, weights: DownloadedWeights) -> None:
        self._weights = weights

    def result(self) -> DownloadedWeights:
        return self._weights


@pytest.mark.parametrize(("mode", "version"), [("async", 9), ("bulk", 8)])
def test_weights_that_came_ahead_are_not_fetched_again(mode: str, version: int) -> None:
    """Outside rounds they may be newer than the assigned version."""
    settings = WorkerSettings(name="test", device="cpu")
    worker = Worker.open(
        settings, ServerAddress.from_links(["http://127.0.0.1:9"]), SilentObserver()
    )
    worker._run = response({**RUN, "mode": mode}).decode(JoinAnswer)
    worker._held = DownloadedWeights(5, '"5-none"', {})
    worker._ahead = FinishedCall(DownloadedWeights(version, "", {}))  # type: ignore[assignment]
    assignment = response({**WORK, "version": 8}).decode(Assignment)

    found = worker._weights_for(assignment)
    assert found is not None
    assert found.version == version
    assert worker._weights_for(assignment) is found, (
        "nor when the same version comes again"
    )
    worker.session.close()


class SilentObserver:
    """Ignores all events."""

    def joined(self, terms: JoinAnswer, device: str) -> None: ...
    def stepped(self, progress: Progress) -> None: ...
    def waiting(self, reason: str, pause_s: float) -> None: ...
    def reconnected(self) -> None: ...
    def noted(self, text: str) -> None: ...


@pytest.mark.parametrize(
    "link", ["https://xn--\u00e9", "https://a..b", f"https://{'a' * 64}"]
)
def test_impossible_host_names_are_refused(link: str) -> None:
    with pytest.raises(ConfigError):
        ServerAddress.from_links([link])


@pytest.mark.parametrize("codec", ["int8", "onebit", "topk:0.05", "bf16"])
def test_what_a_codec_leaves_out_is_sent_later(codec: str) -> None:
    """The sum of decoded updates follows the sum of exact ones."""
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


def test_an_update_that_does_not_count_leaves_no_residual() -> None:
    manifest = Manifest.of(nn.Linear(50, 40))
    feedback = ErrorFeedback(manifest, "onebit")
    dice = np.random.default_rng(5)
    values = dice.normal(size=manifest.num_parameters).astype(np.float32)
    update = Update(values, np.zeros(0, np.float32))

    assert feedback.pack(update) == feedback.pack(update)
    feedback.counted()
    assert feedback.pack(update) != ErrorFeedback(manifest, "onebit").pack(update)


def test_an_address_turns_to_the_next_link(tmp_path: Path) -> None:
    address = ServerAddress.from_links(["https://a.example", "https://b.example"])

    assert address.link.url == "https://a.example"
    assert address.try_next()
    assert address.link.url == "https://b.example"
    assert address.try_next()
    assert address.link.url == "https://a.example"


def test_the_address_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "link"
    with pytest.raises(ConfigError, match="cannot be read"):
        ServerAddress.from_links([], file)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="it is empty"):
        ServerAddress.from_links([], file)
    file.write_text("https://a.example\n")
    address = ServerAddress.from_links([], file)

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
def test_plaintext_addresses_are_noticed(link: str, is_readable: bool) -> None:
    assert ServerAddress.from_links([link]).is_plaintext is is_readable


def test_the_remaining_time_follows_from_the_speed() -> None:
    totals = WorkTotals(version=10)
    assert totals.left_s(100) is None
    totals.first_version, totals.version = 10, 40
    totals.began_s -= 30

    left_s = totals.left_s(100)
    assert left_s == pytest.approx(60, rel=0.05)
