"""Runs one seed: starts a cluster, injects faults, checks that it converges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ringleader.membership.config import MembershipConfig
from ringleader.membership.state_machine import MembershipMachine
from ringleader.simulation.membership.fault_plan import schedule_faults
from ringleader.simulation.membership.invariants import InvariantViolation
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.membership.simulated_network import DIAL_S
from ringleader.simulation.membership.simulated_node import MachineFactory

CONVERGE_S = 15.0
"""After the last fault all reachable nodes must be in one view within this time."""

STABLE_S = 1.5
"""How long they must stay in it: three heartbeats."""

PAYLOAD_WAIT_S = 0.2
"""In some seeds frozen nodes wait this long for a payload, and get it earlier."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of one seed."""

    seed: int
    failure: str | None
    """Description of the violated invariant; None if there is none."""
    size: int
    converged_s: float
    """Time from the last fault to the last view."""
    virtual_s: float
    num_views: int
    num_messages: int


def simulate(
    seed: int,
    *,
    size: int | None = None,
    config: MembershipConfig | None = None,
    make: MachineFactory | None = None,
    trace: Callable[[str], None] | None = None,
    on_cluster: Callable[[SimulatedCluster], None] | None = None,
) -> SeedResult:
    """Run one seed with ``size`` nodes (None: three to eight, drawn from the seed).

    ``config`` are the times (None: those of a LAN, in some seeds with a wait for
    payloads). ``make`` builds the machine under test; None: the product's
    ``MembershipMachine``.
    """
    rng = Random(seed)
    num_nodes = rng.randrange(3, 9)
    over_s = rng.uniform(3.0, 12.0)
    wait_s = rng.choice((0.0, 0.0, PAYLOAD_WAIT_S))
    config = config or MembershipConfig(payload_wait_s=wait_s)
    make = make or partial(MembershipMachine, config=config)
    cluster = SimulatedCluster(size or num_nodes, seed=seed + 1, make=make, trace=trace)
    cluster.checker.requires_fresh = config.answers_only_fresh
    cluster.renew_within_s = min(config.payload_wait_s, PAYLOAD_WAIT_S) * 0.75
    if on_cluster is not None:
        on_cluster(cluster)
    schedule_faults(cluster, rng, over_s)
    failure = None
    converged_s = 0.0
    try:
        cluster.run(over_s)
        converged_s = _wait_converged(cluster)
    except InvariantViolation as violation:
        failure = str(violation)
        cluster.trace_line(f"VIOLATION: {failure}")
    return SeedResult(
        seed=seed,
        failure=failure,
        size=len(cluster.nodes),
        converged_s=converged_s,
        virtual_s=cluster.now_s,
        num_views=len(cluster.checker.views),
        num_messages=cluster.num_messages,
    )


def _wait_converged(cluster: SimulatedCluster) -> float:
    """Run until the cluster has converged and return how long that took."""
    start_s = converged_at_s = cluster.now_s
    num_installs = -1
    while cluster.now_s < converged_at_s + STABLE_S:
        why = cluster.convergence_problem()
        if why is not None or cluster.checker.num_installs != num_installs:
            num_installs = cluster.checker.num_installs
            converged_at_s = cluster.now_s
        if cluster.now_s > start_s + CONVERGE_S:
            raise InvariantViolation(
                f"not converged {CONVERGE_S:g} s after the last fault: {why}"
            )
        cluster.run(cluster.now_s + DIAL_S)
    return max(0.0, converged_at_s - start_s)
