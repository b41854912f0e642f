"""Agents on a virtual LAN: discovery, election, loss, splits, and foreign nodes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringleader.simulation.lan import (
    VirtualLan,
    can_make_faults,
    can_make_lan,
    lan,
)
from ringleader.testing.node_process import Event, NodeProcess, make_home, member_names
from tests.kit import agent_worker

AGENT = Path(agent_worker.__file__)

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.timeout(110),
]


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=4) as made:
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def start(
    stack: ExitStack,
    net: VirtualLan,
    index: int,
    home: Path,
    name: str,
    peers: str = "",
) -> NodeProcess:
    node = NodeProcess.start(net.hosts[index], home, AGENT, name, peers)
    stack.callback(node.close)
    node.wait_for("up")
    return node


@pytest.fixture(scope="module")
def four(
    net: VirtualLan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[NodeProcess]]:
    """Agents on all hosts, in one view; tests leave them as they were."""
    root, folder = os.urandom(32), tmp_path_factory.mktemp("four")
    with ExitStack() as stack:
        homes = [make_home(folder / str(i), root) for i in range(4)]
        nodes = [start(stack, net, i, homes[i], f"n{i}") for i in range(4)]
        yield nodes


def has_members(*names: str) -> Callable[[Event], bool]:
    return lambda seen: member_names(seen) == set(names)


ALL = ("n0", "n1", "n2", "n3")


def kill(node: NodeProcess) -> None:
    """Kill the agent and its parent at once, as when a machine is switched off."""
    os.kill(int(node.events[0]["agent"]), signal.SIGKILL)
    node.process.kill()


def is_measured(size: int) -> Callable[[Event], bool]:
    """Wait for a healthy view of ``size`` nodes in which all links are measured."""

    def check(seen: Event) -> bool:
        links = sum(len(row["links"]) for row in seen["nodes"])
        is_healthy = all(row["health"] == "healthy" for row in seen["nodes"])
        return len(seen["ring"]) == size and links >= size * (size - 1) and is_healthy

    return check


def test_three_machines_find_each_other_and_survive_the_loss_of_their_leader(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    root = os.urandom(32)
    homes = [make_home(tmp_path / str(i), root) for i in range(3)]
    nodes = [start(stack, net, i, homes[i], f"n{i}") for i in range(3)]
    seen = [node.query_until(is_measured(3)) for node in nodes]

    assert len({(s["epoch"], s["leader"], tuple(s["ring"])) for s in seen[:1]}) == 1
    leader = next(row for row in seen[0]["nodes"] if row["is_leader"])
    assert leader["name"] == "n0", "the first to start is the most senior"
    for row in [row for each in seen for row in each["nodes"]]:
        assert row["profile"]["physical_cores"] >= 1
        assert row["version"], "also of the node that was asked"
        assert row["clock_ahead_s"] is not None
        assert row["address"].startswith("10.77.0.")
        kinds = {link["kind"] for link in row["links"].values()}
        assert kinds == {"ethernet"}, "also where the other end dialled"

    killed_s = time.monotonic()
    kill(nodes[0])
    survivors = [n.query_until(has_members("n1", "n2")) for n in nodes[1:]]
    assert time.monotonic() - killed_s < 10
    assert {s["epoch"] for s in survivors} == {survivors[0]["epoch"]}
    assert survivors[0]["epoch"] > seen[0]["epoch"]

    back = start(stack, net, 0, homes[0], "n0")
    again = back.query_until(has_members("n0", "n1", "n2"))
    leader = next(row for row in again["nodes"] if row["is_leader"])
    assert leader["name"] == "n1", "a node that comes back is the youngest"


@pytest.mark.slow
def test_a_stopped_machine_is_waited_for_a_while_and_rejoins_after_longer(
    four: list[NodeProcess],
) -> None:
    for node in four:
        node.query_until(is_measured(4))  # measurements make new views
    before = four[0].query()
    agent = int(four[2].events[0]["agent"])

    stopped_s = time.monotonic()
    os.kill(agent, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(agent, signal.SIGCONT)
    was_out_s = time.monotonic() - stopped_s
    time.sleep(1.0)
    if was_out_s < 2.3:  # else this process itself was held up for too long
        assert four[0].query()["epoch"] == before["epoch"], "two seconds evict nobody"

    os.kill(agent, signal.SIGSTOP)
    seen = four[0].query_until(has_members("n0", "n1", "n3"))
    os.kill(agent, signal.SIGCONT)
    assert seen["health"] == {
        "total": 3,
        "healthy": 2,
        "suspect": 0,
        "dead": 1,
        "unknown": 0,
        "percentage": pytest.approx(66.7, abs=0.1),
        "is_healthy": False,
    }
    lost = [event["text"] for event in seen["events"] if event["kind"] == "lost"]
    assert lost[-1].startswith("lost n2 ("), "status tells which machine was lost"
    for node in four:
        again = node.query_until(
            lambda s: has_members(*ALL)(s) and s["health"]["healthy"] == 3
        )
        assert again["health"]["percentage"] == 100


def splits(seen: Event) -> list[str]:
    return [e["text"] for e in seen["events"] if e["kind"] == "split"]


@pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1])
def test_a_split_cluster_becomes_one_again_and_status_shows_the_split(
    net: VirtualLan, four: list[NodeProcess]
) -> None:
    for node in four:
        node.query_until(has_members(*ALL))
    net.partition([[0, 1], [2, 3]])
    try:
        for node in four[:2]:
            node.query_until(has_members("n0", "n1"))
        for node in four[2:]:
            node.query_until(has_members("n2", "n3"))
    finally:
        net.heal()
    views = [
        node.query_until(lambda s: has_members(*ALL)(s) and bool(splits(s)), 30)
        for node in four
    ]
    leaders = {r["name"] for s in views for r in s["nodes"] if r["is_leader"]}
    assert leaders == {"n0"}, "the view of the most senior node remains"
    for seen in views:
        (text,) = splits(seen)  # several nodes notice it, but it is one event
        assert "n0 (" in text
        assert "n2 (" in text, "the leaders of both parts are named"


@pytest.mark.slow
def test_one_machine_that_all_know_is_enough_without_multicast(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    for index in range(3):
        net.no_multicast(index)
        stack.callback(net.mend, index)
    root = os.urandom(32)
    homes = [make_home(tmp_path / str(i), root) for i in range(3)]
    hub = start(stack, net, 0, homes[0], "n0")
    port = hub.query()["nodes"][0]["address"].rpartition(":")[2]
    peers = f"{net.hosts[0].address}:{port}"
    nodes = [hub, *(start(stack, net, i, homes[i], f"n{i}", peers) for i in (1, 2))]
    for node in nodes:
        seen = node.query_until(has_members("n0", "n1", "n2"))
        assert all(row["in_view"] for row in seen["nodes"])


@pytest.mark.slow
def test_two_clusters_on_one_lan_never_share_a_member(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    ours, theirs = os.urandom(32), os.urandom(32)
    one = start(stack, net, 0, make_home(tmp_path / "a", ours), "a0")
    address = (
        f"{net.hosts[0].address}:{one.query()['nodes'][0]['address'].split(':')[-1]}"
    )
    # The stranger even knows the address of one.
    other = start(stack, net, 1, make_home(tmp_path / "b", theirs), "b1", address)
    two = start(stack, net, 2, make_home(tmp_path / "c", ours), "a2")
    two.query_until(lambda s: member_names(s) == {"a0", "a2"})
    time.sleep(1.0)
    assert member_names(one.query()) == {"a0", "a2"}
    alone = other.query()
    assert member_names(alone) == {"b1"}
    assert any("other secret" in trouble for trouble in alone["troubles"])
    assert one.query()["rejected"] >= 1


@pytest.mark.slow
def test_a_copied_key_is_noticed_and_named(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    home = make_home(tmp_path / "a", os.urandom(32))
    first = start(stack, net, 0, home, "original")
    copy = tmp_path / "b"
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("run"))
    second = NodeProcess.start(net.hosts[1], copy, AGENT, "copy")
    stack.callback(second.close)
    second.wait_for("up")
    seen = first.query_until(lambda s: any("two machines" in t for t in s["troubles"]))
    assert member_names(seen) == {"original"}
