"""Members of elastic runs die at named points, and the run goes on with exact values.

The short version of benchmarks/elastic_kills.py.
"""

from __future__ import annotations

import base64
import signal
import socket
import time
from pathlib import Path

import pytest

from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.elastic_killer import Killer
from tests.kit.elastic_network import harm_one
from tests.kit.elastic_partition import SHAPES, split_and_heal
from tests.kit.elastic_soak import FLAT_S, NAMES, Soak
from tests.kit.elastic_tally import Tally
from tests.kit.elastic_world import Failed, Member, World
from tests.kit.endless_task import LossReference, Reference

pytestmark = pytest.mark.slow

CASES = [
    ("any", "leader"),
    ("rs:0", "other"),
    ("ag:1", "leader"),
    ("held", "other"),
    ("applying", "leader"),
    ("prepare", "other"),
    ("gather:0", "source"),
    ("join:pull", "joiner"),
]


def test_kills_at_named_points_change_no_value(tmp_path: Path) -> None:
    """Every step of every member is compared while the world runs."""
    tally = Tally()
    with World(tmp_path, 3) as world:
        killer = Killer(world, tally, seed=1)
        killer.begin()
        for case in CASES:
            killer.kill_once(case)
        victim = world.alive[0]
        others = [member for member in world.alive.values() if member is not victim]
        stopped_s = world.kill(victim, signal.SIGSTOP)
        stopped = [world.nodes[victim.index]]
        world.wait_for_step(stopped_s, others, without=stopped)
        world.kill(victim, signal.SIGCONT)
        world.wait_complete()
        world.check_ledger()
    assert tally.num_kills >= len(CASES)
    assert not tally.not_reached


def test_a_float32_run_with_kills_has_the_losses_of_one_process(tmp_path: Path) -> None:
    """The short version of benchmarks/elastic_follow.py."""
    tally, reference = Tally(), LossReference()
    with World(tmp_path, 3, reference=reference) as world:
        killer = Killer(world, tally, seed=2)
        killer.begin()
        for case in (("any", "leader"), ("held", "other"), ("status", "proposer")):
            killer.kill_once(case)
        for member in world.alive.values():
            world.check_ledger(member)
        assert world.largest_difference <= reference.tolerance
    assert not tally.not_reached
    assert len(reference.other_losses) >= world.checks / world.size


def test_kills_leave_no_threads_or_descriptors_behind(tmp_path: Path) -> None:
    """The short version of benchmarks/elastic_soak.py."""
    with World(tmp_path, 3) as world:
        soak = Soak(world, seed=3)
        soak.begin(quiet_s=0.5)
        soak.kill_one()  # from now on, what happens once has happened
        world.wait_complete()
        first = soak.usage()
        for _ in range(3):
            soak.kill_one()
        world.wait_complete()
        until_s = time.monotonic() + FLAT_S
        while any((last := soak.usage())[n] > first[n] for n in NAMES[1:]):
            assert time.monotonic() < until_s, f"{last} after {first}"
            soak.follow(0.5)
        world.check_ledger()


def reported(world: World, index: int, members: str, nudge: float) -> None:
    """Let a machine report the first step of a run of some machines."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        member = Member(index, 0, ours, 0.0)
        weights = (Reference().parameters(1) + nudge).tobytes()
        report = {
            "version": 1,
            "at_s": 1.0,
            "members": [*members],
            "weights": base64.b64encode(weights).decode(),
        }
        world._check(member, report)


def test_only_machines_of_one_run_are_compared_while_the_network_heals(
    tmp_path: Path,
) -> None:
    """One of a part may meet the others before its neighbour does, which is alone."""
    with World(tmp_path, 4) as world:
        world.is_split = True
        reported(world, 2, "abc", 0.0)
        reported(world, 3, "d", 1e-12)
        with pytest.raises(Failed, match="m1 differs"):
            reported(world, 1, "cab", 1e-12)
        world.is_split, world.weights = False, {}
        reported(world, 2, "abc", 0.0)
        with pytest.raises(Failed, match="m3 differs"):
            reported(world, 3, "abcd", 1e-12)


@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_two_parts_of_a_cut_network_become_one_run_again(tmp_path: Path) -> None:
    """Two machines on either side: neither part has a majority."""
    parts = SHAPES["2|2"]
    with lan(hosts=4, rate="1gbit") as net, World(tmp_path, 4, net) as world:
        for index in range(world.size):
            world.start(index, joins=False)
        split_and_heal(world, net, parts, apart_s=1.0, fast=0)


@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_a_machine_that_has_roamed_to_another_address_is_back(tmp_path: Path) -> None:
    """The short version of benchmarks/elastic_networks.py.

    Its old links stay silent for ever, and the others know its old address.
    """
    with lan(hosts=2) as net, World(tmp_path, 2, net) as world:
        harm_one(world, net, "roams 5 s to a new address", "leader")
