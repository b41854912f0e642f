"""Runs one seed: faults first, then calm, in which the run must make progress."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from ringleader.membership.steps.decide import Partition
from ringleader.membership.steps.plan import StepPlan
from ringleader.membership.steps.status import decode_status
from ringleader.simulation.steps.adversary import Adversary
from ringleader.simulation.steps.oracle import INVARIANTS, Oracle
from ringleader.simulation.steps.rules import PRODUCT, StepRules
from ringleader.simulation.steps.step_result import StepResult, failure_of, result_of
from ringleader.simulation.steps.world import StepWorld

PROGRESS = 2
"""Steps that all members deliver after the faults."""

_ACT_CHANCE = 0.3
"""Share of events in which a user's thread acts; in the others a message arrives."""


def simulate_steps(
    seed: int,
    *,
    size: int | None = None,
    rules: StepRules = PRODUCT,
    partition: Partition | None = None,
    watched: Collection[str] = INVARIANTS,
    trace: Callable[[str], None] | None = None,
) -> StepResult:
    """Run one seed with ``size`` machines (None: two to eight, drawn from the seed).

    ``partition`` None: drawn from the seed. Only the invariants ``watched`` are
    checked.
    """
    rng = Random(seed)
    num_nodes = rng.randrange(2, 9)
    drawn: Partition = "majority" if rng.random() < 0.15 else "continue"
    oracle = Oracle(watched)
    world = StepWorld(size or num_nodes, rng, rules, partition or drawn, oracle, trace)
    failure = failure_of(partial(_run, world, rng), world.tell)
    return result_of(
        seed,
        failure,
        oracle,
        size=len(world.nodes),
        num_events=world.num_events,
        num_crashes=world.num_crashes,
    )


def _run(world: StepWorld, rng: Random) -> None:
    size = len(world.nodes)
    num_events = 500 + 160 * size
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
    for member, promised in world.ended.items():
        for node in world.living():
            node.member.note_ended(member, promised)
    _propose_all(world)
    limit = world.num_events + 500 + 400 * len(world.nodes)
    while not _is_done(world):
        if world.num_events > limit:
            world.oracle.check(False, "I7", f"no progress: {_where(world)}")
            return
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
    if plan.lacks_state:
        for node in world.living():
            world.crash(node)
            world.start(node, loads_disk=True)
        _propose_all(world)
        return False
    world.oracle.check(_lacks_proof(world, plan), "I7", plan.pause_reason)
    return True


def _lacks_proof(world: StepWorld, plan: StepPlan) -> bool:
    """Return True if nobody can know whether others continue the run.

    A member that promised a view after the newest one, and then died, may have helped
    to form a view that nobody here knows. The same holds for a promise that a living
    member had to forget.
    """
    members = {node.me: node.member for node in world.living()}
    newest = members[plan.sources[0]].view.id
    if any(promised > newest for promised in world.ended.values()):
        return True
    statuses = [decode_status(n.status_bytes, n.me) for n in world.living()]
    return any(s.since > s.view for s in statuses)


def _where(world: StepWorld) -> str:
    members = [node.member for node in world.living()]
    return ", ".join(f"{m.me} at {m.version}, {m.next_attempt}" for m in members)
