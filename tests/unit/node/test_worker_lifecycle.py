"""The parts of a worker's life: closers, readiness checks, health answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from ringleader import WorkerNode
from ringleader.errors import ConfigError
from ringleader.node.worker import shared_probe
from ringleader.node.worker.closers import Closers
from ringleader.node.worker.health_server import MAX_CONNECTIONS, HealthServer
from ringleader.node.worker.readiness import ReadinessChecks
from tests.kit.undecodable_call import UNIMPLEMENTED, send_undecodable_call


def test_closers_run_once_in_reverse_order() -> None:
    ran: list[str] = []
    closers = Closers()
    for name in "abc":
        closers.add(name, lambda name=name: ran.append(name))  # type: ignore[misc]
    assert closers.run() == []
    assert closers.run() == []
    assert ran == ["c", "b", "a"]


def test_all_closers_run_and_all_errors_are_kept() -> None:
    ran: list[str] = []

    def fail() -> None:
        raise OSError("disk full")

    closers = Closers()
    closers.add("a", fail)
    closers.add("b", lambda: ran.append("b"))
    closers.add("c", lambda: 1 // 0)
    errors = closers.run()
    assert [type(error) for error in errors] == [ZeroDivisionError, OSError]
    assert errors[1].__notes__ == ["raised by closer 'a'"]
    assert ran == ["b"]


def test_a_closer_after_shutdown_is_refused() -> None:
    closers = Closers()
    closers.run()
    with pytest.raises(ConfigError, match="'db': the worker node is closed already"):
        closers.add("db", lambda: None)


def test_checks_say_no_in_three_ways() -> None:
    def fail() -> None:
        raise OSError("no such file")

    checks = ReadinessChecks()
    checks.add("fine", lambda: None)
    checks.add("good", lambda: True)
    checks.add("bad", lambda: False)
    checks.add("told", lambda: "the cache is cold")
    checks.add("raised", fail)
    assert checks.failures() == {
        "bad": "not ready",
        "told": "the cache is cold",
        "raised": "OSError: no such file",
    }
    with pytest.raises(ConfigError, match="'bad' exists"):
        checks.add("bad", lambda: None)


@pytest.fixture
def failures() -> dict[str, str]:
    return {}


@pytest.fixture
def server(failures: dict[str, str]) -> Iterator[HealthServer]:
    def probe() -> Mapping[str, str]:
        return dict(failures)

    made = HealthServer({"/healthz": dict, "/readyz": probe})
    made.start(0, 0)
    yield made
    made.close()
    made.close()


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_probes_over_http(server: HealthServer, failures: dict[str, str]) -> None:
    assert get(server, "/readyz") == (200, b'{"status": "ok"}\n')
    failures["data"] = "not mounted"
    status, body = get(server, "/readyz?verbose")
    assert status == 503
    assert json.loads(body)["failed"] == {"data": "not mounted"}
    assert get(server, "/readyz", "HEAD") == (503, b"")
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/")[0] == 404
    assert get(server, "/healthz", "POST")[0] == 405


def test_requests_are_bounded(server: HealthServer) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 60) as sock,
        suppress(ConnectionError),  # how a close comes that leaves bytes unread
    ):
        sock.sendall(b"GET /readyz HTTP/1.1\r\n" + b"x: y\r\n" * 3000 + b"\r\n")
        assert sock.recv(100) == b""  # closed, not answered
    where = ("127.0.0.1", server.port)
    silent = [socket.create_connection(where, 60) for _ in range(2 * MAX_CONNECTIONS)]
    assert [get(server, "/readyz")[0] for _ in range(5)] == 5 * [200]
    assert silent[0].recv(100) == b""  # it had to go
    for each in silent:
        each.close()


def test_a_check_that_hangs_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_probe, "PROBE_S", 0.05)
    may_end, runs = threading.Event(), []

    def hang() -> Mapping[str, str]:
        runs.append(1)
        may_end.wait(120)
        return {}

    server = HealthServer({"/healthz": hang, "/readyz": hang})
    server.start(0, None)
    for _ in range(3):
        status, body = get(server, "/readyz")
        assert (status, b"did not end within" in body) == (503, True)
    assert len(runs) == 1
    may_end.set()
    server.close()


def test_the_grpc_health_service_gives_the_same_answers(
    server: HealthServer, failures: dict[str, str]
) -> None:
    grpc = pytest.importorskip("grpc")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def check(service: str) -> bool:
            request = health_pb2.HealthCheckRequest(service=service)
            return bool(stub.Check(request, timeout=60).status == serving)

        assert check("")
        failures["data"] = "not mounted"
        assert not check("")
        assert not check("readiness")
        assert check("liveness")
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status != serving
        watch.cancel()
        with pytest.raises(grpc.RpcError, match="there are readiness, liveness"):
            check("other")


def test_a_call_that_no_text_names_does_not_end_the_health_service(
    server: HealthServer, failures: dict[str, str]
) -> None:
    """Whoever watches it is told of changes afterwards, over the same connection."""
    grpc = pytest.importorskip("grpc")
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=120)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        for _ in range(3):
            answer = send_undecodable_call(server.grpc_port)
            assert UNIMPLEMENTED in answer
        failures["data"] = "not mounted"
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_taken_port_is_refused(server: HealthServer) -> None:
    for ports in ((server.port, None), (None, server.grpc_port)):
        with pytest.raises(ConfigError, match=str(next(p for p in ports if p))):
            HealthServer({"/healthz": dict, "/readyz": dict}).start(*ports)


def test_a_node_that_is_not_started(tmp_path: object) -> None:
    node = WorkerNode(nodes=2)
    assert (node.rank, node.size) == (-1, 0)
    assert node.health()
    assert not node.ready()
    assert node.failures() == {"worker": "not started"}
    with pytest.raises(ConfigError, match="not started; start it first"):
        _ = node.group
    closed: list[str] = []
    node.add_closer("a", lambda: closed.append("a"))
    node.close()
    node.close()
    assert closed == ["a"]
    assert not node.health()
    assert (node.rank, node.size) == (-1, 0)
    with pytest.raises(ConfigError, match="closed"):
        node.start()
    with pytest.raises(ConfigError, match="closed already"):
        node.add_closer("b", lambda: None)


def test_errors_of_closers_are_raised_together() -> None:
    node = WorkerNode(nodes=2)
    node.add_closer("a", lambda: 1 // 0)
    node.add_closer("b", lambda: [][0])
    with pytest.raises(ExceptionGroup) as caught:
        node.close()
    assert [type(e) for e in caught.value.exceptions] == [IndexError, ZeroDivisionError]
    node.close()


def test_a_with_statement_that_fails_to_start_runs_the_closers(
    server: HealthServer,
) -> None:
    node = WorkerNode(nodes=2, health_port=server.port)
    closed: list[str] = []
    node.add_closer("a", lambda: closed.append("a"))
    with pytest.raises(ConfigError, match="already in use"):
        node.start()
    assert (closed, node.failures()) == ([], {"worker": "not started"})
    with pytest.raises(ConfigError, match="already in use"), node:
        pass
    assert (closed, node.failures()) == (["a"], {"worker": "closed"})
