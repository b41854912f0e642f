"""Processes die while a machine joins a run, and the run goes on with exact values.

Every step of every member is compared with the others and a reference while a world
runs; the whole list of points is in benchmarks/elastic_kills.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.elastic_killer import Killer
from tests.kit.elastic_tally import Tally
from tests.kit.elastic_world import World

pytestmark = pytest.mark.slow

CASES = [
    ("join:hand", "source"),
    ("join:log", "joiner"),
    ("join:log", "source"),
    ("publish", "leader"),
]


def test_a_killed_newcomer_and_a_killed_source_cost_time_only(tmp_path: Path) -> None:
    tally = Tally()
    with World(tmp_path, 3) as world:
        killer = Killer(world, tally, seed=2)
        killer.begin()
        for case in CASES:
            killer.kill_once(case)
        world.check_ledger()
    assert not tally.not_reached


def test_a_newcomer_that_has_got_wrong_bits_is_put_right(tmp_path: Path) -> None:
    """One bit of a parameter changes after the newcomer has followed the run."""
    with World(tmp_path, 3) as world:
        killer = Killer(world, Tally(), seed=3)
        killer.begin()
        world.kill(world.alive[1])
        newcomer = world.start(1, joins=True, LIVE_BYTES="0", DAMAGE="1")
        world.wait_complete()
        world.wait_for_step(newcomer.stepped_s, [newcomer])
        assert newcomer.replies["damaged"]["was_right"]
        world.check_ledger()


def test_a_newcomer_enters_while_members_wait_for_a_slow_one(tmp_path: Path) -> None:
    """A join reaches some in the reduction, and the slow one before it."""
    with World(tmp_path, 3) as world:
        killer = Killer(world, Tally(), seed=4)
        killer.begin()
        for _ in range(3):
            world.kill(world.alive[1])
            world.alive[0].tell(pause_s=0.0)
            world.alive[2].tell(pause_s=0.3)
            newcomer = world.start(1, joins=True, LIVE_BYTES="0")
            world.wait_complete()
            world.wait_for_step(newcomer.stepped_s, [newcomer])
        world.check_ledger()
