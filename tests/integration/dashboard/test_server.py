"""The dashboard's server on a real port: who may ask, what is bounded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from ringleader.dashboard.assets import load_assets
from ringleader.dashboard.http_message import MAX_HEAD_BYTES
from tests.kit.dashboard_client import PATIENCE_S, DashboardClient
from tests.kit.simulated_cluster import node_id, simulated_state
from tests.kit.simulated_dashboard import SimulatedDashboard, simulated_dashboard


@pytest.fixture(scope="module")
def shown() -> Iterator[SimulatedDashboard]:
    with simulated_dashboard(simulated_state(3, 1)) as made:
        yield made


@pytest.fixture
def client(shown: SimulatedDashboard) -> DashboardClient:
    made = DashboardClient(shown.url)
    made.open()
    return made


def test_the_state_needs_a_session(shown: SimulatedDashboard) -> None:
    client = DashboardClient(shown.url)
    for path in ("/state", "/events", "/log?job=job-0&rank=0"):
        assert client.ask("GET", path)[0] == 401
    assert client.ask("POST", "/stop", {"job": "job-0"})[0] == 401
    assert client.ask("POST", "/session", {"token": "x"})[0] == 403
    assert client.ask("POST", "/session", {})[0] == 400
    client.open()
    status, state = client.ask("GET", "/state")
    assert status == 200
    assert state["machines"][node_id(0)]["name"] == "machine 0"
    assert not shown.stopped


def test_pages_of_others_get_nothing(client: DashboardClient) -> None:
    evil = "http://evil.example"
    assert client.ask("GET", "/state", Host="evil.example")[0] == 403
    assert client.ask("GET", "/", Host="evil.example")[0] == 403
    assert client.ask("GET", "/state", Origin=evil)[0] == 403
    assert client.ask("GET", "/state", Sec_Fetch_Site="cross-site")[0] == 403
    stop = {"job": "job-0"}
    assert client.ask("POST", "/stop", stop, Origin=evil)[0] == 403
    plain = "text/plain"
    assert client.ask("POST", "/stop", stop, Content_Type=plain)[0] == 415


def test_a_job_is_stopped_and_its_log_is_read(
    client: DashboardClient, shown: SimulatedDashboard
) -> None:
    assert client.ask("GET", "/log?job=job-0&rank=2")[1]["text"].startswith("rank 2")
    assert client.ask("GET", "/log?job=job-0&rank=x")[0] == 400
    assert client.ask("POST", "/stop", {"job": 7})[0] == 400
    assert client.ask("POST", "/stop", {"job": "job-0"})[0] == 200
    assert shown.stopped == ["job-0"]


def test_a_shared_page_only_looks(shown: SimulatedDashboard) -> None:
    client = DashboardClient(shown.url)
    code = shown.access.issue_code(-1e6)  # its time is over
    assert client.ask("POST", "/session", {"code": code})[0] in (403, 429)
    session = shown.access._open(1e12, can_stop=False)
    client.key = session.key
    assert client.ask("GET", "/state")[0] == 200
    assert client.ask("POST", "/stop", {"job": "job-0"})[0] == 403


def test_changes_are_sent_as_they_happen(
    client: DashboardClient, shown: SimulatedDashboard
) -> None:
    connection = HTTPConnection(*client.address, timeout=PATIENCE_S)
    try:
        connection.request(
            "GET", "/events", headers={"Authorization": f"Bearer {client.key}"}
        )
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"

        def next_changes() -> dict[str, dict[str, object]]:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            found: dict[str, dict[str, object]] = json.loads(line[6:])
            return found

        assert next_changes().keys() == shown.state.keys()
        before = shown.state
        machines = {**before["machines"]}
        del machines[node_id(2)]
        shown.state = {**before, "machines": machines}
        assert next_changes() == {"machines": {node_id(2): None}}
        shown.state = before
    finally:
        connection.close()


def test_changes_are_compressed_for_a_browser_that_asks(
    client: DashboardClient, shown: SimulatedDashboard
) -> None:
    headers = {"Authorization": f"Bearer {client.key}", "Accept-Encoding": "br, gzip"}
    connection = HTTPConnection(*client.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/events", headers=headers)
        answer = connection.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = b""
        while not text.endswith(b"\n\n"):
            data = answer.read1()
            assert data, "the stream has ended"
            text += unzip.decompress(data)
        assert json.loads(text.partition(b"data: ")[2]).keys() == shown.state.keys()
    finally:
        connection.close()


@pytest.mark.parametrize("field", ["token", "code"])
def test_a_token_that_no_encoding_holds_is_wrong(
    client: DashboardClient, field: str
) -> None:
    for text in ("\ud800", "\udfff\ud800", "\0", "x" * 3000):
        assert client.ask("POST", "/session", {field: text})[0] in (403, 429)
    assert client.ask("POST", "/stop", {"job": "\ud800"})[0] == 400
    assert client.ask("GET", "/log?" + "a=b&" * 9)[0] == 400


HOLD = """
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))  # a socket belongs to whoever makes it
lines = [socket.socket() for _ in range(100)]
for line in lines:
    line.connect(("127.0.0.1", int(sys.argv[1])))
    line.send(b"GET / HTTP/1.1\\r\\n")
