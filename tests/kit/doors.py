"""Every door that strangers find on a machine: real processes, each with its log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.open_dashboard import open_dashboard
from ringleader.node.launch.agent_process import AgentProcess, log_path
from ringleader.node.peering.status_query import query_local_agents
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home
from ringleader.transport.free_ports import free_ports
from tests.kit.dashboard_client import DashboardClient
from tests.kit.malformed_requests import TRUSTING, Door, call

PATIENCE_S = 120.0
Popen = Callable[..., Any]
"""Starts ``python ARGV`` with ``env=``, as ``WarmPython.popen`` does."""

_INTO_LOG = """
import os, sys, runpy
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(log, 1), os.dup2(log, 2)
sys.argv[:] = ["ringleader", *sys.argv[2:]]
runpy.run_module("ringleader.cli.main", run_name="__main__")
"""
_OF_GRPC = (
    r"Traceback .*\n(?:  .*\n)*  .* in execute_batch\n"
    r"grpc\._cython\.cygrpc\.ExecuteBatchError: .*\n"
)
_DASHBOARD = (
    ("POST", "/session", '{"token": "x"}'),
    ("POST", "/session", '{"code": "x"}'),
    ("POST", "/stop", '{"job": "x"}'),
    ("GET", "/log?job=a&rank=0", ""),
    ("GET", "/state", ""),
    ("GET", "/events", ""),
    ("GET", "/", ""),
)
_JOIN = (
    '{"code": "x", "pin": "1", "task": {"a": "b"}, "name": "n", "device": "d", '
    '"nonce": "", "receipt": "x"}'
)
_SERVER = (
    ("POST", "/v1/join", _JOIN),
    ("POST", "/v1/pair", '{"element": "x"}'),
    ("POST", "/v1/leave", "{}"),
    ("PUT", "/v1/updates/0/0", "{}"),
    ("HEAD", "/v1/updates/0/0", ""),
    ("GET", "/v1/work?wait=0", ""),
    ("GET", "/v1/status", ""),
    ("GET", "/v1/weights/1", ""),
    ("GET", "/v1/data/0", ""),
    ("GET", "/metrics", ""),
)
_COORDINATOR = "/ringleader.coordinator.v1.Coordinator/"
_CALLS = (
    *(
        ("POST", _COORDINATOR + name, "")
        for name in (
            "RegisterWorker",
            "UnregisterWorker",
            "Heartbeat",
            "WatchPeers",
            "StartCheckpoint",
            "EndCheckpoint",
            "GetCheckpoints",
        )
    ),
    ("POST", "/grpc.health.v1.Health/Check", ""),
    ("POST", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ""),
)


@dataclass
class OpenDoor:
    """A door, the log of its process, and whether an honest client is served."""

    door: Door
    log: Path
    is_well: Callable[[], bool]

    def log_bytes(self) -> int:
        """Length of the log, with what was put beside it."""
        return sum(each.stat().st_size for each in self.log.parent.glob(self._names))

    def errors(self) -> list[str]:
        """The lines of the log that tell of an uncaught error.

        gRPC prints one of its own when a client has gone before it is refused.
        """
        text = "".join(
            each.read_text(errors="replace")
            for each in self.log.parent.glob(self._names)
        )
        text = re.sub(_OF_GRPC, "", text)
        return re.findall(r".*(?:Traceback|Exception|Unhandled|Error\b).*", text)

    @property
    def _names(self) -> str:
        return f"{self.log.name}*"


@contextmanager
def open_doors(folder: Path, popen: Popen) -> Iterator[list[OpenDoor]]:
    """Open all doors."""
    ports = free_ports(4)
    root = os.urandom(32)
    (folder / "plain").mkdir(0o700)
    with ExitStack() as stack:
        doors = list(_agent(folder, root, stack))
        for name, home, port, words in (
            ("metrics", "home", ports[0], ["metrics", "--port", str(ports[0])]),
            ("coordinator", "plain", ports[1], _coordinator(ports[1])),
            ("coordinator tls", "home", ports[2], _coordinator(ports[2])),
            ("server", "plain", ports[3], _serve(ports[3], folder)),
        ):
            log = folder / f"{name.replace(' ', '-')}.log"
            env = {**os.environ, "RINGLEADER_HOME": str(folder / home)}
            process = popen("-c", _INTO_LOG, log, *words, env=env)
            stack.callback(_end, process)
            _wait_for_port(port, process, log)
            doors.append(_door(name, port, log, process))
        yield doors


def _coordinator(port: int) -> list[str]:
    return ["coordinator", "--listen", f"127.0.0.1:{port}"]


def _serve(port: int, folder: Path) -> list[str]:
    (folder / "pin").write_text("24681357")
    (folder / "pin").chmod(0o600)
    where = ["--port", str(port), "--host", "127.0.0.1", "--out", str(folder / "run")]
    plan = ["--workers", "1", "--rounds", "9", "--pin-file", str(folder / "pin")]
    return ["serve", *where, "digits", "--http", *plan]


def _agent(folder: Path, root: bytes, stack: ExitStack) -> Iterator[OpenDoor]:
    """A resident agent, its dashboard and its page for phones."""
    home = make_home(folder / "home", root)
    config = AgentConfig(
        home=str(home),
        interfaces=["lo"],
        profile="loopback",
        is_resident=True,
        port=free_ports(1)[0],
    )
    agent = AgentProcess.start(config)
    stack.callback(agent.close)
    stack.callback(agent.interrupt)
    log = log_path(config)
    own = urlsplit(open_dashboard(home, OpenDashboard()).url).port or 0
    opened = open_dashboard(home, OpenDashboard(is_shared=True))
    shared = urlsplit(opened.url).port or 0
    phone = DashboardClient(opened.url)  # the page stays open for as long as it looks
    assert phone.ask("POST", "/session", {"code": opened.code})[0] == 200

    def is_well() -> bool:
        return agent.is_alive and len(query_local_agents(home)) == 1

    def shows(port: int, *, is_tls: bool) -> Callable[[], bool]:
        return lambda: is_well() and _status(port, "/state", is_tls=is_tls) == 401

    yield OpenDoor(Door("agent", config.port, "tls", is_tls=True), log, is_well)
    yield OpenDoor(
        Door("dashboard", own, "http", honest=_DASHBOARD), log, shows(own, is_tls=False)
    )
    yield OpenDoor(
        Door(
            "shared dashboard",
            shared,
            "http",
            is_tls=True,
            honest=_DASHBOARD,
            at_once=8,
        ),
        log,
        shows(shared, is_tls=True),
    )


def _door(name: str, port: int, log: Path, process: Any) -> OpenDoor:  # noqa: ANN401
    match name:
        case "metrics":
            door = Door(name, port, "http", honest=(("GET", "/metrics", ""),))
            path, status = "/metrics", 200
        case "server":
            door = Door(name, port, "http", honest=_SERVER)
            path, status = "/", 200
        case "coordinator":
            door = Door(name, port, "grpc", honest=_CALLS)
            return OpenDoor(door, log, lambda: _speaks_http2(port))
        case _:
            door = Door(name, port, "tls", is_tls=True)
            return OpenDoor(door, log, lambda: process.poll() is None)
    return OpenDoor(door, log, lambda: _status(port, path, is_tls=False) == status)


def _status(port: int, path: str, *, is_tls: bool) -> int:
    """Return the status of an honest request."""
    line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with TRUSTING.wrap_socket(line) if is_tls else line as line:
        lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close")
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        found = line.recv(65536)
        return int(found.split(b" ")[1])


def _speaks_http2(port: int) -> bool:
    """Whether a call of an honest worker is answered."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as line:
        line.sendall(call("/grpc.health.v1.Health/Check", b""))
        found = b""
        while b"grpc-status" not in found:
            more = line.recv(65536)
            if not more:
                return False
            found += more
    return True


def _wait_for_port(port: int, process: Any, log: Path) -> None:  # noqa: ANN401
    until_s = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        else:
            return


def _end(process: Any) -> None:  # noqa: ANN401
    process.send_signal(signal.SIGKILL)
    process.communicate()


def plain_popen(*argv: str | Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """As ``WarmPython.popen``, in a new interpreter."""
    return subprocess.Popen([sys.executable, *map(str, argv)], env=env)
