"""Draws the faults of one seed at random and schedules them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ringleader.membership.events import RefreshView
from ringleader.simulation.membership.link_conditions import (
    LinkConditions,
    random_conditions,
)
from ringleader.simulation.membership.simulated_cluster import SimulatedCluster
from ringleader.simulation.membership.simulated_node import SimulatedNode


def schedule_faults(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    """Start the nodes and schedule faults, all of which end at ``over_s``."""
    cluster.closes_dead_links = rng.random() < 0.7
    cluster.conditions = random_conditions(rng)
    for node in cluster.nodes:
        node.clock_start_s = rng.choice((0.0, rng.uniform(0, 1e6)))
        node.clock_rate = rng.uniform(0.999, 1.001)
        first_s = rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, over_s)))
        cluster.after(first_s, cluster.start, node, random_start_ms(cluster, rng))
    for _ in range(rng.randrange(1, 11)):
        fault = rng.choice(FAULTS)
        cluster.after(rng.uniform(0.2, over_s), fault, cluster, rng, over_s)
    cluster.after(over_s, end_faults, cluster, rng)


def random_start_ms(cluster: SimulatedCluster, rng: Random) -> int:
    """Start time that a node reports: mostly correct, sometimes absurd."""
    now_ms = int(cluster.now_s * 1000)
    return rng.choice((now_ms, now_ms, now_ms, 0, -(10**12), rng.randrange(10**15)))


def end_faults(cluster: SimulatedCluster, rng: Random) -> None:
    """End all faults; in some seeds a few pairs remain unreachable for good."""
    cluster.trace_line("faults end")
    cluster.conditions = LinkConditions(delay_s=rng.uniform(0.0001, 0.02))
    cluster.heal()
    if rng.random() < 0.15:
        for _ in range(rng.randrange(1, 4)):
            a, b = rng.sample(cluster.nodes, 2)
            cluster.trace_line(f"{a.key[:3]} and {b.key[:3]} remain separated")
            cluster.block(a, b, one_way=rng.random() < 0.3)
    for node in cluster.nodes:
        cluster.resume(node)


def _pick_node(cluster: SimulatedCluster, rng: Random) -> SimulatedNode:
    """Pick a node at random, leaders more often than others."""
    leaders = [n for n in cluster.nodes if n.installed and n.installed.leader == n.key]
    if leaders and rng.random() < 0.4:
        return rng.choice(leaders)
    return rng.choice(cluster.nodes)


def _fault_duration(cluster: SimulatedCluster, rng: Random, over_s: float) -> float:
    left_s = over_s - cluster.now_s
    return min(left_s, rng.choice((0.1, 0.5, 2.0, 5.0)) * rng.uniform(0.5, 1.5))


def _crash(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    node = _pick_node(cluster, rng)
    cluster.kill(node, silent=rng.random() < 0.5)
    if rng.random() < 0.6:
        wait_s = _fault_duration(cluster, rng, over_s)
        cluster.after(wait_s, cluster.start, node, random_start_ms(cluster, rng))


def _leave(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    node = _pick_node(cluster, rng)
    cluster.leave(node)
    if rng.random() < 0.5:
        wait_s = _fault_duration(cluster, rng, over_s)
        cluster.after(wait_s, cluster.start, node, random_start_ms(cluster, rng))


def _pause(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    node = _pick_node(cluster, rng)
    cluster.pause(node)
    cluster.after(_fault_duration(cluster, rng, over_s), cluster.resume, node)


def _partition(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    groups: list[list[SimulatedNode]] = [[], [], []]
    for node in cluster.nodes:
        groups[rng.randrange(rng.choice((2, 3)))].append(node)
    cluster.trace_line(f"partition {[[n.key[:3] for n in g] for g in groups]}")
    _unblock_later(cluster, rng, over_s, cluster.split(*groups))


def _isolate(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    """Drop what a node sends, or what it would receive, or both."""
    node = _pick_node(cluster, rng)
    way = rng.randrange(3)
    cluster.trace_line(f"isolated {node.key[:3]}: {('deaf', 'mute', 'cut off')[way]}")
    ways = set()
    for other in cluster.nodes:
        if way != 0 and other is not node:
            ways |= cluster.block(node, other, one_way=True)
        if way != 1 and other is not node:
            ways |= cluster.block(other, node, one_way=True)
    _unblock_later(cluster, rng, over_s, ways)


def _separate_pair(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    a, b = rng.sample(cluster.nodes, 2)
    cluster.trace_line(f"{a.key[:3]} and {b.key[:3]} are separated")
    ways = cluster.block(a, b, one_way=rng.random() < 0.5)
    _unblock_later(cluster, rng, over_s, ways)


def _unblock_later(
    cluster: SimulatedCluster, rng: Random, over_s: float, ways: set[tuple[int, int]]
) -> None:
    cluster.after(_fault_duration(cluster, rng, over_s), cluster.unblock, ways)


def _break_link(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    a, b = rng.sample(cluster.nodes, 2)
    cluster.trace_line(f"the link of {a.key[:3]} and {b.key[:3]} breaks")
    cluster.cut(a, b)


def _change_conditions(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    cluster.conditions = random_conditions(rng)
    cluster.trace_line(f"{cluster.conditions}")


def _copy(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    node = _pick_node(cluster, rng)
    cluster.start(cluster.copy_key(node), random_start_ms(cluster, rng))


def _refresh(cluster: SimulatedCluster, rng: Random, over_s: float) -> None:
    node = _pick_node(cluster, rng)
    if node.is_running:
        cluster.renew_payload(node)
        cluster.step(node, RefreshView())


Fault = Callable[[SimulatedCluster, Random, float], None]

FAULTS: tuple[Fault, ...] = (
    _crash,
    _crash,
    _leave,
    _pause,
    _pause,
    _partition,
    _partition,
    _isolate,
    _separate_pair,
    _break_link,
    _change_conditions,
    _copy,
    _refresh,
)
"""Faults to choose from; those listed twice happen more often."""
