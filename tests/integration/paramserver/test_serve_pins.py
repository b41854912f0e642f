"""PINs: thousands of guesses that nobody else notices, and one PIN that is enough.

Where the server's certificate is its own, the PIN must vouch for it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from ringleader.errors import PeerRefused, PeerUntrusted
from ringleader.identity import server_key
from ringleader.identity.pairing.pin_proof import PinRequest
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.protocol.messages import JoinAnswer
from ringleader.paramserver.server.admission import PIN_ATTEMPTS
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Progress
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.worker import Worker
from tests.kit.param_server import FINGERPRINT, Server, WorkerClient, server

LINES = 4
AT_ONCE = 50
"""Requests that are sent before the first response."""


def _request(pin: str) -> bytes:
    body = json.dumps({"pin": pin, "task": FINGERPRINT}).encode()
    head = f"POST /v1/join HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Guesser(threading.Thread):
    """Tries PINs over one connection, and counts the responses."""

    def __init__(self, served: Server, pins: Sequence[str]) -> None:
        super().__init__(name=f"guesses from {pins[0]}")
        self._port = int(served.url.rpartition(":")[2])
        self._pins = pins
        self.codes: Counter[int] = Counter()

    def run(self) -> None:
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=300) as line,
            line.makefile("rb") as answers,
        ):
            for begin in range(0, len(self._pins), AT_ONCE):
                some = self._pins[begin : begin + AT_ONCE]
                line.sendall(b"".join(map(_request, some)))
                for _ in some:
                    self.codes[int(answers.readline().split()[1])] += 1
                    length = 0
                    while (header := answers.readline()) != b"\r\n":
                        name, _, value = header.partition(b":")
                        if name.lower() == b"content-length":
                            length = int(value)
                    answers.read(length)


@pytest.mark.slow
def test_thousands_of_guesses_stop_at_the_budget_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    """The right one is among them. Of all ten thousand, the budget has a unit test."""
    pins = [f"{guess:04d}" for guess in range(8_000, 10_000)]
    with (
        server(tmp_path, rounds=10_000, pin="9876") as served,
        served.clients(1) as (anna,),
    ):
        guessers = [Guesser(served, pins[i::LINES]) for i in range(LINES)]
        for guesser in guessers:
            guesser.start()
        steps = 0
        while any(guesser.is_alive() for guesser in guessers):
            assert anna.step() is not None
            steps += 1
            ben = WorkerClient(served.url, served.code)  # has the link, not the PIN
            assert ben.join().status_code == 200
            assert ben.http.post("/v1/leave", headers=ben.headers).status_code == 204
            ben.close()
        codes = sum((guesser.codes for guesser in guessers), Counter())
        late = WorkerClient(served.url, "")
        locked = late.join(code=None, pin="9876").status_code
        late.close()
    assert steps > 0
    assert codes.total() == len(pins)
    assert codes.keys() <= {401, 403, 429}
    assert codes[401] == PIN_ATTEMPTS
    assert locked in (403, 429)


# -- TLS with the server's own certificate ------------------------------------------

DIGITS = load_task("digits")
PIN = "correct horse"


class RecordingObserver:
    """Records the events of a worker."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def joined(self, terms: JoinAnswer, device: str) -> None:
        pass

    def stepped(self, progress: Progress) -> None:
        pass

    def waiting(self, reason: str, pause_s: float) -> None:
        self.notes.append(reason)

    def reconnected(self) -> None:
        self.notes.append("reached")

    def noted(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def worker(
    url: str, log: RecordingObserver | None = None, **more: object
) -> Iterator[Worker]:
    wanted = WorkerSettings(name="anna", device="cpu", **more)  # type: ignore[arg-type]
    made = Worker.open(
        wanted, ServerAddress.from_links([url]), log or RecordingObserver()
    )
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("task", ["", "digits"], ids=["asks-first", "joins-first"])
def test_a_pin_is_enough_to_join_over_tls_and_train(tmp_path: Path, task: str) -> None:
    log = RecordingObserver()
    with server(tmp_path, rounds=3, pin=PIN, tls=True, what=DIGITS) as served:
        with worker(served.url, log, task=task, pin=Secret(PIN)) as anna:
            anna.run()
            found, key = anna.session.address.link, served.run.key
            assert anna.totals.counted == 3
        assert found.fingerprint == key.fingerprint
        assert found.code == Secret(served.code)
        assert served.training.admission.pin_attempts_left == PIN_ATTEMPTS
        assert len(served.training.scheduler.workers) == 1
    assert log.notes == []


def test_a_wrong_pin_fails_at_once_and_costs_one_attempt(tmp_path: Path) -> None:
    with server(tmp_path, pin=PIN, tls=True, what=DIGITS) as served:
        admission = served.training.admission
        with (
            worker(served.url, pin=Secret("1234")) as anna,
            pytest.raises(PeerUntrusted, match="the PIN is wrong, or another computer"),
        ):
            anna.run()
        assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
        served.training.admission.pin_attempts_left = 0
        served.serving._app._pairings._open.clear()  # a minute later
        with (
            worker(served.url, pin=Secret(PIN)) as ben,
            pytest.raises(PeerRefused, match="too many wrong ones; use the join link"),
        ):
            ben.run()
        assert served.training.scheduler.workers == {}


def test_a_user_types_pins_until_one_opens(tmp_path: Path) -> None:
    typed, log = iter(["0000", PIN]), RecordingObserver()
    with server(tmp_path, rounds=1, pin=PIN, tls=True, what=DIGITS) as served:
        with worker(served.url, log, ask_pin=lambda: Secret(next(typed))) as anna:
            anna.run()
        assert served.training.admission.pin_attempts_left == PIN_ATTEMPTS - 1
    assert list(typed) == []
    assert len(log.notes) == 1
    assert "the PIN is wrong" in log.notes[0]


class Relay(ThreadingHTTPServer):
    """A man in the middle with its own certificate that relays everything."""

    daemon_threads = True

    def __init__(self, target: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.url = f"https://127.0.0.1:{self.server_address[1]}"
        self.paths: list[str] = []
        self.seen = b""
        self.http = httpx2.Client(
            base_url=target, verify=False, trust_env=False, timeout=60
        )
        context = server_key.load_or_make(folder).context()
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Passing(BaseHTTPRequestHandler):
    server: Relay

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {"Content-Type": "application/json"}
        answer = self.server.http.request(
            self.command, self.path, content=body, headers=headers
        )
        self.server.paths.append(self.path)
        self.server.seen += bytes(self.headers) + body + answer.content
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def relaying(target: str, folder: Path) -> Iterator[Relay]:
    folder.mkdir()
    with Relay(target, folder) as relay:
        thread = threading.Thread(target=relay.serve_forever, name="relay")
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join(60)
            relay.http.close()


def test_a_relay_is_noticed_and_learns_neither_pin_nor_code(tmp_path: Path) -> None:
    with (
        server(tmp_path / "out", pin=PIN, tls=True, what=DIGITS) as served,
        relaying(served.url, tmp_path / "relay") as relay,
    ):
        with (
            worker(relay.url, pin=Secret(PIN)) as anna,
            pytest.raises(PeerUntrusted, match="another computer intercepts"),
        ):
            anna.run()
        assert relay.paths == ["/v1/pair"], "and nothing before or after it"
        assert b"sealed" in relay.seen
        assert PIN.encode() not in relay.seen
        assert served.code.encode() not in relay.seen
        assert served.run.key.secret.reveal() not in relay.seen
        assert served.training.scheduler.workers == {}
        assert served.training.admission.pin_attempts_left == PIN_ATTEMPTS - 1


@contextmanager
def stranger(served: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=served.url, verify=False, trust_env=False, timeout=60
    ) as http:
        yield http


def _element(raw: bytes) -> dict[str, object]:
    return {"element": join_link.encode(raw)}


def test_invalid_requests_to_pair_are_refused(tmp_path: Path) -> None:
    rubbish: list[object] = [
        {},
        [],
        {"element": 7},
        _element(b""),
        {"element": "=" * 44},
    ]
    rubbish += [_element(b"B" + b"\x07" * 32), _element(b"A" + bytes(32))]
    with (
        server(tmp_path, pin=PIN, tls=True) as served,
        stranger(served) as http,
    ):
        admission = served.training.admission
        for body in rubbish:
            answer = http.post("/v1/pair", json=body)
            assert (answer.status_code, answer.json()["error"]) == (400, "malformed")
        assert http.post("/v1/pair", content=bytes(8193)).status_code == 413
        assert admission.pin_attempts_left == PIN_ATTEMPTS
        off_the_curve = _element(b"A" + b"\x02" + bytes(31))
        assert http.post("/v1/pair", json=off_the_curve).status_code == 400
        assert admission.pin_attempts_left == PIN_ATTEMPTS - 1


def test_a_lost_response_is_repeated_at_no_cost(tmp_path: Path) -> None:
    with server(tmp_path, pin=PIN, tls=True) as served, stranger(served) as http:
        admission = served.training.admission
        question = PinRequest(Secret(PIN), served.run.key.fingerprint)
        answers = [
            http.post("/v1/pair", json=_element(question.element)) for _ in range(3)
        ]
        assert len({answer.text for answer in answers}) == 1
        assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
        element, sealed = (
            join_link.decode(answers[0].json()[name]) or b""
            for name in ("element", "sealed")
        )
        content = question.open(element, sealed)
        assert content is not None
        receipt = join_link.encode(content.reveal()[16:])
        ben = WorkerClient(served.url, "", verify=False)
        assert ben.join(code=None, receipt=receipt).status_code == 401
        assert admission.pin_attempts_left == PIN_ATTEMPTS - 1
        ben.code = join_link.encode(content.reveal()[:16])
        assert ben.join(receipt=receipt, task={}).status_code == 412
        assert admission.pin_attempts_left == PIN_ATTEMPTS
        assert ben.join(receipt=receipt).status_code == 200
        assert admission.pin_attempts_left == PIN_ATTEMPTS
        ben.close()


def test_guesses_by_pairing_end_at_the_budget(tmp_path: Path) -> None:
    with server(tmp_path, pin=PIN, tls=True) as served, stranger(served) as http:
        key = served.run.key.fingerprint
        codes = Counter(
            http.post(
                "/v1/pair", json=_element(PinRequest(Secret(str(i)), key).element)
            ).status_code
            for i in range(PIN_ATTEMPTS + 5)
        )
        assert codes == {200: PIN_ATTEMPTS, 429: 5}
        ben = WorkerClient(served.url, served.code, verify=False)
        assert ben.join().status_code == 200
        ben.close()


def test_a_server_without_a_pin_pairs_with_nobody(tmp_path: Path) -> None:
    with server(tmp_path, tls=True) as served, stranger(served) as http:
        question = PinRequest(Secret(""), served.run.key.fingerprint)
        answer = http.post("/v1/pair", json=_element(question.element))
        assert (answer.status_code, answer.json()["error"]) == (401, "unknown")
        with (
            worker(served.url, pin=Secret(PIN)) as anna,
            pytest.raises(PeerRefused, match="takes no PIN"),
        ):
            anna.run()
