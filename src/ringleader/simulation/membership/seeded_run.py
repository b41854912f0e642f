"""One seed, one life of a cluster: build it, break it, see whether it comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ringleader.membership.config import MembershipConfig
from ringleader.membership.machine import Machine
from ringleader.simulation.membership.fault_plan import plan
from ringleader.simulation.membership.invariants import Broken
from ringleader.simulation.membership.simulated_cluster import World
from ringleader.simulation.membership.simulated_network import DIAL_S
from ringleader.simulation.membership.simulated_node import Make

SETTLE_S = 15.0
"""After the last fault everybody must be in one view within this."""

STAY_S = 1.5
"""And stay there at least this long: three heartbeats."""


PAYLOAD_WAIT_S = 0.2
"""In some seeds frozen nodes wait for a payload, and get it a little earlier."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed ended."""

    seed: int
    failure: str | None
    """What went wrong; None: nothing."""
    size: int
    settled_s: float
    """From the last fault to the last view."""
    virtual_s: float
    num_views: int
    num_messages: int


def simulate(
    seed: int,
    *,
    size: int | None = None,
    make: Make | None = None,
    trace: Callable[[str], None] | None = None,
    on_world: Callable[[World], None] | None = None,
) -> Outcome:
    """Play one seed with ``size`` nodes (None: three to eight, as the seed has it).

    ``make`` builds what is tested; None: the machine that ships.
    """
    rng = Random(seed)
    num_nodes = rng.randrange(3, 9)
    over_s = rng.uniform(3.0, 12.0)
    config = MembershipConfig(payload_wait_s=rng.choice((0.0, 0.0, PAYLOAD_WAIT_S)))
    make = make or partial(Machine, config=config)
    world = World(size or num_nodes, seed=seed + 1, make=make, trace=trace)
    world.renew_within_s = config.payload_wait_s * 0.75
    if on_world is not None:
        on_world(world)
    plan(world, rng, over_s)
    failure = None
    settled_s = 0.0
    try:
        world.run(over_s)
        settled_s = _rest(world)
    except Broken as broken:
        failure = str(broken)
        world.say(f"BROKEN: {failure}")
    return Outcome(
        seed=seed,
        failure=failure,
        size=len(world.nodes),
        settled_s=settled_s,
        virtual_s=world.now_s,
        num_views=len(world.watch.views),
        num_messages=world.num_messages,
    )


def _rest(world: World) -> float:
    """Wait for rest; how long it took."""
    start_s = rest_s = world.now_s
    num_installs = -1
    while world.now_s < rest_s + STAY_S:
        why = world.unrest()
        if why is not None or world.watch.num_installs != num_installs:
            num_installs = world.watch.num_installs
            rest_s = world.now_s
        if world.now_s > start_s + SETTLE_S:
            raise Broken(f"no rest {SETTLE_S:g} s after the last fault: {why}")
        world.run(world.now_s + DIAL_S)
    return max(0.0, rest_s - start_s)
