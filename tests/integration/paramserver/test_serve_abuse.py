"""A server goes on and stays small whatever strangers and broken workers send."""

from __future__ import annotations

import io
import itertools
import pickle
import socket
import ssl
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import cast

import httpx2
import numpy as np
import pytest
import torch

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol import bodies, compressed_body, join_link
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.server import quarantined_sources
from ringleader.paramserver.server.admission import PIN_ATTEMPTS
from ringleader.paramserver.server.http import connection_limits, request_limits
from ringleader.paramserver.server.http.connection_limits import (
    MAX_CONNECTIONS,
    MAX_PER_ADDRESS,
    LimitedProtocol,
)
from ringleader.paramserver.server.worker_record import MAX_STRIKES
from ringleader.paramserver.worker.join import WorkerSettings, prepare_task
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import Session
from tests.kit.param_server import (
    MANIFEST,
    RestartingServer,
    Server,
    WorkerClient,
    expected,
    server,
    update_body,
    weights_in,
)


def _torch_save() -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(20, 50)}, file)
    return file.getvalue()


def _update(value: float, size: int = MANIFEST.num_parameters) -> bytes:
    vector = np.full(size, value, np.float32)
    return bodies.pack_update(MANIFEST, Update(vector, np.zeros(0, np.float32)))


def _zstd_bomb() -> bytes:
    return compressed_body.compress(bytes(64 << 20), 19)


INVALID: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps([print, ("x",)]),
    "torch.save": _torch_save,
    "gzip of torch.save": lambda: zlib.compress(_torch_save(), wbits=31),
    "zstd bomb": _zstd_bomb,
    "gzip bomb": lambda: zlib.compress(bytes(2 << 20), 9, 31),
    "wrong shape": lambda: _update(0.1, MANIFEST.num_parameters - 1),
    "NaN": lambda: _update(np.nan),
    "1e30": lambda: _update(1e30),
    "nothing": lambda: b"",
}


TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE


