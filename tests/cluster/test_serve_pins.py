"""Ten thousand guesses of a PIN, all made over HTTP; nobody else notices."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # pytest's importlib mode leaves it out

from serve_kit import FINGERPRINT, Friend, Server, server

from ringleader.paramserver.entrance import PIN_ATTEMPTS

pytestmark = pytest.mark.timeout(110)

LINES = 4
AT_ONCE = 50
"""Requests that are sent before the first of them is answered."""


def _request(pin: str) -> bytes:
    body = json.dumps({"pin": pin, "task": FINGERPRINT}).encode()
    head = f"POST /v1/join HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Guesser(threading.Thread):
    """Tries PINs over one line; counts the answers."""

    def __init__(self, served: Server, pins: Sequence[str]) -> None:
        super().__init__(name=f"guesses from {pins[0]}")
        self._port = int(served.url.rpartition(":")[2])
        self._pins = pins
        self.codes: Counter[int] = Counter()

    def run(self) -> None:
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=60) as line,
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


def test_ten_thousand_guesses_stop_at_the_budget_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    pins = [f"{guess:04d}" for guess in range(10_000)]
    with (
        server(tmp_path, rounds=10_000, pin="9876") as served,
        served.friends(1) as (anna,),
    ):
        guessers = [Guesser(served, pins[i::LINES]) for i in range(LINES)]
        for guesser in guessers:
            guesser.start()
        steps = 0
        while any(guesser.is_alive() for guesser in guessers):
            assert anna.step() is not None
            steps += 1
            ben = Friend(served.url, served.code)  # has the link, not the PIN
            assert ben.join().status_code == 200
            assert ben.http.post("/v1/leave", headers=ben.headers).status_code == 204
            ben.close()
        codes = sum((guesser.codes for guesser in guessers), Counter())
        late = Friend(served.url, "")
        locked = late.join(code=None, pin="9876").status_code
        late.close()
    assert steps > 0
    assert codes.total() == len(pins)
    assert codes.keys() <= {401, 403, 429}
    assert codes[401] == PIN_ATTEMPTS
    assert locked in (403, 429)
