"""What goes wrong in one seed: a plan of faults, drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ringleader.membership.events import Refresh
from ringleader.simulation.membership.link_conditions import Weather, draw
from ringleader.simulation.membership.simulated_cluster import World
from ringleader.simulation.membership.simulated_node import Node


def plan(world: World, rng: Random, over_s: float) -> None:
    """Start the nodes, and schedule faults until ``over_s``; there all of them end."""
    world.closes_dead_links = rng.random() < 0.7
    world.weather = draw(rng)
    for node in world.nodes:
        node.clock_start_s = rng.choice((0.0, rng.uniform(0, 1e6)))
        node.clock_rate = rng.uniform(0.999, 1.001)
        first_s = rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, over_s)))
        world.after(first_s, world.start, node, started(world, rng))
    for _ in range(rng.randrange(1, 11)):
        fault = rng.choice(FAULTS)
        world.after(rng.uniform(0.2, over_s), fault, world, rng, over_s)
    world.after(over_s, calm, world, rng)


def started(world: World, rng: Random) -> int:
    """What a node believes to be the time: mostly right, sometimes absurd."""
    now_ms = int(world.now_s * 1000)
    return rng.choice((now_ms, now_ms, now_ms, 0, -(10**12), rng.randrange(10**15)))


def calm(world: World, rng: Random) -> None:
    """The end of all faults; now and then some pairs stay out of reach for good."""
    world.say("faults end")
    world.weather = Weather(delay_s=rng.uniform(0.0001, 0.02))
    world.heal()
    if rng.random() < 0.15:
        for _ in range(rng.randrange(1, 4)):
            a, b = rng.sample(world.nodes, 2)
            world.say(f"{a.key[:3]} and {b.key[:3]} stay apart")
            world.block(a, b, one_way=rng.random() < 0.3)
    for node in world.nodes:
        world.resume(node)


def _some(world: World, rng: Random) -> Node:
    """Any node, the leader more often than the others."""
    leaders = [n for n in world.nodes if n.installed and n.installed.leader == n.key]
    if leaders and rng.random() < 0.4:
        return rng.choice(leaders)
    return rng.choice(world.nodes)


def _length(world: World, rng: Random, over_s: float) -> float:
    left_s = over_s - world.now_s
    return min(left_s, rng.choice((0.1, 0.5, 2.0, 5.0)) * rng.uniform(0.5, 1.5))


def _crash(world: World, rng: Random, over_s: float) -> None:
    node = _some(world, rng)
    world.kill(node, silent=rng.random() < 0.5)
    if rng.random() < 0.6:
        wait_s = _length(world, rng, over_s)
        world.after(wait_s, world.start, node, started(world, rng))


def _leave(world: World, rng: Random, over_s: float) -> None:
    node = _some(world, rng)
    world.leave(node)
    if rng.random() < 0.5:
        wait_s = _length(world, rng, over_s)
        world.after(wait_s, world.start, node, started(world, rng))


def _pause(world: World, rng: Random, over_s: float) -> None:
    node = _some(world, rng)
    world.pause(node)
    world.after(_length(world, rng, over_s), world.resume, node)


def _partition(world: World, rng: Random, over_s: float) -> None:
    groups: list[list[Node]] = [[], [], []]
    for node in world.nodes:
        groups[rng.randrange(rng.choice((2, 3)))].append(node)
    world.say(f"partition {[[n.key[:3] for n in g] for g in groups]}")
    _mend_later(world, rng, over_s, world.split(*groups))


def _isolate(world: World, rng: Random, over_s: float) -> None:
    """A node that is not heard, or does not hear, or both."""
    node = _some(world, rng)
    way = rng.randrange(3)
    world.say(f"isolated {node.key[:3]}: {('deaf', 'mute', 'cut off')[way]}")
    ways = set()
    for other in world.nodes:
        if way != 0 and other is not node:
            ways |= world.block(node, other, one_way=True)
        if way != 1 and other is not node:
            ways |= world.block(other, node, one_way=True)
    _mend_later(world, rng, over_s, ways)


def _part_pair(world: World, rng: Random, over_s: float) -> None:
    a, b = rng.sample(world.nodes, 2)
    world.say(f"{a.key[:3]} and {b.key[:3]} are apart")
    ways = world.block(a, b, one_way=rng.random() < 0.5)
    _mend_later(world, rng, over_s, ways)


def _mend_later(
    world: World, rng: Random, over_s: float, ways: set[tuple[int, int]]
) -> None:
    world.after(_length(world, rng, over_s), world.unblock, ways)


def _break_link(world: World, rng: Random, over_s: float) -> None:
    a, b = rng.sample(world.nodes, 2)
    world.say(f"the link of {a.key[:3]} and {b.key[:3]} breaks")
    world.cut(a, b)


def _change_weather(world: World, rng: Random, over_s: float) -> None:
    world.weather = draw(rng)
    world.say(f"{world.weather}")


def _copy(world: World, rng: Random, over_s: float) -> None:
    node = _some(world, rng)
    world.start(world.copy_key(node), started(world, rng))


def _refresh(world: World, rng: Random, over_s: float) -> None:
    node = _some(world, rng)
    if node.is_running:
        world.renew(node)
        world.step(node, Refresh())


Fault = Callable[[World, Random, float], None]

FAULTS: tuple[Fault, ...] = (
    _crash,
    _crash,
    _leave,
    _pause,
    _pause,
    _partition,
    _partition,
    _isolate,
    _part_pair,
    _break_link,
    _change_weather,
    _copy,
    _refresh,
)
"""What can happen; listed twice: happens more often."""
