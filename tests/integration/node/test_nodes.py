"""Agents on a LAN of namespaces: finding, electing, losing, and keeping others out."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from ringleader.testing.node_process import Event, NodeProcess, make_home, member_names
from tests.kit import agent_worker

AGENT = Path(agent_worker.__file__)

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.timeout(110),
]


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=3) as made:
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
def three(
    net: VirtualLan, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[NodeProcess]]:
    """Agents on all hosts, in one view; tests leave them as they were."""
    root, folder = os.urandom(32), tmp_path_factory.mktemp("three")
    with ExitStack() as stack:
        homes = [make_home(folder / str(i), root) for i in range(3)]
        nodes = [start(stack, net, i, homes[i], f"n{i}") for i in range(3)]
        yield nodes


def are_together(seen: Event) -> bool:
    return member_names(seen) == {"n0", "n1", "n2"}


def kill(node: NodeProcess) -> None:
    """The agent and its parent at once, as when a machine is switched off."""
    os.kill(int(node.events[0]["agent"]), signal.SIGKILL)
    node.process.kill()


def measured(seen: Event) -> bool:
    links = sum(len(row["links"]) for row in seen["nodes"])
    is_well = all(row["health"] == "healthy" for row in seen["nodes"])
    return len(seen["ring"]) == 3 and links >= 6 and is_well


def test_three_machines_find_each_other_and_survive_the_loss_of_their_leader(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    root = os.urandom(32)
    homes = [make_home(tmp_path / str(i), root) for i in range(3)]
    nodes = [start(stack, net, i, homes[i], f"n{i}") for i in range(3)]
    seen = [node.query_until(measured) for node in nodes]

    assert len({(s["epoch"], s["leader"], tuple(s["ring"])) for s in seen[:1]}) == 1
    leader = next(row for row in seen[0]["nodes"] if row["is_leader"])
    assert leader["name"] == "n0", "the first to start is the most senior"
    assert all(row["profile"]["physical_cores"] >= 1 for row in seen[0]["nodes"])

    killed_s = time.monotonic()
    kill(nodes[0])
    survivors = [
        n.query_until(lambda s: member_names(s) == {"n1", "n2"}) for n in nodes[1:]
    ]
    assert time.monotonic() - killed_s < 10
    assert {s["epoch"] for s in survivors} == {survivors[0]["epoch"]}
    assert survivors[0]["epoch"] > seen[0]["epoch"]

    back = start(stack, net, 0, homes[0], "n0")
    again = back.query_until(are_together)
    leader = next(row for row in again["nodes"] if row["is_leader"])
    assert leader["name"] == "n1", "who comes back is the youngest"


def test_a_stopped_machine_is_waited_for_a_while_and_rejoins_after_longer(
    three: list[NodeProcess],
) -> None:
    for node in three:
        node.query_until(measured)  # what is measured makes new views
    before = three[0].query()
    agent = int(three[2].events[0]["agent"])

    stopped_s = time.monotonic()
    os.kill(agent, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(agent, signal.SIGCONT)
    was_out_s = time.monotonic() - stopped_s
    time.sleep(1.0)
    if was_out_s < 2.3:  # else we were held up ourselves, longer than anybody may be
        assert three[0].query()["epoch"] == before["epoch"], "two seconds evict nobody"

    os.kill(agent, signal.SIGSTOP)
    three[0].query_until(lambda s: member_names(s) == {"n0", "n1"})
    os.kill(agent, signal.SIGCONT)
    for node in three:
        node.query_until(are_together)


def test_a_split_network_makes_two_views_and_a_mended_one_makes_one(
    net: VirtualLan, three: list[NodeProcess]
) -> None:
    for node in three:
        node.query_until(are_together)
    net.cut(0)
    try:
        three[0].query_until(lambda s: member_names(s) == {"n0"})
        for node in three[1:]:
            node.query_until(lambda s: member_names(s) == {"n1", "n2"})
    finally:
        net.mend(0)
    views = [node.query_until(are_together, 30) for node in three]
    leaders = {r["name"] for s in views for r in s["nodes"] if r["is_leader"]}
    assert leaders == {"n0"}, "the view of the most senior node remains"


def test_two_clusters_on_one_lan_never_share_a_member(
    net: VirtualLan, stack: ExitStack, tmp_path: Path
) -> None:
    ours, theirs = os.urandom(32), os.urandom(32)
    one = start(stack, net, 0, make_home(tmp_path / "a", ours), "a0")
    address = (
        f"{net.hosts[0].address}:{one.query()['nodes'][0]['address'].split(':')[-1]}"
    )
    # The stranger even knows where to knock.
    other = start(stack, net, 1, make_home(tmp_path / "b", theirs), "b1", address)
    two = start(stack, net, 2, make_home(tmp_path / "c", ours), "a2")
    two.query_until(lambda s: member_names(s) == {"a0", "a2"})
    time.sleep(1.0)
    assert member_names(one.query()) == {"a0", "a2"}
    alone = other.query()
    assert member_names(alone) == {"b1"}
    assert any("other secret" in trouble for trouble in alone["troubles"])
    assert one.query()["rejected"] >= 1


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
