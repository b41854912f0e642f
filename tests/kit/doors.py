"""Every door that strangers find on a machine: real processes, each with its log."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ringleader.deadline import Deadline
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.open_dashboard import open_dashboard
from ringleader.node.launch.agent_process import AgentProcess, log_path
from ringleader.node.peering.status_query import query_local_agents
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.testing.node_process import make_home
from ringleader.transport.free_ports import free_ports
from ringleader.transport.star.member import Member
from ringleader.transport.star.star import Star
from tests.kit.certificates import client_of
from tests.kit.dashboard_client import DashboardClient
from tests.kit.malformed_requests import TRUSTING, Door, call

PATIENCE_S = 120.0
Popen = Callable[..., Any]
"""Starts ``python ARGV`` with ``env=``, as ``WarmPython.popen`` does."""

_INTO_LOG = """
import os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(log, 1), os.dup2(log, 2)
"""
_COMMAND = (
    _INTO_LOG
    + """
import runpy
sys.argv[:] = ["ringleader", *sys.argv[2:]]
runpy.run_module("ringleader.cli.main", run_name="__main__")
"""
)
_WORKER = (
    _INTO_LOG
    + """
import signal
from ringleader.deadline import Deadline
from ringleader.node.worker.health_server import HealthServer
from ringleader.transport.star.star import Star
from tests.kit.doors import WORLD, pem_of_member

*ports, root = sys.argv[2:]
star, tls, http, grpc = map(int, ports)
for port, pem in (star, None), (tls, pem_of_member(bytes.fromhex(root))):
    where = "127.0.0.1", range(port, port + 1)
    Star.listen(WORLD(rank=0), where, pem, Deadline.after(60))
HealthServer({"/healthz": dict, "/readyz": dict}).start(http, grpc)
signal.pause()
"""
)
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
_HEALTH = (
    ("POST", "/grpc.health.v1.Health/Check", ""),
    ("POST", "/grpc.health.v1.Health/Watch", ""),
)
_STAR = tuple(
    ("POST", f"/ringleader.transport.star.v1.Star/{name}", "")
    for name in ("Attach", "Connect")
)
WORLD = partial(Member, world=5, size=2)
"""Who is in the stars."""
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
    *_HEALTH,
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
    root = os.urandom(32)
    (folder / "plain").mkdir(0o700)
    (folder / "pin").write_text("24681357")
    (folder / "pin").chmod(0o600)
    metrics, plain, tls, http, https, *worker = ports = free_ports(9)
    with ExitStack() as stack:
        doors = list(_agent(folder, root, stack))
        started = []
        for name, home, script, words in (
            ("metrics", "home", _COMMAND, ("metrics", "--port", metrics)),
            ("coordinator", "plain", _COMMAND, _coordinator(plain)),
            ("coordinator tls", "home", _COMMAND, _coordinator(tls)),
            ("server", "plain", _COMMAND, _serve(http, folder, "--http")),
            ("server https", "plain", _COMMAND, _serve(https, folder)),
            ("worker", "plain", _WORKER, (*worker, root.hex())),
        ):
            log = folder / f"{name.replace(' ', '-')}.log"
            env = {**os.environ, "RINGLEADER_HOME": str(folder / home)}
            process = popen("-c", script, log, *map(str, words), env=env)
            stack.callback(_end, process)
            started.append((log, process))
        started += [started[-1]] * (len(worker) - 1)
        for port, (log, process) in zip(ports, started, strict=True):
            _wait_for_port(port, process, log)
        pem = pem_of_member(root)
        made = zip(_doors(ports, client_of(pem)), started, strict=True)
        yield doors + [
            OpenDoor(door, log, partial(_is_well, door, pem)) for door, (log, _) in made
        ]


def _coordinator(port: int) -> tuple[object, ...]:
    return "coordinator", "--listen", f"127.0.0.1:{port}"


def _serve(port: int, folder: Path, *flags: str) -> tuple[object, ...]:
    where = ("--port", port, "--host", "127.0.0.1", "--out", folder / f"run-{port}")
    plan = ("--workers", "1", "--rounds", "9", "--pin-file", folder / "pin")
    return "serve", *where, "digits", *plan, *flags


def pem_of_member(root: bytes) -> PemCredentials:
    """Return new certificates of the cluster."""
    cluster = ClusterSecret(root=Secret(root))
    return Credentials.issue(cluster, NodeKey.ephemeral()).pem()


def _doors(ports: Sequence[int], member: ssl.SSLContext) -> list[Door]:
    """Return the doors of the processes, at these ports.

    Through the TLS of the cluster the requests come that a member would send.
    """
    at = iter(ports)
    health = (("GET", "/healthz", ""), ("GET", "/readyz?verbose", ""))
    return [
        Door("metrics", next(at), "http", honest=(("GET", "/metrics", ""),)),
        Door("coordinator", next(at), "grpc", honest=_CALLS),
        Door("coordinator tls", next(at), "grpc", honest=_CALLS, client=member),
        Door("server", next(at), "http", honest=_SERVER),
        Door("server https", next(at), "http", honest=_SERVER, client=TRUSTING),
        Door("star", next(at), "grpc", honest=_STAR),
        Door("star tls", next(at), "grpc", honest=_STAR, client=member),
        Door("health", next(at), "http", honest=health),
        Door("health grpc", next(at), "grpc", honest=_HEALTH),
    ]


def _is_well(door: Door, pem: PemCredentials) -> bool:
    """Whether an honest client is served."""
    match door.protocol, door.honest:
        case "grpc", honest if honest is _STAR:
            address = ("127.0.0.1", door.port)
            trusted = None if door.client is None else pem
            deadline = Deadline.after(PATIENCE_S)
            Star.dial(WORLD(rank=1), [(address, trusted)], deadline).close()
            return True
        case "grpc", _:
            return _speaks_http2(door)
        case _, honest:
            path = "/" if honest is _SERVER else honest[0][1]
            return _status(door, path) == 200


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

    yield OpenDoor(Door("agent", config.port, "tls"), log, is_well)
    for door in (
        Door("dashboard", own, "http", honest=_DASHBOARD),
        Door("shared dashboard", shared, "http", TRUSTING, _DASHBOARD, at_once=8),
    ):
        yield OpenDoor(door, log, partial(_asks_who, door))


def _asks_who(door: Door) -> bool:
    return _status(door, "/state") == 401


def _connect(door: Door) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", door.port), PATIENCE_S)
    return line if door.client is None else door.client.wrap_socket(line)


def _status(door: Door, path: str) -> int:
    """Return the status of an honest request."""
    with _connect(door) as line:
        host = f"Host: 127.0.0.1:{door.port}"
        lines = (f"GET {path} HTTP/1.1", host, "Connection: close", "", "")
        line.sendall("\r\n".join(lines).encode())
        found = line.recv(65536)
        return int(found.split(b" ")[1])


def _speaks_http2(door: Door) -> bool:
    """Whether a call of an honest worker is answered."""
    with _connect(door) as line:
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