print("held", flush=True)
sys.stdin.read()
"""
NOBODY = "65534"


@pytest.mark.parametrize("user", [None, NOBODY], ids=["own", "other"])
def test_idle_connections_keep_nobody_out(
    shown: SimulatedDashboard, client: DashboardClient, user: str | None
) -> None:
    if user and not (sys.platform == "linux" and os.geteuid() == 0):
        pytest.skip("needs root, to be another user")
    connection = HTTPConnection(*client.address, timeout=PATIENCE_S)
    connection.request(
        "GET", "/events", headers={"Authorization": f"Bearer {client.key}"}
    )
    answer = connection.getresponse()
    words = [sys.executable, "-c", HOLD, str(client.address[1])]
    with subprocess.Popen(
        [*words, *([user] if user else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        slow = [socket.create_connection(client.address, PATIENCE_S) for _ in range(9)]
        for _ in range(12):
            assert client.ask("GET", "/state")[0] == 200
        if user:
            assert shown.server is not None
            found = {
                each.source.name for each in list(shown.server._connections.values())
            }
            assert found == {f"user {user}", f"user {os.geteuid()}"}
        for line in slow:  # the owner's own are not the ones that go
            line.sendall(b"GET /state HTTP/1.1\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 403"
            line.close()
        assert answer.readline().startswith(b"event"), "an open page stays"
        assert holder.stdin is not None
        holder.stdin.close()
    connection.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"403"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\nHost: HERE\r\n\r\n", b"405"),
        (b"GET /nothing HTTP/1.1\r\nHost: HERE\r\n\r\n", b"404"),
        (b"GET /../access.py HTTP/1.1\r\nHost: HERE\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nHost: HERE\r\nContent-Length: 9999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * MAX_HEAD_BYTES), b""),
    ],
)
def test_bad_requests_are_answered_and_end(
    client: DashboardClient, data: bytes, status: bytes
) -> None:
    here = client.origin.removeprefix("http://").encode()
    try:
        found = client.raw(data.replace(b"HERE", here))
    except ConnectionResetError:  # closed with bytes unread
        found = b""
    assert found[9:12] == status


def test_the_page_is_small_and_needs_nothing_from_elsewhere() -> None:
    assets = load_assets()
    assert sum(len(body) for path, (_, body) in assets.items() if path != "/") < 300e3
    for path, (_, body) in assets.items():
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path
        assert "innerHTML" not in text, path
        assert "eval(" not in text, path
        assert " style=" not in text, path
        assert " onclick=" not in text, path