@contextmanager
def raw(served: Server, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Open a plain TCP connection to the server."""
    host, port = served.url.partition("://")[2].split(":")
    address = (host, int(port))
    with socket.create_connection(address, 120, source_address=(source, 0)) as line:
        yield line


def answer_to(served: Server, *pieces: bytes, is_patient: bool = True) -> bytes:
    """Send the pieces, each after an answer to the one before or a moment.

    Returns everything until the server disconnects, or for a second if not patient.
    """
    found = b""
    with raw(served) as plain, ExitStack() as stack:
        line = plain
        try:
            if served.url.startswith("https"):
                line = stack.enter_context(TRUSTING.wrap_socket(plain))
            for piece in pieces[:-1]:
                line.sendall(piece)
                line.settimeout(0.05)
                with suppress(TimeoutError):
                    found += line.recv(65536)
            line.settimeout(120 if is_patient else 0.5)
            line.sendall(pieces[-1])
            while piece := line.recv(65536):
                found += piece
        except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
            pass
        except TimeoutError:
            assert not is_patient, "the server neither answers nor disconnects"
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize("name", INVALID)
def test_invalid_updates_are_refused_and_their_sender_quarantined(
    tmp_path: Path, name: str
) -> None:
    with (
        server(tmp_path, rounds=MAX_STRIKES) as served,
        served.clients(2) as (bad, good),
    ):
        body = INVALID[name]()
        for _ in range(MAX_STRIKES):
            work = bad.work()
            assert work is not None
            answer = bad.put(work, body)
            assert (answer.status_code, answer.json()["error"]) == (422, "rubbish")
            assert good.step() == work, "others do the rest of the round"
        answer = bad.http.get("/v1/work", headers=bad.headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "quarantined")
        assert good.work() is not None
    want = expected(MAX_STRIKES, 1)
    np.testing.assert_allclose(weights_in(tmp_path), want, atol=1e-5)


def _quarantine(client: WorkerClient) -> None:
    for _ in range(MAX_STRIKES):
        work = client.work()
        assert work is not None
        assert client.put(work, _update(np.nan)).status_code == 422
    assert client.http.get("/v1/work", headers=client.headers).status_code == 403


def test_a_new_name_does_not_end_a_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantined_sources, "SHARED_WAIT_S", 300.0)
    with server(tmp_path, rounds=50) as served, served.clients(2) as (bad, good):
        good.http.post("/v1/leave", headers=good.headers, json={})
        _quarantine(bad)
        again = WorkerClient(served.url, served.code)
        answer = again.join()
        assert answer.status_code == 429
        assert "was quarantined" in answer.json()["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 300
        assert bad.join().status_code == 200, "the same nonce is the same worker"
        assert bad.http.get("/v1/work", headers=bad.headers).status_code == 403
        sources = served.training._quarantined._sources
        sources[""] = (1, 0.0)  # as if the wait were over
        assert again.join().status_code == 200
        work = again.work()
        assert work is not None
        again.put(work, _update(np.nan))
        answer = again.http.get("/v1/work", headers=again.headers)
        assert answer.status_code == 403, "one invalid update is enough now"
        again.close()


@pytest.mark.parametrize("mode", ["bulk", "async"])
def test_tiny_updates_quarantine_nobody(tmp_path: Path, mode: str) -> None:
    with (
        server(tmp_path, rounds=200, workers=3, mode=mode) as served,
        served.clients(3) as (anna, ben, eve),
    ):
        for _ in range(20):
            if mode == "bulk":
                anna.step()
                ben.step()
            work = eve.work()
            assert work is not None
            assert eve.put(work, _update(1e-9)).status_code == 200
        for _ in range(MAX_STRIKES):
            for client in (anna, ben, eve):
                work = client.work()
                assert work is not None
                assert client.put(work).json()["counted"] is True
        states = {w.is_quarantined for w in served.training.scheduler.workers.values()}
    assert states == {False}


def test_the_first_update_is_bounded_by_the_model(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=50, workers=2) as served,
        served.clients(2) as (anna, eve),
    ):
        limit = served.training.store.weights.norm_limit()
        assert limit < 200
        work = eve.work()
        assert work is not None
        value = 1.1 * limit / MANIFEST.num_parameters**0.5
        answer = eve.put(work, _update(value))
        assert answer.status_code == 422
        assert "--max-move" in answer.json()["message"]
        assert anna.step() is not None
        assert served.training.scheduler.workers[eve.worker].strikes == 0


def test_quarantine_outlives_a_restart(tmp_path: Path) -> None:
    with server(tmp_path) as served, served.clients(1) as (bad,):
        for _ in range(MAX_STRIKES):
            work = bad.work()
            assert work is not None
            bad.put(work, b"rubbish")
        token = bad.token
    with server(tmp_path) as served:
        again = WorkerClient(served.url, served.code, token=token)
        assert again.http.get("/v1/work", headers=again.headers).status_code == 403
        again.close()


def test_a_worker_that_was_given_nothing_counts_nothing(tmp_path: Path) -> None:
    with server(tmp_path, rounds=2, workers=2) as served:
        made = [WorkerClient(served.url, served.code) for _ in range(3)]
        anna, ben, eve = made
        for client in made:
            assert client.join().status_code == 200

        def send_everything() -> None:
            for shard in (0, 1):
                batch = served.training.scheduler.position + shard
                version = served.training.scheduler.version
                work = {"version": version, "shard": shard, "first_batch": batch}
                answer = eve.put(work)
                assert answer.json()["error"] in ("unassigned", "finished")

        send_everything()
        assert anna.work(0.0) is None, "eve never asked: the round waits for ben"
        status = anna.http.get("/v1/status").json()
        assert (status["waiting_for"], status["awaited"]) == (1, [])
        second, first = ben.work(), anna.work()
        assert first is not None
        assert second is not None
        awaited = anna.http.get("/v1/status").json()["awaited"]
        assert set(awaited) == {anna.worker, ben.worker}
        send_everything()
        assert anna.put(first).json()["counted"] is True
        assert ben.put(second).json()["counted"] is True
        send_everything()
        for client in (anna, ben):
            assert client.step() is not None
        send_everything()
        updates = {w: r.updates for w, r in served.training.scheduler.workers.items()}
        for client in made:
            client.close()
    assert updates == {anna.worker: 2, ben.worker: 2, eve.worker: 0}
    np.testing.assert_allclose(weights_in(tmp_path), expected(2, 2), atol=1e-5)


def test_an_update_with_an_unusual_norm_is_refused(tmp_path: Path) -> None:
    with (
        server(tmp_path, rounds=50, workers=3) as served,
        served.clients(3) as (anna, ben, carl),
    ):
        for client in (anna, ben, carl):
            client.step()
        work = anna.work()
        assert work is not None
        answer = anna.put(work, _update(4000.0))
        assert answer.status_code == 422
        assert "usual" in answer.json()["message"]
        assert anna.put(work).json()["error"] == "unassigned", "it was taken back"
        for client in (ben, carl, ben):
            assert client.step() is not None
        assert anna.step() is not None
        assert served.training.scheduler.workers[anna.worker].updates == 2


def _head(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: h", *lines, "", ""]
    ).encode()


HEADS: list[tuple[bytes, tuple[int, ...]]] = [
    (_head("/", "X-Big: " + "x" * 65536), (400, 431)),
    (_head("/", *(f"X-{i}: y" for i in range(3000))), (400, 431)),
    (_head("/", *(f"X-{i}: y" for i in range(80))), (431,)),
    (_head("/" + "a" * 40000), (400, 414, 431)),
    (_head("/v1/join", "Content-Length: 5", "Transfer-Encoding: chunked"), (400,)),
    (_head("/v1/join", "Content-Length: 5", "Content-Length: 6"), (400,)),
    (_head("/v1/join", "Content-Length: -1"), (400,)),
    (_head("/v1/join", "Content-Length: 1e3"), (400,)),
    (_head("/v1/join", "Content-Length: +5"), (400,)),
    (_head("/v1/join", "Content-Length: \u0665"), (400,)),
    (_head("/v1/join", f"Content-Length: {'9' * 5000}"), (400, 431)),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), (400,)),
    (b"\x00" * 300 + b"\r\n\r\n", (400,)),
    (_head("/v1/status", "Connection: close", method="DELETE"), (405,)),
    (_head("/v1/weights/..%2f..%2fserver.key", "Connection: close"), (401, 404)),
    (_head("/v1/../server.key", "Connection: close"), (404,)),
    (_head("//etc/passwd", "Connection: close"), (404,)),
    (_head("/checkpoints/000000/state.json", "Connection: close"), (404,)),
]


def test_invalid_heads_are_refused(tmp_path: Path) -> None:
    rounds = len(HEADS)
    with server(tmp_path, rounds=rounds) as served, served.clients(1) as (anna,):
        for request, codes in HEADS:
            assert status_of(answer_to(served, request)) in codes, request[:80]
            assert anna.step() is not None, request[:80]


def _put(client: WorkerClient, *lines: str) -> bytes:
    token = f"Authorization: Bearer {client.token}"
    update_headers = ("X-Samples: 8", "X-Loss: 1", "X-First-Batch: 0")
    return _head("/v1/updates/0/0", token, *update_headers, *lines, method="PUT")


def test_endless_bodies_are_cut(tmp_path: Path) -> None:
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        anna.work()
        chunk = b"1000\r\n" + bytes(4096) + b"\r\n"
        endless = _put(anna, "Transfer-Encoding: chunked") + 2000 * chunk
        assert status_of(answer_to(served, endless)) in (411, 0)
        fake = _put(anna, "Transfer-Encoding: chunked", "Upload-Length: 9000")
        assert status_of(answer_to(served, fake + 2000 * chunk)) in (413, 0)
        huge = _put(anna, "Content-Length: 1000000000000")
        assert status_of(answer_to(served, huge + bytes(1000))) == 413
        join = _head("/v1/join", "Content-Length: 99999999", method="POST")
        assert status_of(answer_to(served, join + bytes(100_000))) in (413, 0)
        assert anna.step() is not None


SENSELESS = [
    {"X_Samples": "0"},
    {"X_Samples": "-1"},
    {"X_Samples": "9" * 5000},
    {"X_Samples": "1e3"},
    {"X_Samples": "33"},  # more than a batch has
    {"X_Loss": "nan"},
    {"X_Loss": "inf"},
    {"X_Loss": "1e308"},  # finite, but not when it is added up
    {"X_Loss": "-1e300"},
    {"X_Loss": ""},
    {"X_Codec": "pickle"},
    {"X_First_Batch": "x"},
    {"Upload_Offset": "-5"},
    {"X_Worker_Version": "7"},
]


def test_invalid_headers_are_malformed(tmp_path: Path) -> None:
    with server(tmp_path) as served, served.clients(1) as (anna,):
        work = anna.work()
        assert work is not None
        for change in SENSELESS:
            answer = anna.put(work, None, **change)
            found = (answer.status_code, answer.json()["error"])
            assert found == (400, "malformed"), change
        for path in (f"/v1/updates/{'9' * 6000}/0", "/v1/updates/-1/0"):
            headers = anna.headers | {"X-First-Batch": "0"}
            assert anna.http.head(path, headers=headers).status_code in (400, 404)
        assert anna.put(work).status_code == 200, "it may still do its work"


def test_names_are_only_shown_and_never_more_than_text(tmp_path: Path) -> None:
    name = "../../etc/passwd\x00\x1b[31m<script>alert(1)</script>" + "x" * 100
    before = set(tmp_path.parent.rglob("*"))
    with server(tmp_path) as served:
        anna = WorkerClient(served.url, served.code)
        assert anna.join(name=name, device="<b>").status_code == 200
        worker = anna.http.get("/v1/status").json()["workers"][0]
        assert len(worker["name"].encode()) <= 48
        assert worker["name"].isprintable()
        page = anna.http.get("/")
        assert "script-src" in page.headers["content-security-policy"]
        text = page.text + anna.http.get("/v1/status").text
        for secret in (anna.token, served.code, str(tmp_path)):
            assert secret not in text
        assert anna.join(name="x" * 300).status_code == 400
        assert anna.join(nonce="../../x").status_code == 400
        assert anna.join(task={str(i): "x" for i in range(40)}).status_code == 400
        anna.close()
    made = set(tmp_path.parent.rglob("*")) - before
    assert all(tmp_path in path.parents for path in made)


TASK = b'"task": {}'


NOT_JOINING = [
    b"",
    b"\xff",
    b"null",
    b"[]",
    b"[" * 8000,
    b'{"task": ' * 800,
    b"{" + TASK,
    b'{"task": 1}',
    b'{"task": {"a": 1}}',
    b'{"task": {"a": "' + b"x" * 300 + b'"}}',
    b"{" + TASK + b', "name": "\xff\xfe"}',
    b"{" + TASK + b', "name": 5}',
    b"{" + TASK + b', "pin": 4711}',
    b"{" + TASK + b', "pin": "\\ud800"}',
    b"{" + TASK + b', "pin": "' + b"9" * 257 + b'"}',
    b"{" + TASK + b', "code": "\\ud800"}',
    b"{" + TASK + b', "code": "\xc3\xbc"}',
    b"{" + TASK + b', "nonce": "\\ud800"}',
    b"{" + TASK + b', "nonce": 1e999}',
    b'{"task": {"\\ud800": "\\udfff"}}',
]


def test_invalid_requests_to_join_are_refused(tmp_path: Path) -> None:
    with server(tmp_path, pin="4711") as served:
        anna = WorkerClient(served.url, served.code)
        for body in NOT_JOINING:
            answer = anna.http.post("/v1/join", content=body)
            assert answer.status_code in (400, 401), body[:80]
            assert answer.json()["error"] in ("malformed", "unknown"), body[:80]
        assert anna.join().status_code == 200
        anna.close()


CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = [b"zz\r\n", b"5\r\nabcdefgh\r\n", b"0\r\n: bad\r\n\r\n", b"f" * 30 + b"\r\n"]


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True])
def test_malformed_requests_are_not_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_tls: bool,
) -> None:
    """Neither by uvicorn nor by asyncio: a stranger could fill the disk with it."""
    monkeypatch.setattr(request_limits, "GRACE_S", 0.2)
    with server(tmp_path, rounds=1, tls=is_tls) as served:
        anna = WorkerClient(served.url, served.code, verify=TRUSTING)
        anna.join()
        token = f"Authorization: Bearer {anna.token}"
        answer_to(served, b"\x00" * 300 + b"\r\n\r\n")
        answer_to(served, _head("/", "Upgrade: websocket", "Connection: upgrade,close"))
        heads = [
            _head("/", CHUNKED),
            _head("/nothing", CHUNKED),
            _head("/v1/join", CHUNKED, method="POST"),
            _head("/v1/work?wait=1", CHUNKED, token),
            _head("/v1/weights/0", CHUNKED, token),
            _put(anna, CHUNKED, "Upload-Length: 900"),
        ]
        for head in heads:
            for chunk in CHUNKS:
                answer_to(served, head + chunk)
                answer_to(served, head, chunk)
            answer_to(served, head + b"5\r\nab", is_patient=False)
        monkeypatch.setattr(request_limits, "GRACE_S", 60.0)
        assert anna.step() is not None
        anna.close()
    assert [record.getMessage() for record in caplog.records] == []


def test_slow_heads_and_silent_connections_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_S", 0.4)
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        for begin in (b"", b"GET / HTTP/1.1\r\n"):
            with raw(served) as line:
                began_s = time.monotonic()
                line.sendall(begin)
                line.settimeout(0.1)
                while True:
                    assert time.monotonic() < began_s + 60, "it is not dropped"
                    try:
                        line.sendall(
                            b"X: y\r\n" if begin else b""
                        )  # a byte now and then
                        if line.recv(1) == b"":
                            break
                    except TimeoutError:
                        continue
                    except OSError:
                        break
        assert anna.step() is not None


@pytest.mark.parametrize("is_dribbling", [False, True])
def test_a_slow_body_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dribbling: bool
) -> None:
    monkeypatch.setattr(request_limits, "GRACE_S", 0.3)
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        work = anna.work()
        assert work is not None
        body = update_body(0, 0)
        with raw(served) as line:
            line.sendall(_put(anna, f"Content-Length: {len(body)}") + body[:100])
            expires_s = time.monotonic() + 60
            line.settimeout(0.05)
            found, sent = b"", 100
            while not found and time.monotonic() < expires_s:
                try:
                    found = line.recv(15)
                except TimeoutError:
                    if is_dribbling:
                        line.sendall(body[sent : sent + 1])
                        sent += 1
            assert found == b"HTTP/1.1 408 Re"
        monkeypatch.setattr(request_limits, "GRACE_S", 60.0)
        headers = anna.headers | {"X-First-Batch": "0"}
        kept = anna.http.head("/v1/updates/0/0", headers=headers)
        at = int(kept.headers["upload-offset"])
        assert at >= 100
        more = {"Upload_Offset": str(at), "Upload_Length": str(len(body))}
        assert anna.put(work, body[at:], **more).json()["counted"] is True


def test_a_client_that_reads_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "STALL_S", 0.4)
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        large = memoryview(bytes(64 << 20))  # more than any socket buffers
        monkeypatch.setitem(served.training._bodies, ("none", "zstd"), (0, large))
        with raw(served) as line:
            token = f"Authorization: Bearer {anna.token}"
            line.sendall(_head("/v1/weights/0", token))
            assert line.recv(15) == b"HTTP/1.1 200 OK"
            expires_s = time.monotonic() + 60
            while _open(served) > 1 and time.monotonic() < expires_s:
                time.sleep(0.05)
            assert _open(served) <= 1
        assert anna.step() is not None


def _open(served: Server) -> int:
    return len(served.serving._acceptor._open)


def hold_unfinished_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the limits of numbers end them: a slow machine needs its time."""
    monkeypatch.setattr(connection_limits, "HEAD_S", 600.0)
    monkeypatch.setattr(connection_limits, "HANDSHAKE_S", 600.0)
    monkeypatch.setattr(request_limits, "GRACE_S", 600.0)


SLOW = {
    "head": b"GET / HTTP/1.1\r\nX-Slow: ",
    "body": b"POST /v1/join HTTP/1.1\r\nHost: h\r\nContent-Length: 8000\r\n\r\n{",
}


@pytest.mark.parametrize("kind", SLOW)
def test_hundreds_of_slow_connections_do_not_block_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    hold_unfinished_requests(monkeypatch)
    with (
        server(tmp_path, rounds=30) as served,
        served.clients(1) as (anna,),
        ExitStack() as lines,
    ):
        joined = set(served.serving._acceptor._open)
        expires_s = time.monotonic() + 300
        for i in itertools.count():
            source = (
                f"127.0.1.{i % 250 + 1}" if sys.platform == "linux" else "127.0.0.1"
            )
            line = lines.enter_context(raw(served, source))
            line.sendall(SLOW[kind])
            if i >= 500 and _open(served) >= MAX_CONNECTIONS:
                break
            assert time.monotonic() < expires_s, "the server is never full"
        opened = _open_after_joining(served)
        assert joined <= opened, "a worker's connection was dropped"
        for _ in range(10):
            assert anna.step() is not None
        assert _open(served) <= MAX_CONNECTIONS


def _open_after_joining(served: Server) -> set[LimitedProtocol]:
    """Join; until then a newcomer is a stranger, who may have to try again."""
    expires_s = time.monotonic() + 60
    while True:
        try:
            with served.clients(1):
                return set(served.serving._acceptor._open)
        except httpx2.TransportError:
            assert time.monotonic() < expires_s, "newcomers never get in"


def test_unfinished_handshakes_are_dropped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 4)
    hold_unfinished_requests(monkeypatch)
    with (
        server(tmp_path, rounds=9, tls=True) as served,
        raw(served) as plain,
        raw(served) as oldest,
        raw(served) as newest,
    ):
        anna = WorkerClient(served.url, served.code, verify=TRUSTING)
        assert anna.join().status_code == 200
        with TRUSTING.wrap_socket(plain) as stranger:
            stranger.sendall(_head("/v1/status"))
            assert stranger.recv(15) == b"HTTP/1.1 200 OK"
            acceptor = served.serving._acceptor
            for count, line in enumerate((oldest, newest), 1):
                line.sendall(_client_hello())
                expires_s = time.monotonic() + 60
                while len(acceptor._handshaking) < count:
                    assert time.monotonic() < expires_s
                    time.sleep(0.01)
            ben = WorkerClient(served.url, served.code, verify=TRUSTING)
            assert ben.join().status_code == 200
            assert {p.worker for p in acceptor._open} == {"w1", "w2", None}
            assert len(acceptor._handshaking) == 1
            oldest.settimeout(60)
            with suppress(ConnectionResetError):
                while oldest.recv(65536):  # what the server said of the handshake
                    pass
            stranger.sendall(_head("/v1/status"))
            assert stranger.recv(1), "it goes on"
        for client in (anna, ben):
            assert client.step() is not None
            client.close()


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        TRUSTING.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


