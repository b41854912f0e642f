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


def is_described(seen: Event) -> bool:
    """Return whether everything is known of all nodes, also of the one asked; and of
    links also where the other end dialled."""
    return all(
        row["profile"]["physical_cores"] >= 1
        and row["version"]
        and row["clock_ahead_s"] is not None
        and row["address"].startswith("10.77.0.")
        and {link["kind"] for link in row["links"].values()} == {"ethernet"}
        for row in seen["nodes"]
    )


def test_three_machines_find_each_other_and_survive_the_loss_of_their_leader(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    root = os.urandom(32)
    homes = [make_home(tmp_path / str(i), root) for i in range(3)]
    nodes = [start(stack, net, i, homes[i], f"n{i}") for i in range(3)]
    seen = [
        node.query_until(lambda s: is_measured(3)(s) and is_described(s))
        for node in nodes
    ]
    leader = next(row for row in seen[0]["nodes"] if row["is_leader"])
    assert leader["name"] == "n0", "the first to start is the most senior"
    before = max(each["epoch"] for each in seen)

    kill(nodes[0])
    epoch = nodes[1].query_until(has_members("n1", "n2"))["epoch"]
    assert epoch > before
    while (other := nodes[2].query_until(has_members("n1", "n2"))["epoch"]) != epoch:
        # Links that are measured meanwhile make new views; both get the same ones.
        epoch = nodes[1].query_until(lambda s: s["epoch"] >= other)["epoch"]

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
    agent = int(four[2].events[0]["agent"])

    for _ in range(10):  # a busy machine holds it up for longer
        before = lost(four[0].query())
        os.kill(agent, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(agent, signal.SIGCONT)
        four[2].query()
        time.sleep(1.0)
        if lost(four[0].query()) == before:
            break
        for node in four:
            node.query_until(has_members(*ALL))
    else:
        pytest.fail("each stop of 1.5 seconds has evicted somebody")

    os.kill(agent, signal.SIGSTOP)
    health = {
        "total": 3,
        "healthy": 2,
        "suspect": 0,
        "dead": 1,
        "unknown": 0,
        "percentage": pytest.approx(66.7, abs=0.1),
        "is_healthy": False,
    }
    four[0].query_until(
        lambda s: (
            has_members("n0", "n1", "n3")(s)
            and s["health"] == health
            and any(text.startswith("lost n2 (") for text in lost(s))
        )
    )
    os.kill(agent, signal.SIGCONT)
    for node in four:
        node.query_until(
            lambda s: has_members(*ALL)(s) and s["health"]["percentage"] == 100
        )


def lost(seen: Event) -> list[str]:
    return [event["text"] for event in seen["events"] if event["kind"] == "lost"]


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
        node.query_until(lambda s: has_members(*ALL)(s) and bool(splits(s)))
        for node in four
    ]
    leaders = {r["name"] for s in views for r in s["nodes"] if r["is_leader"]}
    assert leaders == {"n0"}, "the view of the most senior node remains"
    for seen in views:
        # The leaders of both parts are named; several nodes notice it, but it is one
        # event.
        named = [text for text in splits(seen) if "n0 (" in text and "n2 (" in text]
        assert len(named) == 1, splits(seen)


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
        node.query_until(
            lambda s: (
                has_members("n0", "n1", "n2")(s)
                and all(row["in_view"] for row in s["nodes"])
            )
        )


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
    alone = other.query_until(
        lambda s: any("other secret" in trouble for trouble in s["troubles"])
    )
    assert member_names(alone) == {"b1"}
    seen = one.query_until(lambda s: s["rejected"] >= 1 and len(member_names(s)) > 1)
    assert member_names(seen) == {"a0", "a2"}


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
