"""The membership simulator accepts the machine and detects defective ones."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from ringleader.membership.config import MembershipConfig
from ringleader.membership.member import Member, View
from ringleader.membership.messages import Propose
from ringleader.membership.proposer import Proposer
from ringleader.membership.state_machine import MembershipMachine
from ringleader.membership.view_change import ViewChange
from ringleader.simulation.membership.__main__ import main
from ringleader.simulation.membership.invariants import InvariantViolation
from ringleader.simulation.membership.seeded_run import SeedResult, simulate
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.membership.simulated_node import MachineFactory
from tests.kit.uptime_election import UptimeElection

NUM_SEEDS = 150
TRAINING = MembershipConfig.for_training()


def test_all_faults_end_in_one_view() -> None:
    results = [simulate(seed) for seed in range(NUM_SEEDS)]
    assert [(o.seed, o.failure) for o in results if o.failure] == []
    assert {o.size for o in results} >= set(range(3, 9))
    assert sum(o.num_views for o in results) > 3 * NUM_SEEDS, "something must happen"


def test_a_training_run_never_uses_a_status_of_before_the_freeze() -> None:
    results = [simulate(seed, config=TRAINING) for seed in range(30)]
    assert [(o.seed, o.failure) for o in results if o.failure] == []
    hasty = replace(TRAINING, payload_wait_s=0.0)
    make = partial(MembershipMachine, config=hasty)
    found = simulate(0, config=TRAINING, make=make).failure
    assert "before its freeze" in (found or "")


def test_a_seed_tells_the_same_story_every_time() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        simulate(11, trace=story.append)
    assert stories[0] == stories[1]
    assert any("installs" in line for line in stories[0])


def failures(make: MachineFactory | None, seeds: range) -> list[SeedResult]:
    results = [simulate(seed, size=3, make=make) for seed in seeds]
    return [o for o in results if o.failure]


def test_the_rule_of_the_seed_is_caught() -> None:
    assert not failures(None, range(25))
    caught = failures(UptimeElection, range(25))
    assert len(caught) > 20
    assert any("is led by" in (o.failure or "") for o in caught)


def without_faults(make: MachineFactory, size: int, seed: int) -> str | None:
    """Start all nodes together without faults; return what is wrong, or None."""
    cluster = SimulatedCluster(size, seed=seed, make=make)
    for index, node in enumerate(cluster.nodes):
        cluster.after(0.01 * index, cluster.start, node)
    try:
        cluster.run(15)
    except InvariantViolation as broken:
        return str(broken)
    return cluster.convergence_problem()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_rule_of_the_seed_splits_a_cluster_without_any_fault(size: int) -> None:
    ours = [without_faults(MembershipMachine, size, seed) for seed in range(10)]
    seeds = [without_faults(UptimeElection, size, seed) for seed in range(10)]
    assert not any(ours)
    assert any(seeds)


def test_two_nodes_defer_to_each_other_when_uptime_decides() -> None:
    """Each node campaigns before it hears of the other's growing uptime."""
    cluster = SimulatedCluster(2, seed=1, make=UptimeElection)
    for node in cluster.nodes:
        cluster.start(node)
    cluster.run(5)
    leaders = [
        n.machine.view.leader for n in cluster.nodes if n.machine and n.machine.view
    ]
    assert leaders == [cluster.nodes[1].member, cluster.nodes[0].member]


def forgetful(me: Member) -> MembershipMachine:
    """Promises every view, also one older than its last promise."""
    machine = MembershipMachine(me)
    agreement: ViewChange = machine._view_change
    promise = agreement.promise

    def forget(sender: Member, message: Propose, prefers: Member, now_s: float) -> None:
        agreement.promised = agreement.view_id
        promise(sender, message, prefers, now_s)

    agreement.promise = forget  # type: ignore[method-assign]
    return machine


def hasty(me: Member) -> MembershipMachine:
    """Installs a view that it never promised."""
    machine = MembershipMachine(me)
    agreement: ViewChange = machine._view_change

    def install(sender: Member, view: View) -> None:
        if view.id > agreement.view_id:
            agreement._enter(view)

    agreement.install = install  # type: ignore[method-assign]
    return machine


def mumbling(me: Member) -> MembershipMachine:
    """Sends every message only once."""
    machine = MembershipMachine(me)
    machine._is_linked = lambda member: False  # type: ignore[method-assign]
    return machine


def uncounting(me: Member) -> MembershipMachine:
    """Ignores the counters of other nodes."""
    machine = MembershipMachine(me)
    machine._view_change.note = lambda name: None  # type: ignore[method-assign]
    return machine


def content(me: Member) -> MembershipMachine:
    """Ignores that its members are frozen for a view of another leader."""
    machine = MembershipMachine(me)
    aim: Proposer = machine._proposer
    aim._is_stale = lambda: False  # type: ignore[method-assign]
    return machine


@pytest.mark.parametrize("make", [forgetful, hasty, mumbling, uncounting, content])
def test_a_broken_machine_is_caught(make: MachineFactory) -> None:
    assert any(simulate(seed, make=make).failure for seed in range(400))


def test_the_command_runs_seeds_and_tells_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "6", "--jobs", "1"]) == 0
    assert "6 seeds in" in capsys.readouterr().out
    assert main(["--seed", "3", "--trace", "--nodes", "3"]) == 0
    story = capsys.readouterr().out
    assert "faults end" in story
    assert "seed 3: clean" in story


def test_the_command_uses_several_processes() -> None:
    command = [sys.executable, "-m", "ringleader.simulation.membership"]
    done = subprocess.run(
        [*command, "--seeds", "30", "--jobs", "2", "--nodes", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "30 seeds in" in done.stdout
    assert "0 failed" in done.stdout