@pytest.mark.slow
def test_who_has_the_code_or_a_token_is_not_limited_with_strangers(
    tmp_path: Path,
) -> None:
    """Behind a tunnel all have one address."""
    with server(tmp_path, rounds=9) as served, served.clients(1) as (anna,):
        served.run.app._auth._strangers.per_s = 1e-3  # also if this machine is slow

        def status(authorization: str = "") -> int:
            headers = {"Authorization": authorization} if authorization else {}
            return anna.http.get("/v1/status", headers=headers).status_code

        while status() != 429:
            pass
        wrong = "A" * len(served.code)
        for refused in (
            "",
            f"Join {wrong}",
            f"Bearer {wrong}",
            f"Bearer {served.code}",
        ):
            assert status(refused) == 429, refused
        for _ in range(100):
            assert status(f"Join {served.code}") == 200
            assert status(f"Bearer {anna.token}") == 200
        assert status() == 429
        stale = WorkerClient(served.url, served.code, token=wrong)
        assert stale.http.get("/v1/work", headers=stale.headers).status_code == 401
        assert stale.join().status_code == 200, "with the code"
        link = join_link.build(served.url, served.run.key.secret.reveal(), None)
        address = ServerAddress.from_links([link.reveal()])
        nobody = cast("Observer", None)  # it would be told of a wait
        with (
            closing(Session.open(address, nobody)) as session,
            pytest.raises(ConfigError, match="the server trains 'tiny'"),
        ):
            prepare_task(WorkerSettings(name="anna"), session, nobody)  # it learned it
        stale.close()


