"""The parameter server, as its workers see it."""

from __future__ import annotations

import gzip
import hmac
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.routing import Route

from ringleader.errors import ConfigError
from ringleader.identity import server_key
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.openapi import DESCRIPTION
from ringleader.paramserver.server import shard_durations, worker_table
from ringleader.paramserver.server.admission import PIN_ATTEMPTS
from ringleader.paramserver.server.http import status_page
from ringleader.paramserver.server.http.request_parsing import MAX_WAIT_S
from tests.kit.param_server import (
    FINGERPRINT,
    MANIFEST,
    Server,
    WorkerClient,
    expected,
    gradient,
    model,
    server,
    update_body,
    weights_in,
)


def test_rounds_give_the_weights_that_float64_gives(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=7, workers=2) as served,
        served.clients(2) as (anna, ben),
    ):
        for _ in range(7):
            one, two = anna.work(), ben.work()
            assert one is not None
            assert two is not None
            assert {one["shard"], two["shard"]} == {0, 1}
            got = anna.http.get(f"/v1/weights/{one['version']}", headers=anna.headers)
            assert got.headers["x-version"] == str(one["version"])
            ben.put(two)
            anna.put(one)
        done = anna.work()
        assert done is not None
        assert done["kind"] == "finished"
        assert done["summary"]["updates"] == 14
    np.testing.assert_allclose(weights_in(tmp_path), expected(7, 2), atol=1e-5)


def test_finished_servers_stop_and_tell_their_workers(
    tmp_path: Path,
) -> None:
    with server(tmp_path, rounds=2) as served, served.clients(1) as (anna,):
        while anna.step() is not None:
            pass
        waiting = threading.Event()
        for _ in range(600):
            if not any(t.name == "server" for t in threading.enumerate()):
                break
            waiting.wait(0.1)
        assert not any(t.name == "server" for t in threading.enumerate())
    assert (tmp_path / "summary.json").is_file()


def test_long_polls_are_answered_when_there_is_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_durations, "MIN_PATIENCE_S", 600.0)  # nobody is late
    with (
        server(tmp_path, workers=2) as served,
        served.clients(2) as (anna, ben),
    ):
        first, second = anna.work(), ben.work()
        assert first is not None
        assert second is not None
        anna.put(first)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(anna.work(MAX_WAIT_S)))
        waiting.start()
        began_s = time.monotonic()
        ben.put(second)
        waiting.join(2 * MAX_WAIT_S)
        assert time.monotonic() - began_s < 0.9 * MAX_WAIT_S
        assert found[0]["version"] == 1
        assert ben.work(0.0) is not None
        anna.put(found[0])
        assert anna.work(0.1) is None


@pytest.mark.parametrize("codec", bodies.CODECS)
def test_every_codec_is_accepted(tmp_path: Path, codec: str) -> None:
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        work = anna.work()
        assert work is not None
        name = "topk:0.3" if codec == "topk" else codec
        body = update_body(0, 0, name)
        assert anna.put(work, body, X_Codec=codec).json()["counted"] is True
    sent = gradient(0, 0)
    moved = (MANIFEST.values(model()) - weights_in(tmp_path)) / 0.25
    rest = np.linalg.norm(moved - sent) / np.linalg.norm(sent)
    assert rest < {"onebit": 0.7, "topk": 0.7, "sparseloco": 0.95}.get(codec, 0.02)


def test_a_client_without_zstd_takes_and_sends_gzip(tmp_path: Path) -> None:
    """Was: weights that compress well came as zstd only."""
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        found = {
            frame: anna.http.get(f"/v1/weights/0?frame={frame}", headers=anna.headers)
            for frame in ("zstd", "gzip", "none")
        }
        assert len({answer.headers["etag"] for answer in found.values()}) == 3
        plain = found["none"].content
        assert plain[8:9] == b"{", "safetensors itself"
        body = found["gzip"].content
        assert (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body) == plain
        refused = anna.http.get("/v1/weights/0?frame=rar", headers=anna.headers)
        assert refused.status_code == 400
        work = anna.work()
        assert work is not None
        sent = gzip.compress(update_body(0, 0))
        assert anna.put(work, sent).json()["counted"] is True
    moved = (MANIFEST.values(model()) - weights_in(tmp_path)) / 0.25
    assert np.allclose(moved, gradient(0, 0), atol=1e-5)


