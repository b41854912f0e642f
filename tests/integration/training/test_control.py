"""The members of a run as real processes: views after kills, stops and returns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.secret_value import Secret
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from ringleader.testing.node_process import Event
from ringleader.testing.run_member import MemberProcess, issue_credentials


@dataclass
class Run:
    """Members of one run on this machine, by their nodes."""

    folder: Path
    cluster: ClusterSecret = field(
        default_factory=lambda: ClusterSecret(root=Secret(os.urandom(32)))
    )
    members: dict[str, MemberProcess] = field(default_factory=dict)
    extra: list[MemberProcess] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    address: str = ""
    net: VirtualLan | None = None

    def join(self, node: str = "") -> str:
        """Start a member, a new one or another life of ``node``.

        On a LAN, each is on a host of its own.
        """
        if node:
            self.extra.append(self.members.pop(node))
        else:
            file, node = issue_credentials(self.folder, self.cluster)
            self.files[node] = file
        host = "127.0.0.1"
        prefix: list[str] = []
        if self.net is not None:
            place = self.net.hosts[len(self.members)]
            host, prefix = place.address, place.command([])
        member = MemberProcess.launch(
            self.files[node], "run", self.address, prefix=prefix
        )
        port = member.wait_for("up")["port"]
        self.address = ",".join(filter(None, [self.address, f"{host}:{port}"]))
        self.members[node] = member
        return node

    def agree(self, *nodes: str) -> list[Event]:
        """Wait until these nodes are in one view of exactly them; return it of all."""
        views = {node: self.members[node].wait_for_view(nodes) for node in nodes}
        while len({view["counter"] for view in views.values()}) > 1:
            # Some have missed a view, or one more followed it.
            oldest = min(nodes, key=lambda node: views[node]["counter"])
            views[oldest] = self.members[oldest].wait_for_view(nodes)
        assert len({str(view["payloads"]) for view in views.values()}) == 1
        return list(views.values())

    def ended(self, node: str, *, waits: bool = False) -> list[str]:
        """Return which nodes' ends are proven to ``node``; wait until there is one."""
        member = self.members[node]
        if waits and not _named(member.events, "ended"):
            member.wait_for("ended")
        return [event["node"] for event in _named(member.events, "ended")]

    def close(self) -> None:
        for member in [*self.members.values(), *self.extra]:
            member.kill()
            member.close()
        self.members, self.extra = {}, []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    tmp_path.chmod(0o700)
    made = Run(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_views_follow_kills_of_any_member_and_returns(run: Run) -> None:
    first, second, third = run.join(), run.join(), run.join()
    views = run.agree(first, second, third)
    assert {view["leader"] for view in views} == {first}

    run.members[first].kill()
    views = run.agree(second, third)
    assert {view["leader"] for view in views} == {second}
    assert run.ended(third, waits=True) == [first]

    run.join(first)
    run.agree(first, second, third)
    run.members[third].kill()
    run.agree(first, second)

    run.members[first].tell("leave")
    run.agree(second)
    assert run.members[first].process.wait(90) == 0


def _named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


@pytest.mark.slow
def test_a_short_stop_evicts_nobody_and_a_long_one_does(run: Run) -> None:
    first, second, third = run.join(), run.join(), run.join()
    run.agree(first, second, third)
    stopped, num_events = run.members[third].process, 0
    for _ in range(20):  # until it was short: a busy machine makes it longer
        num_events = len(run.members[first].events)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        stopped.send_signal(signal.SIGCONT)
        run.members[first].tell("refresh")
        run.agree(first, second, third)
        views = _named(run.members[first].events[num_events:], "install")
        if {len(view["members"]) for view in views} == {3}:
            break
    else:
        pytest.fail("each stop of two seconds has left somebody out")

    stopped.send_signal(signal.SIGSTOP)
    run.agree(first, second)
    assert not run.ended(first), "silence proves nothing"
    stopped.send_signal(signal.SIGCONT)
    run.agree(first, second, third)


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_a_cut_cable_makes_two_islands_that_become_one_view_again(run: Run) -> None:
    with lan(hosts=3) as run.net:
        first, second, third = run.join(), run.join(), run.join()
        run.agree(first, second, third)
        run.net.cut(0)  # of the leader
        run.agree(second, third)
        run.agree(first)
        assert not run.ended(second) + run.ended(first), "nobody is proven dead"
        run.net.mend(0)
        views = run.agree(first, second, third)
        assert {view["leader"] for view in views} == {first}
        run.close()