def sources(count: int) -> list[str]:
    if sys.platform != "linux":
        pytest.skip("needs many addresses")
    return [f"127.0.2.{i + 1}" for i in range(count)]


def test_an_address_has_few_connections_and_takes_none_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "is_loopback", lambda host: False)
    hold_unfinished_requests(monkeypatch)
    with (
        server(tmp_path, rounds=9) as served,
        served.clients(1) as (anna,),
        ExitStack() as lines,
    ):
        quiet, loud = sources(2)
        ours = [lines.enter_context(raw(served, quiet)) for _ in range(3)]
        theirs = [lines.enter_context(raw(served, loud)) for _ in range(60)]
        for line in (*ours, *theirs):
            line.sendall(SLOW["head"])
        expires_s = time.monotonic() + 60
        while (hosts := _hosts(served))[loud] < MAX_PER_ADDRESS or hosts[quiet] < 3:
            assert time.monotonic() < expires_s, hosts
            time.sleep(0.01)
        for _ in range(5):
            assert anna.step() is not None
        hosts = _hosts(served)
        assert (hosts[loud], hosts[quiet]) == (MAX_PER_ADDRESS, 3)


def _hosts(served: Server) -> Counter[str]:
    return Counter(p.host for p in list(served.serving._acceptor._open))


