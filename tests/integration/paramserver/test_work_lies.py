"""Workers facing servers, tunnels and proxies that break the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ringleader.errors import (
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link as links
from ringleader.paramserver.protocol.messages import JoinAnswer
from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import ServerOptions, open_run
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Progress
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import (
    LIMIT_BYTES,
    Request,
    Session,
    TryLater,
)
from ringleader.paramserver.worker.worker import Worker
from ringleader.transport.free_ports import free_ports
from tests.kit.param_server import server


class SilentObserver:
    """Ignores all events but steps, for which it calls ``on_step``."""

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        self._on_step = on_step

    def joined(self, terms: JoinAnswer, device: str) -> None: ...
    def waiting(self, reason: str, pause_s: float) -> None: ...
    def reconnected(self) -> None: ...
    def noted(self, text: str) -> None: ...

    def stepped(self, progress: Progress) -> None:
        self._on_step()


class FakeServer:
    """Responds to every request with the same bytes, then disconnects."""

    def __init__(self, answer: bytes, then: bytes = b"") -> None:
        self._answer = answer
        self._then = then  # again and again, until the other side has enough
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, name="liar", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line, suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head and (block := line.recv(65536)):
                    head += block
                self.heads.append(head)
                line.sendall(self._answer)
                while self._then:
                    line.sendall(self._then)


@contextmanager
def fake_server(
    answer: bytes, then: bytes = b""
) -> Iterator[tuple[FakeServer, Session]]:
    fake = FakeServer(answer, then)
    session = Session.open(ServerAddress.from_links([fake.url]), SilentObserver())
    session.token = Secret("a-token")
    try:
        yield fake, session
    finally:
        session.close()
        fake.close()


def head(status: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode("latin-1")


WORK = Request("GET", "/v1/work?wait=0")
HTML = "Content-Type: text/html; charset=utf-8"
JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("answer", "then", "kind"),
    [
        (head(200, JSON, "Content-Length: 999999999999999"), bytes(65536), "Protocol"),
        (
            head(200, JSON, "Transfer-Encoding: chunked"),
            (b"10\r\n" + b"x" * 16 + b"\r\n") * 999,
            "Protocol",
        ),
        (head(200, HTML, "Content-Length: 999999999"), bytes(65536), "NotNow"),
        (head(503, HTML, "Retry-After: nan") + b"<html>", b"", "NotNow"),
        (head(200, JSON, "Content-Encoding: gzip", "Content-Length: 1"), b"", "Lost"),
        (head(200, JSON, "Content-Length: 9") + b"{", b"", "Lost"),
        (head(200, JSON, "Content-Length: -5"), b"", "Lost"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"", "Lost"),
        (b"", b"", "Lost"),
    ],
    ids=range(9),
)
def test_endless_and_invalid_responses_are_cut(
    answer: bytes, then: bytes, kind: str
) -> None:
    kinds: dict[str, type[PeerError]] = {"Protocol": ProtocolError}
    kinds |= {"NotNow": TryLater, "Lost": PeerLost}
    with fake_server(answer, then) as (_, session), pytest.raises(kinds[kind]):
        session.send_once(WORK)
    assert session.received_bytes < LIMIT_BYTES + (1 << 20)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_token_does_not_follow_to_another_host(code: int) -> None:
    other = FakeServer(head(200, JSON, "Content-Length: 2") + b"{}")
    moved = head(code, f"Location: {other.url}/v1/work", "Content-Length: 0")
    with fake_server(moved) as (fake, session), pytest.raises(TryLater):
        session.send_once(WORK)
    other.close()
    assert b"a-token" in fake.heads[0]
    assert other.heads == []


@pytest.mark.parametrize(
    "line",
    [
        f"Content-Range: bytes {'9' * 5000}-",
        "Content-Range: bytes 7-",
        "Content-Range: rubbish",
        "X: y",
    ],
    ids=range(4),
)
def test_an_invalid_range_is_downloaded_again(line: str) -> None:
    body = ResponseBody(100)
    body.data += b"abc"
    with (
        fake_server(head(206, line, "Content-Length: 1") + b"x") as (_, session),
        pytest.raises(PeerLost),
    ):
        session.send_once(Request("GET", "/v1/weights/0"), body)
    assert body.resume_headers() == {}


def test_an_etag_that_cannot_be_sent_back_is_ignored() -> None:
    body = ResponseBody(100)
    with fake_server(head(200, 'ETag: "\u00e9"', "Content-Length: 1") + b"x") as (
        _,
        session,
    ):
        session.send_once(Request("GET", "/v1/weights/0"), body)
    assert body.resume_headers() == {}


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409])
def test_a_refusal_without_a_body_answers_head(code: int) -> None:
    with fake_server(head(code, "Content-Length: 50")) as (_, session):
        answer = session.send_once(Request("HEAD", "/v1/updates/0/0"))
        assert answer.status == code


class ReplacedServer:
    """A server that another one replaces at the same address."""

    def __init__(self, out: Path) -> None:
        digits, plan = load_task("digits"), Plan(rounds=50, workers=1)
        self.runs = [open_run(digits, plan, ServerOptions(out=out / n)) for n in "ab"]
        self._port = free_ports(1)[0]
        self._serving: HttpServer | None = None
        self._thread = threading.Thread()
        self.serve(0)

    @property
    def link(self) -> str:
        key, url = self.runs[0].key, f"https://127.0.0.1:{self._port}"
        return links.build(url, key.secret.reveal(), key.fingerprint).reveal()

    def serve(self, number: int) -> None:
        run = self.runs[number]
        listener = ListenAddress(host="127.0.0.1", port=self._port).listen()
        self._serving = HttpServer(run.app, listener, run.key.context())
        self._thread = threading.Thread(target=self._serving.run, name=f"s{number}")
        self._thread.start()

    def stop(self) -> None:
        assert self._serving is not None
        self._serving.stop()
        self._thread.join(120)

    def close(self) -> None:
        self.stop()
        for run in self.runs:
            run.close()


@pytest.mark.slow
def test_a_key_that_changes_between_two_requests_ends_the_worker(
    tmp_path: Path,
) -> None:
    """No byte of a request reaches the other server."""
    replaced = ReplacedServer(tmp_path)

    def move() -> None:
        replaced.stop()
        replaced.serve(1)

    wanted = WorkerSettings(name="test", device="cpu")
    worker = Worker.open(
        wanted, ServerAddress.from_links([replaced.link]), SilentObserver(move)
    )
    try:
        with pytest.raises(PeerUntrusted, match="its key is not the one in the link"):
            worker.run()
        assert worker.totals.counted == 1
        assert replaced.runs[1].app.training.scheduler.workers == {}
    finally:
        worker.close()
        replaced.close()


@pytest.mark.parametrize("change", ["batch_size", "steps"])
def test_a_server_that_asks_for_more_than_was_agreed_ends_the_worker(
    tmp_path: Path, change: str
) -> None:
    with server(tmp_path, rounds=50, what=load_task("digits")) as served:
        app = served.run.app

        def ask_for_more() -> None:
            if change == "steps":
                plan = replace(app.training.scheduler.plan, steps=2)
                app.training.scheduler.plan = plan
            else:
                app.settings = replace(app.settings, batch_size=4096)

        link = links.build(served.url, served.run.key.secret.reveal(), None)
        address = ServerAddress.from_links([link.reveal()])
        wanted = WorkerSettings(name="test", device="cpu")
        worker = Worker.open(wanted, address, SilentObserver(ask_for_more))
        try:
            with pytest.raises(ProtocolError, match="was agreed at joining"):
                worker.run()
            assert worker.totals.counted == 1
        finally:
            worker.close()


def test_a_refusal_of_the_protocol_ends_the_worker() -> None:
    refusal = b'{"error": "locked", "message": "too many\x1b[2J wrong PINs"}'
    answer = head(403, JSON, f"Content-Length: {len(refusal)}") + refusal
    with fake_server(answer) as (_, session), pytest.raises(TryLater):
        session.send_once(WORK)  # a control character: this is no JSON of ours
    refusal = refusal.replace(b"\x1b", b"\\u001b")
    answer = head(403, JSON, f"Content-Length: {len(refusal)}") + refusal
    with fake_server(answer) as (_, session), pytest.raises(PeerRefused) as caught:
        session.send_once(WORK)
    assert str(caught.value) == "the server: too many [2J wrong PINs"
