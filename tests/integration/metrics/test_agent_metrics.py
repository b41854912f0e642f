"""Metrics of a machine: its agent, its workers, the command and the page."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ringleader.ids import NodeId
from ringleader.metrics import catalog
from ringleader.metrics.exposition import CONTENT_TYPE, write_page
from ringleader.metrics.page_server import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    PageServer,
)
from ringleader.metrics.process_values import ProcessValues
from ringleader.metrics.registry import Registry
from ringleader.metrics.snapshot import Snapshot
from ringleader.metrics.worker_files import write_file
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.build_snapshot import build_snapshot
from ringleader.node.agent.load_services import load_services
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.peering.metrics_query import METRICS, query_metrics
from ringleader.node.protocol.agent_config import AgentConfig, metrics_directory
from ringleader.testing.node_process import make_home
from tests.kit.exposition_format import parse
from tests.kit.warm_python import WarmPython

LIMIT_S = 120.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    home = make_home(tmp_path / "home", os.urandom(32))
    return AgentConfig(home=str(home), interfaces=[LOOPBACK], profile="loopback")


@asynccontextmanager
async def agent_here(config: AgentConfig) -> AsyncIterator[AgentCore]:
    """An agent in this process."""
    with AgentIdentity.claim(config.home) as identity:
        core = AgentCore.listen(identity, config, build_snapshot)
        load_services(core)
        await core.start()
        try:
            yield core
        finally:
            await core.stop()


def a_worker(folder: Path) -> None:
    """Publish numbers as a worker with this process' id does."""
    registry = Registry()
    registry.add(catalog.CALLS, 7, "all_reduce", "ring", "none", "ok")
    write_file(folder, "3", registry.snapshot())
    fresh_s = time.time() + 3600  # not stale, however slow this machine is
    os.utime(folder / f"{os.getpid()}.json", (fresh_s, fresh_s))


async def until_seen(
    core: AgentCore, is_enough: Callable[[Snapshot], bool]
) -> Snapshot:
    async with asyncio.timeout(LIMIT_S):
        while True:
            seen = core.metrics.snapshot()
            if is_enough(seen):
                return seen
            await asyncio.sleep(0.02)


async def two_agents(config: AgentConfig) -> None:
    async with agent_here(config) as core:

        def are_two(seen: Snapshot) -> bool:
            members = seen.value("ringleader_view_members")
            healthy = seen.value("ringleader_peers", state="healthy")
            return (members, healthy) == (2, 1)

        seen = await until_seen(core, are_two)
        assert seen.value("ringleader_peers", state="dead") == 0
        assert seen.value("ringleader_peer_links_total", event="up") >= 1
        assert seen.value("ringleader_views_total") >= 1
        assert seen.value("ringleader_elections_total") >= 1
        assert seen.value("ringleader_view_epoch") >= 1
        seen = await until_seen(
            core, lambda s: s.value("ringleader_peer_messages_total") >= 3
        )
        assert seen.value("ringleader_agent_sent_bytes_total") > 100
        assert seen.value("ringleader_agent_received_bytes_total") > 100
        assert seen.value("ringleader_role_seconds_total") > 0
        leads = seen.value("ringleader_is_leader")
        roles = [row.is_leader for row in core.snapshot().nodes if row.is_here]
        assert [bool(leads)] == roles
        await ask_the_other(core)


async def ask_the_other(core: AgentCore) -> None:
    """A member asks for the numbers of another machine."""
    (other,) = [row for row in core.snapshot().nodes if not row.is_here]
    async with asyncio.timeout(LIMIT_S):
        stream = await core.services.dial(NodeId(other.node), METRICS)
        values = ProcessValues.decode(await stream.read())
        assert values.labels["process"] == "agent"
        assert values.snapshot.value("ringleader_view_members") == 2
        while await stream.read():
            pass
        stream.close()


def test_an_agent_counts_its_cluster(config: AgentConfig) -> None:
    with AgentProcess.start(config):
        asyncio.run(two_agents(config))