@pytest.mark.slow
def test_limits_hold_for_many_addresses_at_once(tmp_path: Path) -> None:
    """Each has its own rate; the attempts for PINs are those of all together."""
    with (
        server(tmp_path, rounds=9, pin="4711") as served,
        served.clients(1) as (anna,),
        ExitStack() as stack,
    ):
        strangers = [
            WorkerClient(served.url, "", source=source) for source in sources(20)
        ]
        for stranger in strangers:
            stack.callback(stranger.close)
        codes = Counter(
            stranger.join(code=None, pin=f"{guess:04d}").status_code
            for guess in range(5)
            for stranger in strangers
        )
        assert codes == {401: PIN_ATTEMPTS, 403: 100 - PIN_ATTEMPTS}
        loud, *others = strangers
        served.run.app._auth._strangers.per_s = 1e-3  # also if this machine is slow
        while loud.http.get("/v1/status").status_code == 200:
            pass
        for stranger in others:
            assert stranger.http.get("/v1/status").status_code == 200
        assert anna.step() is not None


def test_guessing_pins_stops_at_the_budget_and_locks_out_nobody(
    tmp_path: Path,
) -> None:
    with (
        server(tmp_path, rounds=50, pin="4711") as served,
        served.clients(1) as (anna,),
    ):
        served.run.app._auth._strangers.per_s = 1e-3  # also if this machine is slow
        thief = WorkerClient(served.url, "")
        codes = [
            thief.join(code=None, pin=f"{guess:04d}").status_code
            for guess in range(300)
        ]
        assert codes.count(401) == PIN_ATTEMPTS
        assert set(codes) == {401, 403, 429}
        assert anna.step() is not None
        thief.close()