def test_the_server_answers_while_it_works_on_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-6: packing weights, which takes seconds, happens beside the event loop."""
    has_begun, may_end = threading.Event(), threading.Event()
    with server(tmp_path) as served, served.clients(1) as (anna,):
        pack = served.training.store.weights.pack

        def slow_pack(codec: str, frame: str) -> memoryview:
            has_begun.set()
            assert may_end.wait(300)
            return pack(codec, frame)

        monkeypatch.setattr(served.training.store.weights, "pack", slow_pack)
        with ThreadPoolExecutor(1) as thread:
            path = "/v1/weights/0?codec=bf16"
            waiting = thread.submit(anna.http.get, path, headers=anna.headers)
            try:
                assert has_begun.wait(300)
                assert anna.work() is not None, "work is given out meanwhile"
                status = httpx2.get(f"{served.url}/v1/status", timeout=300)
                assert status.json()["version"] == 0
                assert not waiting.done()
            finally:
                may_end.set()
            assert waiting.result(300).status_code == 200


def test_unchanged_weights_are_not_sent_again_and_broken_ones_resumed(
    tmp_path: Path,
) -> None:
    with server(tmp_path) as served, served.clients(1) as (anna,):
        whole = anna.http.get("/v1/weights/0", headers=anna.headers)
        etag = whole.headers["etag"]
        same = {**anna.headers, "If-None-Match": etag}
        again = anna.http.get("/v1/weights/0", headers=same)
        assert (again.status_code, again.content) == (304, b"")
        rest = {**anna.headers, "If-Range": etag, "Range": "bytes=1000-"}
        part = anna.http.get("/v1/weights/0", headers=rest)
        assert part.status_code == 206
        assert whole.content[:1000] + part.content == whole.content
        other = {**rest, "If-Range": '"9-none"'}
        fresh = anna.http.get("/v1/weights/0", headers=other)
        assert fresh.content == whole.content
        small = anna.http.get("/v1/weights/0?codec=bf16", headers=anna.headers)
        assert len(small.content) < 0.7 * len(whole.content)
        bodies.read_weights(MANIFEST, small.content, "bf16")
        assert anna.http.get("/v1/weights/1", headers=anna.headers).status_code == 409


def _broken_upload(
    client: WorkerClient, work: dict[str, Any], body: bytes, n: int
) -> None:
    """Send the head and ``n`` bytes of a body, then close the connection."""
    host, port = client.url.removeprefix("http://").split(":")
    lines = [
        f"PUT /v1/updates/{work['version']}/{work['shard']} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {client.token}",
        f"Content-Length: {len(body)}",
        "X-Samples: 8",
        "X-Loss: 0.5",
        f"X-First-Batch: {work['first_batch']}",
    ]
    with socket.create_connection((host, int(port))) as line:
        line.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body[:n])


def _kept(client: WorkerClient, work: dict[str, Any]) -> httpx2.Response:
    headers = client.headers | {"X-First-Batch": str(work["first_batch"])}
    where = f"/v1/updates/{work['version']}/{work['shard']}"
    return client.http.head(where, headers=headers)


def test_a_broken_upload_resumes(tmp_path: Path) -> None:
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        work = anna.work()
        assert work is not None
        body = update_body(0, 0)
        _broken_upload(anna, work, body, 1500)
        expires_s = time.monotonic() + 60
        while _kept(anna, work).headers["upload-offset"] != "1500":
            assert time.monotonic() < expires_s
        total = str(len(body))
        wrong = anna.put(work, body[9:], Upload_Offset="9", Upload_Length=total)
        assert (wrong.status_code, wrong.headers["upload-offset"]) == (416, "1500")
        part = anna.put(
            work, body[1500:1600], Upload_Offset="1500", Upload_Length=total
        )
        assert (part.status_code, part.headers["upload-offset"]) == (202, "1600")
        rest = anna.put(work, body[1600:], Upload_Offset="1600", Upload_Length=total)
        assert rest.json() == {"counted": True, "version": 1}
    np.testing.assert_allclose(weights_in(tmp_path), expected(1, 1), atol=1e-5)


def _lose_the_answer(client: WorkerClient, work: dict[str, Any]) -> None:
    """Send a whole update and disconnect before the response."""
    body = update_body(work["version"], work["shard"])
    _broken_upload(client, work, body, len(body))


def test_when_every_answer_is_lost_once_each_update_counts_once(
    tmp_path: Path,
) -> None:
    rounds = 5
    with (
        server(tmp_path, rounds=rounds, workers=2) as served,
        served.clients(2) as clients,
    ):
        for client in clients:  # the answer to joining was lost, too
            old = client.worker
            assert client.join().json()["worker"] == old
        for _ in range(rounds):
            work = [client.work() for client in clients]
            assert [client.work() for client in clients] == work
            for client, given in zip(clients, work, strict=True):
                assert given is not None
                _lose_the_answer(client, given)
                answer = client.put(given)
                while (
                    answer.status_code == 416
                ):  # the lost one came late, and took over
                    answer = client.put(given)
                assert answer.status_code == 200
                assert client.put(given).json()["again"] is True
        assert len(served.training.scheduler.workers) == 2
    np.testing.assert_allclose(weights_in(tmp_path), expected(rounds, 2), atol=1e-5)


def test_stale_reordered_and_foreign_updates_change_nothing(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=3) as served,
        served.clients(2) as (anna, ben),
    ):
        first = anna.work()
        assert first is not None
        anna.put(first)
        second = ben.work()
        assert second is not None
        stale = ben.put(first)
        assert stale.status_code == 409
        assert (stale.json()["error"], stale.json()["version"]) == ("stale", 1)
        early = dict(second, version=2, first_batch=2)
        for client, foreign in (
            (ben, early),
            (ben, dict(second, shard=5)),
            (anna, second),
        ):
            refused = client.put(foreign)
            assert (refused.status_code, refused.json()["error"]) == (409, "unassigned")
            path = f"/v1/updates/{foreign['version']}/{foreign['shard']}"
            first_batch = {"X-First-Batch": str(foreign["first_batch"])}
            asked = client.http.head(path, headers=client.headers | first_batch)
            assert asked.status_code == 409
        assert anna.put(second, X_Worker_Version="0").status_code == 400
        assert ben.put(second, X_Worker_Version="1").status_code == 200
        third = anna.work()
        assert third is not None
        assert anna.put(third).json()["counted"] is True
        assert ben.put(third).json()["error"] == "finished"
    np.testing.assert_allclose(weights_in(tmp_path), expected(3, 1), atol=1e-5)


def test_asynchronous_updates_count_less_the_older_they_are(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=2, workers=2, mode="async") as served,
        served.clients(2) as (anna, ben),
    ):
        one, two = anna.work(), ben.work()
        assert one is not None
        assert two is not None
        anna.put(one)
        assert ben.put(two).json() == {"counted": True, "version": 2}
    start = MANIFEST.values(model()).astype(np.float64)
    want = start - 0.25 * gradient(0, one["shard"]) - 0.125 * gradient(0, two["shard"])
    np.testing.assert_allclose(weights_in(tmp_path), want, atol=1e-5)


def test_asynchronous_workers_get_the_newest_weights_and_say_so(
    tmp_path: Path,
) -> None:
    with (
        server(tmp_path, rounds=2, workers=2, mode="async") as served,
        served.clients(2) as (anna, ben),
    ):
        one, two = anna.work(), ben.work()
        assert one is not None
        assert two is not None
        anna.put(one)
        got = ben.http.get("/v1/weights/0", headers=ben.headers)
        assert got.headers["x-version"] == "1"
        ben.put(dict(two, version=1))
    start = MANIFEST.values(model()).astype(np.float64)
    want = start - 0.25 * (gradient(0, one["shard"]) + gradient(1, two["shard"]))
    np.testing.assert_allclose(weights_in(tmp_path), want, atol=1e-5)


def test_a_slow_worker_is_not_waited_for_in_rounds_and_used_when_bounded(
    tmp_path: Path,
) -> None:
    with (
        server(tmp_path / "a", rounds=50, workers=2, round_timeout_s=0.5) as served,
        served.clients(2) as (fast, slow),
    ):
        late = slow.work()
        assert late is not None
        for _ in range(3):
            work = fast.work()
            assert work is not None
            fast.put(work)
        assert slow.put(late).status_code in (200, 409)
        assert served.training.scheduler.version >= 1
    with (
        server(tmp_path / "b", rounds=50, workers=2, mode="bounded", staleness=4) as (
            served
        ),
        served.clients(2) as (fast, slow),
    ):
        late = slow.work()
        assert late is not None
        while (work := fast.work(0.2)) is not None:
            fast.put(work)
        assert served.training.scheduler.version == 4
        assert slow.put(late).json()["counted"] is True
        assert fast.work() is not None


def test_a_server_goes_on_after_a_stop_with_the_same_tokens(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=8, workers=2) as served,
        served.clients(2) as (anna, ben),
    ):
        for _ in range(5):
            anna.step()
            ben.step()
        half = anna.work()
        assert half is not None
        anna.put(half)  # one shard of the sixth round
        tokens = [(f.token, f.worker) for f in (anna, ben)]
    with server(tmp_path, rounds=8, workers=2) as served:
        assert served.run.replayed == 5  # since version 3: two rounds and a half
        clients = [WorkerClient(served.url, served.code) for _ in range(2)]
        for client, (token, worker) in zip(clients, tokens, strict=True):
            client.token, client.worker = token, worker
        assert clients[0].put(half).json()["again"] is True
        for _ in range(3):
            clients[1].step()
            clients[0].step()
        for client in clients:
            while client.step() is not None:
                pass
            client.close()
        losses = served.training.scheduler.losses
        assert [version for version, _ in losses] == list(range(8))
    np.testing.assert_allclose(weights_in(tmp_path), expected(8, 2), atol=1e-5)


def test_two_servers_never_share_a_directory(tmp_path: Path) -> None:
    with (
        server(tmp_path),
        pytest.raises(ConfigError, match="another server"),
        server(tmp_path),
    ):
        pass


def test_a_directory_is_held_even_if_its_key_is_replaced(tmp_path: Path) -> None:
    with server(tmp_path):
        (tmp_path / "server.key").unlink()
        with pytest.raises(ConfigError, match="another server"), server(tmp_path):
            pass


@pytest.mark.slow
def test_a_fast_worker_is_not_told_to_wait(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=1000, every=1000) as served,
        served.clients(1) as (anna,),
    ):
        for _ in range(400):
            assert anna.step() is not None


def test_a_full_server_accepts_a_repeated_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_table, "MAX_WORKERS", 2)
    with server(tmp_path, workers=2) as served, served.clients(2) as (anna, _):
        full = WorkerClient(served.url, served.code)
        answer = full.join()
        assert (answer.status_code, answer.json()["error"]) == (503, "full")
        full.close()
        old = anna.worker
        assert anna.join().json()["worker"] == old  # the answer to the first was lost


def test_another_task_is_refused_by_the_parts_that_differ(tmp_path: Path) -> None:
    with server(tmp_path) as served:
        anna = WorkerClient(served.url, served.code)
        answer = anna.join(task={**FINGERPRINT, "model": "other", "more": "x"})
        anna.close()
    assert answer.status_code == 412
    parts = {part["part"]: part for part in answer.json()["differences"]}
    assert parts.keys() == {"model", "more"}
    assert parts["model"]["worker"] == "other"
    assert parts["model"]["server"] == FINGERPRINT["model"]


def test_pins_codes_and_tokens(tmp_path: Path) -> None:
    with server(tmp_path, pin="4711") as served, served.clients(1) as (anna,):
        ben = WorkerClient(served.url, "")
        assert ben.join(code=None).json()["error"] == "unknown"
        assert ben.join(code="AAAA").status_code == 401
        right = {"X-Auth-Pin": "4711"}
        body = {"task": FINGERPRINT}
        joined = ben.http.post("/v1/join", json=body, headers=right)
        assert joined.status_code == 200
        for _ in range(PIN_ATTEMPTS):
            assert ben.join(code=None, pin="0000").status_code == 401
        locked = ben.join(code=None, pin="4711")
        assert (locked.status_code, locked.json()["error"]) == (403, "locked")
        ben.token = "x" * 43
        assert ben.http.get("/v1/work", headers=ben.headers).status_code == 401
        assert anna.work() is not None
        assert ben.join(code=served.code).status_code == 200
        assert ben.http.post("/v1/leave", headers=ben.headers).status_code == 204
        assert ben.http.get("/v1/work", headers=ben.headers).status_code == 401
        ben.close()


def test_tls_shows_the_key_of_the_link(tmp_path: Path) -> None:
    with server(tmp_path, rounds=1, tls=True) as served:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = int(served.url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain) as line,
        ):
            assert line.version() == "TLSv1.3"
            shown = line.getpeercert(binary_form=True)
        assert shown is not None
        found = server_key.fingerprint_of(shown)
        assert hmac.compare_digest(found, served.run.key.fingerprint)
        anna = WorkerClient(served.url, served.code, verify=context)
        anna.join()
        assert anna.step() is not None
        assert anna.step() is None
        anna.close()


def _paths(served: Server) -> set[tuple[str, str]]:
    """Return (path, method) of every route of the server."""
    found = set()
    for route in served.serving._app.starlette().routes:
        assert isinstance(route, Route)
        found |= {(route.path, method.lower()) for method in route.methods or ()}
    return found


def test_the_openapi_page_knows_every_route(tmp_path: Path) -> None:
    with server(tmp_path) as served:
        description = httpx2.get(f"{served.url}/v1/openapi.json", timeout=60).json()
        ours = _paths(served)
    assert description == DESCRIPTION | {"paths": description["paths"]}
    described = {(p, m) for p, item in description["paths"].items() for m in item}
    # starlette answers HEAD wherever it answers GET; the page's files are no API
    files = {(path, "get") for path in status_page.PATHS}
    assert {pair for pair in ours if pair[1] != "head"} - files <= described
    assert described <= ours
