"""Runs one seed: faults first, then calm, in which the run must make progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Self

from ringleader.errors import InternalError
from ringleader.membership.steps.decide import Partition
from ringleader.simulation.steps.adversary import Adversary
from ringleader.simulation.steps.oracle import Oracle, StepViolation, check
from ringleader.simulation.steps.rules import PRODUCT, StepRules
from ringleader.simulation.steps.world import StepWorld

PROGRESS = 2
"""Steps that all members deliver after the faults."""

_ACT_CHANCE = 0.3
"""Share of events in which a user's thread acts; in the others a message arrives."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one seed."""

    seed: int
    failure: str | None
    """The violated invariant; None if there is none."""
    size: int
    num_events: int
    num_views: int
    num_delivered: int
    num_gathers: int
    num_adopted: int
    num_forks: int
    num_crashes: int

    @classmethod
    def of(
        cls,
        oracle: Oracle,
        *,
        seed: int,
        failure: str | None,
        size: int,
        num_events: int,
        num_crashes: int,
    ) -> Self:
        """Return the result of a seed with the counts of its oracle."""
        return cls(
            seed=seed,
            failure=failure,
            size=size,
            num_events=num_events,
            num_views=oracle.num_views,
            num_delivered=oracle.num_delivered,
            num_gathers=oracle.num_gathers,
            num_adopted=oracle.num_adopted,
            num_forks=oracle.num_forks,
            num_crashes=num_crashes,
        )


def simulate_steps(
    seed: int,
    *,
    size: int | None = None,
    rules: StepRules = PRODUCT,
    trace: Callable[[str], None] | None = None,
) -> StepResult:
    """Run one seed with ``size`` machines (None: two to eight, drawn from the seed)."""
    rng = Random(seed)
    num_nodes = rng.randrange(2, 9)
    partition: Partition = "majority" if rng.random() < 0.15 else "continue"
    world = StepWorld(size or num_nodes, rng, rules, partition, trace)
    failure = None
    try:
        _run(world, rng)
    except (StepViolation, InternalError) as violation:
        failure = str(violation)
        world.tell(f"VIOLATION {failure}")
    return StepResult.of(
        world.oracle,
        seed=seed,
        failure=failure,
        size=len(world.nodes),
        num_events=world.num_events,
        num_crashes=world.num_crashes,
    )


def _run(world: StepWorld, rng: Random) -> None:
    size = len(world.nodes)
    num_events = 800 + 300 * size
    adversary = Adversary(world, rng, num_events)
    num_started = size if rng.random() < 0.6 else rng.randint(1, size)
    for node in world.nodes[:num_started]:
        world.start(node)
    world.propose(world.nodes[0], world.living())
    while world.num_events < num_events:
        world.num_events += 1
        if not adversary.strike():
            _advance(world, rng)
    _run_calm(world, rng)


def _advance(world: StepWorld, rng: Random) -> None:
    if not world.pool or rng.random() < _ACT_CHANCE:
        node = world.nodes[int(rng.random() * len(world.nodes))]
        if node.is_alive and (node.speed == 1.0 or rng.random() < node.speed):
            has_acted = world.engine.act(node)
            world.num_idle = 0 if has_acted else world.num_idle + 1
    else:
        world.next_message()


def _run_calm(world: StepWorld, rng: Random) -> None:
    """Check I7: one view of all living machines comes into force and makes steps."""
    world.tell("calm")
    world.blocked = set()
    _propose_all(world)
    limit = world.num_events + 500 + 400 * len(world.nodes)
    while not _is_done(world):
        if world.num_events > limit:
            raise StepViolation(f"I7: no progress: {_where(world)}")
        for _ in range(10):
            world.num_events += 1
            _advance(world, rng)


def _propose_all(world: StepWorld) -> None:
    living = world.living()
    world.propose(living[0], living, skip=1000)


def _is_done(world: StepWorld) -> bool:
    """Return True if all are in the last view and have made progress in it."""
    plans = []
    for node in world.living():
        plan = node.member.plan
        if plan is None or node.frozen_for or node.member.newest_promise.counter < 1000:
            return False
        plans.append((node.member, plan))
    if all(plan.is_paused for _, plan in plans):
        return _may_pause(world)
    return all(m.is_ready and m.version >= p.version + PROGRESS for m, p in plans)


def _may_pause(world: StepWorld) -> bool:
    """Handle a last view that pauses: a legal end, or everybody starts again."""
    plan = world.living()[0].member.plan
    assert plan is not None
    if "checkpoint" in plan.pause_reason:
        for node in world.living():
            world.crash(node)
            world.start(node, loads_disk=True)
        _propose_all(world)
        return False
    is_one = len(world.oracle.lineages) == 1 and world.num_crashes == 0
    check(not is_one, "I7", f"all live in one lineage, and {plan.pause_reason}")
    return True


def _where(world: StepWorld) -> str:
    members = [node.member for node in world.living()]
    return ", ".join(f"{m.me} at {m.version}, {m.next_attempt}" for m in members)