def _memory_kb(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_whatever_is_sent(tmp_path: Path) -> None:
    with (
        RestartingServer(tmp_path, rounds=10_000, workers=1, mode="bulk") as restarting,
        ExitStack() as s,
    ):
        process = restarting.next()
        assert process is not None
        url = f"http://127.0.0.1:{process.port}"
        good = WorkerClient(url, restarting.code)
        s.callback(good.close)
        good.join()
        for _ in range(10):
            good.step()
        before_kb = _memory_kb(process.pid)
        strangers = [WorkerClient(url, restarting.code) for _ in range(8)]
        for bad in strangers:  # before one is quarantined: then no other may join
            assert bad.join().status_code == 200
        for bad in strangers:
            for body in (_zstd_bomb(), bytes(4000), _torch_save()):
                work = bad.work()
                assert work is not None
                assert bad.put(work, body).status_code == 422
                assert good.step() is not None, "the round is left to it"
            bad.close()
        for _ in range(300):
            line = s.enter_context(
                socket.create_connection(("127.0.0.1", process.port))
            )
            line.sendall(
                b"PUT /v1/updates/0/0 HTTP/1.1\r\nContent-Length: 99999999\r\n"
            )
        for _ in range(20):
            good.step()
        assert _memory_kb(process.pid) - before_kb < 40_000
