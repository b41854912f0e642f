"""Splits the network of an elastic run, heals it, and checks which history goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ringleader.simulation.lan import VirtualLan
from tests.kit.elastic_world import Failed, Member, World

SHAPES = {
    "2|2": ((0, 1), (2, 3)),
    "3|1": ((0, 1, 2), (3,)),
    "1|1": ((0,), (1,)),
}
FAST_S, SLOW_S = 0.002, 0.008
"""Time of a quantum in the part that does more, and in the other."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one split has shown."""

    both_go_on_s: float
    """From the cut until every machine has taken a step without the other part."""
    one_run_s: float
    """From the mend until every machine has taken a step with all others."""


def split_and_heal(
    world: World,
    net: VirtualLan,
    parts: Sequence[Sequence[int]],
    apart_s: float,
    *,
    fast: int,
) -> Split:
    """Cut, wait, mend; ``fast`` is the part that does more. Raises ``Failed``."""
    world.wait_complete()
    for number, part in enumerate(parts):
        for index in part:
            world.alive[index].tell(pause_s=FAST_S if number == fast else SLOW_S)
    cut_s = time.monotonic()
    net.partition(parts)
    world.is_split = True
    _wait_for_parts(world, parts)
    both_s = max(m.stepped_s for m in world.alive.values())
    first = min(_version(world, part) for part in parts)
    while time.monotonic() < both_s + apart_s:
        world.handle(0.05)
    mend_s = time.monotonic()
    net.heal()
    versions = [_version(world, part) for part in parts]
    world.wait_complete()
    healed_s = max(m.stepped_s for m in world.alive.values())
    together = {m.version for m in world.alive.values()}
    if min(together) < max(versions):
        raise Failed(f"versions {together} after {versions} in the parts")
    _check_winner(world, parts, versions, first)
    world.check_ledger()
    world.is_split, world.weights = False, {}
    return Split(both_s - cut_s, healed_s - mend_s)


def _wait_for_parts(world: World, parts: Sequence[Sequence[int]]) -> None:
    def is_apart() -> bool:
        return all(
            len(world.alive[index].members) == len(part)
            for part in parts
            for index in part
        )

    world.wait(is_apart, 120.0, "every part trains by itself")


def _version(world: World, part: Sequence[int]) -> int:
    return max(world.alive[index].version for index in part)


def _check_winner(
    world: World, parts: Sequence[Sequence[int]], versions: list[int], first: int
) -> None:
    """Check that the split's samples were computed by the part that did more."""
    if abs(versions[0] - versions[1]) <= min(versions) - first:
        return  # too close: steps that were delivered after the mend may decide
    winner = parts[versions.index(max(versions))]
    nodes = {world.nodes[index] for index in winner}
    member: Member = next(iter(world.alive.values()))
    for version, node, *_ in world.ask(member, "ledger")["entries"]:
        if first + 1 < version <= min(versions) and node not in nodes:
            raise Failed(f"the ledger has {node} of the other part at {version}")
