"""``WorkerNode`` with a real coordinator: its id, its time-outs, and no ghosts."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ringleader import WorkerNode
from ringleader.coordinator.client.channel import CoordinatorChannel, JobNamespace
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, GroupAborted
from ringleader.identity import cluster_secret
from ringleader.identity.storage.home import Home
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import GetSnapshot
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.testing.node_process import make_home
from tests.kit.machines import RINGLEADER
from tests.kit.warm_python import WarmProcess, WarmPython

pytestmark = pytest.mark.slow

HEARTBEAT_S = 4.0

OTHER = """
import os, sys, time, torch, ringleader
import torch.distributed as dist

node = ringleader.WorkerNode(sys.argv[1], nodes=2, worker_id="other")
with node:
    value = torch.tensor([float(node.rank)])
    for root in range(node.size):
        node.group.broadcast(value.fill_(node.rank), src=root)
        assert value == root
    node.group.barrier()
url = f"grpc://{sys.argv[1]}?nodes=1&job=alone"
dist.init_process_group("ringleader", init_method=url)
print(dist.get_rank(), dist.get_world_size(), flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


@dataclass(slots=True)
class Coordinator:
    """A coordinator process, and a look at who is registered."""

    address: str
    home: Path

    def workers(self) -> set[str]:
        """Return the ids of the workers that are registered now."""
        return asyncio.run(self._workers())

    async def _workers(self) -> set[str]:
        cluster = cluster_secret.load(Home(self.home))
        assert cluster is not None
        namespace = JobNamespace(cluster.coordinator_key()).message()
        channel = CoordinatorChannel(self.address, None)
        try:
            request = pb.WatchPeersRequest(namespace=namespace)
            async with aclosing(channel.watch(request)) as updates:
                async for update in updates:
                    return {worker.worker_id for worker in update.joined}
            return set()
        finally:
            await channel.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ["--listen", "127.0.0.1:0", "--plaintext"]
    flags += ["--heartbeat-timeout", str(HEARTBEAT_S)]
    flags += ["--state", str(tmp_path_factory.mktemp("coordinator") / "state")]
    process = subprocess.Popen(
        [*RINGLEADER, "coordinator", *flags], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.readline().decode()
    try:
        yield first.split()[2]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def coordinator(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Coordinator:
    """Each test is a cluster of its own at the one coordinator."""
    home = make_home(tmp_path / "home", os.urandom(32))
    monkeypatch.setenv("RINGLEADER_HOME", str(home))
    monkeypatch.setenv("RINGLEADER_INTERFACES", "lo")
    monkeypatch.setenv("RINGLEADER_PLAINTEXT", "1")
    return Coordinator(address, home)


def get(node: WorkerNode, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.health_port, timeout=60)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def wait_until_registered(
    coordinator: Coordinator, is_so: Callable[[set[str]], bool]
) -> None:
    until_s = time.monotonic() + 200
    while not is_so(coordinator.workers()):
        assert time.monotonic() < until_s
        time.sleep(0.2)


def test_a_failed_start_leaves_no_ghost(coordinator: Coordinator) -> None:
    """ZF-7, ZF-16: id and time-outs are honoured; a worker that waits for several
    heartbeat time-outs stays registered, and is gone when its start has failed."""
    node = WorkerNode(
        coordinator.address,
        nodes=2,
        worker_id="trainer-3",
        timeout_s=6 * HEARTBEAT_S,
        health_port=0,
    )
    seen: list[object] = []

    def look() -> None:
        wait_until_registered(coordinator, {"trainer-3"}.issubset)
        seen.append((get(node, "/healthz"), get(node, "/readyz")))
        time.sleep(2.2 * HEARTBEAT_S)
        seen.append(coordinator.workers())

    looking = threading.Thread(target=look)
    looking.start()
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no round began within 24 s"):
        node.start()
    assert time.monotonic() - began_s >= 6 * HEARTBEAT_S
    looking.join(200)
    assert seen == [(200, 503), {"trainer-3"}]
    assert coordinator.workers() == set(), "no ghost"
    assert (node.rank, node.size, node.health_port) == (-1, 0, 0)


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """The other process ends when this file is there."""
    return tmp_path / "end"


@pytest.fixture
def other(
    coordinator: Coordinator, end: Path, warm_python: WarmPython
) -> Iterator[WarmProcess]:
    process = warm_python.popen("-c", OTHER, coordinator.address, end)
    wait_until_registered(coordinator, {"other"}.issubset)
    yield process
    process.kill()
    process.communicate(timeout=60)


def test_the_life_of_a_worker_node(
    coordinator: Coordinator, other: WarmProcess, end: Path
) -> None:
    """ZF-8: a broadcast from every root arrives. The other process then goes on alone,
    by an init method that names the coordinator. In the end the environment is what it
    was: processes that are started later belong to no round."""
    before = dict(os.environ)
    node = WorkerNode(coordinator.address, nodes=2, health_port=0)
    closed: list[str] = []
    node.add_closer("first", lambda: closed.append("first"))
    node.add_closer("second", lambda: closed.append("second"))
    with node:
        assert (node.rank in (0, 1), node.size) == (True, 2)
        assert node.ready(), node.failures()
        assert (get(node, "/healthz"), get(node, "/readyz")) == (200, 200)
        node.add_readiness_check("data", lambda: "not mounted")
        assert get(node, "/readyz") == 503
        assert len(coordinator.workers()) == 2
        with pytest.raises(ConfigError, match="is started"):
            node.start()
        value = torch.zeros(1)
        for root in range(2):
            node.group.broadcast(value.fill_(node.rank), src=root)
            assert value == root
        node.group.barrier()
        assert "0 1\n" in iter(other.stdout.readline, "")
        wait_until_registered(coordinator, lambda workers: len(workers) == 2)
        end.touch()
        assert other.wait(timeout=200) == 0
        assert len(coordinator.workers()) == 1, "a process that ends unregisters"
        assert "RINGLEADER_CREDENTIALS" in os.environ
    assert closed == ["second", "first"]
    assert dict(os.environ) == before
    assert coordinator.workers() == set()


def test_two_clusters_on_one_coordinator_never_mix(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        agents: dict[AgentProcess, set[str]] = {}
        for names in ({"a0", "a1"}, {"b0"}):
            root = os.urandom(32)
            for name in sorted(names):
                config = AgentConfig(
                    home=str(make_home(tmp_path / name, root)),
                    coordinator=coordinator.address,
                    plaintext=True,
                    uses_mdns=False,
                    interfaces=["lo"],
                    name=name,
                )
                agents[stack.enter_context(AgentProcess.start(config))] = names
        for agent, names in agents.items():
            wait_for_view(agent, names)
        time.sleep(2 * HEARTBEAT_S)
        for agent, names in agents.items():
            seen = wait_for_view(agent, names)
            assert {row.name for row in seen.nodes} == names, "nobody else is known"
            assert seen.rejected == 0, "nor was dialled"


def wait_for_view(agent: AgentProcess, names: set[str]) -> Snapshot:
    until_s = time.monotonic() + 200
    while True:
        seen = agent.ask(GetSnapshot(), Deadline.after(60))
        assert isinstance(seen, Snapshot)
        in_view = {row.name for row in seen.nodes if row.in_view}
        if in_view == names and not seen.troubles:
            return seen
        assert time.monotonic() < until_s, seen
        time.sleep(0.05)


def test_close_ends_a_start_that_waits(coordinator: Coordinator) -> None:
    node = WorkerNode(coordinator.address, nodes=2)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            node.start()
        except GroupAborted as exc:
            errors.append(exc)

    starting = threading.Thread(target=start)
    starting.start()
    wait_until_registered(coordinator, bool)
    node.close()
    starting.join(200)
    assert [str(error) for error in errors] == [
        "the worker node was closed while starting"
    ]
    assert coordinator.workers() == set()