def test_the_command_shows_agent_and_workers(
    config: AgentConfig, warm_python: WarmPython
) -> None:
    home = Path(config.home)
    env = {**os.environ, "RINGLEADER_HOME": config.home}

    def run() -> tuple[int, str]:
        process = warm_python.popen("-m", "ringleader.cli.main", "metrics", env=env)
        assert process.stdout is not None
        text = process.stdout.read()
        process.stdout.close()
        return process.wait(LIMIT_S), text

    status, text = run()
    assert status == 3
    assert "'ringleader up'" in text
    with AgentProcess.start(config):
        a_worker(metrics_directory(home))
        status, text = run()
    assert status == 0, text
    found = parse(text)
    workers = found["ringleader_workers"].samples
    assert list(workers.values()) == [1]
    ((name, labels),) = found["ringleader_collective_calls_total"].samples
    assert dict(labels) | {"rank": "3", "process": "worker"} == dict(labels)
    assert found["ringleader_collective_calls_total"].samples[name, labels] == 7
    assert query_metrics(home)[0].labels["rank"] == "3", "also without an agent"


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Return head and body of the answer."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
            await writer.wait_closed()
    return head, body


REFUSED = {
    b"POST /metrics HTTP/1.1\r\n\r\n": b"405",
    b"GET / HTTP/1.1\r\n\r\n": b"404",
    b"GET /metrics/../etc HTTP/1.1\r\n\r\n": b"404",
    b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n": b"403",
    b"GET /metrics HTTP/1.1\r\nhOsT:localhost.evil.example\r\n\r\n": b"403",
    b"GET /metrics\r\n\r\n": b"400",
    b"\x16\x03\x01\x02\x00\r\n\r\n": b"400",
}
ACCEPTED = ("localhost:9", "127.0.0.1", "[::1]:9100", "192.168.0.7:9100", "[fe80::1]")


async def ask_all(port: int, page: str) -> None:
    for host in (*ACCEPTED, socket.gethostname()):
        request = f"GET /metrics?x=1 HTTP/1.1\r\nHost: {host}\r\n\r\n"
        head, body = await ask(port, request.encode())
        assert head.startswith(b"HTTP/1.1 200 OK\r\n"), (host, head)
        assert f"Content-Type: {CONTENT_TYPE}".encode() in head
        assert body.decode() == page
    for refused, status in REFUSED.items():
        head, body = await ask(port, refused)
        assert head.startswith(b"HTTP/1.1 " + status), refused
        assert page.encode() not in body
    head, _ = await ask(port, b"x" * (2 * MAX_REQUEST_BYTES))
    assert head == b""


def test_the_page_is_served_to_prometheus_and_not_to_web_pages() -> None:
    registry = Registry()
    registry.set(catalog.VIEW_MEMBERS, 4)
    page = write_page(registry.snapshot())
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)

    async def serve_and_ask() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            PageServer(lambda: page).serve(sock, ready.set_result)
        )
        await ask_all(await ready, page)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(serve_and_ask())
    sock.close()


def test_the_command_serves_the_page(
    config: AgentConfig, warm_python: WarmPython
) -> None:
    env = {**os.environ, "RINGLEADER_HOME": config.home}
    a_worker(metrics_directory(Path(config.home)))
    process = warm_python.popen(
        "-m", "ringleader.cli.main", "metrics", "--port", "0", env=env
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.rpartition(":")[2].partition("/")[0])
        where = ("127.0.0.1", port)
        silent = [socket.create_connection(where) for _ in range(2 * MAX_CONNECTIONS)]
        head, body = asyncio.run(ask(port, b"GET /metrics HTTP/1.1\r\n\r\n"))
        for each in silent:
            each.close()
        assert head.startswith(b"HTTP/1.1 200"), head
        assert "ringleader_collective_calls_total" in parse(body.decode())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) != 0
    finally:
        process.kill()
        process.wait(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()
