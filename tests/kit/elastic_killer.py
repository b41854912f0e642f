"""Kills members of an elastic run at named points and brings them back."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.kit.elastic_world import Member, World

STEP_POINTS = ("compute", "rs:0", "rs:1", "ag:0", "ag:1", "held", "applying")
VIEW_POINTS = ("prepare", "status", "install")
GATHER_POINTS = ("gather:0", "gather:2")
REACH_S = 3.0
"""How long an armed point may take until it is reached."""
PAUSE_S = 0.002
"""Time of a quantum, beside its computation."""


@dataclass(slots=True)
class Tally:
    """What was done and measured."""

    kills: Counter[str] = field(default_factory=Counter)
    """By point and role."""
    gaps_s: list[float] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)
    silent_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_reached: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    samples: int = 0
    largest_difference: float = 0.0
    steps_s: list[float] = field(default_factory=list)

    @property
    def num_kills(self) -> int:
        """All kills."""
        return sum(self.kills.values())


class Killer:
    """Kills members of one world and brings them back."""

    def __init__(self, world: World, tally: Tally, seed: int) -> None:
        self._world = world
        self._tally = tally
        self._random = random.Random(seed)

    def begin(self) -> None:
        """Start all members."""
        world = self._world
        for index in range(world.size):
            world.start(index, joins=False)
        world.wait_complete()
        self._settle()

    def _settle(self) -> None:
        for member in self._world.alive.values():
            member.tell(pause_s=PAUSE_S)

    def _role(self, role: str) -> Member:
        """Return a living member: the leader, or one of the others."""
        lives = list(self._world.alive.values())
        first = self._world.nodes.index(lives[0].members[0])
        leader = self._world.alive.get(first, lives[0])
        if role == "leader" or len(lives) == 1:
            return leader
        return self._random.choice([m for m in lives if m is not leader])

    def kill_once(self, case: tuple[str, str]) -> None:
        """Carry out one case: a point and a role; then bring all back."""
        point, role = case
        lives = list(self._world.alive.values())
        step_s = self._median_step()
        if point in VIEW_POINTS:
            killed_s = self._kill_in_view_change(point, role)
        elif point in GATHER_POINTS:
            killed_s = self._kill_in_gather(point, role)
        elif point == "join:pull":
            killed_s = self._kill_in_join(role)
        else:
            killed_s = self._kill_in_step(point, role)
        if killed_s is not None:
            survivors = [m for m in lives if m.is_alive]
            after_s = self._world.wait_for_step(killed_s, survivors)
            self._tally.gaps_s.append(after_s - killed_s)
            self._tally.overheads_s.append(max(0.0, after_s - killed_s - step_s))
        self.refill()

    def refill(self) -> None:
        """Start the machines that are gone, and wait until all train together."""
        world = self._world
        for index in set(range(world.size)) - world.alive.keys():
            world.start(index, joins=True)
        world.wait_complete()
        self._settle()

    def _median_step(self) -> float:
        """Measure five steps without a failure."""
        world = self._world
        member = next(iter(world.alive.values()))
        moments = [member.stepped_s]
        for _ in range(5):
            world.wait_for_step(moments[-1], [member])
            moments.append(member.stepped_s)
        steps = [b - a for a, b in itertools.pairwise(moments)]
        self._tally.steps_s += steps
        return statistics.median(steps)

    def _kill_in_step(self, point: str, role: str) -> float | None:
        victim = self._role(role)
        if point == "any":
            time.sleep(self._random.uniform(0, 0.03))
            self._tally.kills[f"{point}/{role}"] += 1
            return self._world.kill(victim)
        return self._await(victim, point, role)

    def _await(self, victim: Member, point: str, role: str) -> float | None:
        victim.tell(arm=point)
        if not self._world.wait_for_death(victim, REACH_S):
            self._tally.not_reached[f"{point}/{role}"] += 1
            victim.tell(arm="")
            return None
        self._tally.kills[f"{point}/{role}"] += 1
        return victim.died_s

    def _kill_in_view_change(self, point: str, role: str) -> float | None:
        """Kill one member, and a second one in the view change that follows."""
        second = self._role(role)
        others = [m for m in self._world.alive.values() if m is not second]
        first = self._random.choice(others)
        second.tell(arm=point)
        self._world.wait(lambda: "armed" in second.replies, 10, "the armed point")
        second.replies.pop("armed")
        self._tally.kills["any/first of two"] += 1
        killed_s = self._world.kill(first)
        if not self._world.wait_for_death(second, REACH_S):
            self._tally.not_reached[f"{point}/{role}"] += 1
            second.tell(arm="")
            return killed_s
        self._tally.kills[f"{point}/{role}"] += 1
        return second.died_s

    def _kill_in_gather(self, point: str, role: str) -> float | None:
        """Kill while a member that is late gets the result that another delivered.

        The late one sleeps between holding and delivering; meanwhile a third member is
        killed, so that the view change finds different versions.
        """
        late, first, source = self._random.sample([*self._world.alive.values()], 3)
        dying = late if role == "late" else source
        late.tell(sleep_at="held", then=point if dying is late else "")
        if dying is source:
            source.tell(arm=point)
            self._world.wait(lambda: "armed" in source.replies, 10, "the armed point")
        self._world.wait(lambda: "asleep" in late.replies, 10, "a late member")
        late.replies.pop("asleep")
        self._world.handle(0.1)
        self._tally.kills["any/first of two"] += 1
        killed_s = self._world.kill(first)
        if not self._world.wait_for_death(dying, REACH_S):
            self._tally.not_reached[f"{point}/{role}"] += 1
            dying.tell(arm="")
            return killed_s
        self._tally.kills[f"{point}/{role}"] += 1
        return dying.died_s

    def _kill_in_join(self, role: str) -> float | None:
        """Kill one member; then the one that replaces it, or its source."""
        victim = self._role("other")
        self._tally.kills["any/before a join"] += 1
        killed_s = self._world.kill(victim)
        lives = list(self._world.alive.values())
        self._world.wait_for_step(killed_s, lives)
        if role == "source":
            dying = self._role("leader")
            dying.tell(arm="join:pull")
            self._world.start(victim.index, joins=True)
        else:
            dying = self._world.start(victim.index, joins=True, kill_at="join:pull")
        if not self._world.wait_for_death(dying, 10.0):
            self._tally.not_reached[f"join:pull/{role}"] += 1
            dying.tell(arm="")
            return None
        self._tally.kills[f"join:pull/{role}"] += 1
        return dying.died_s


def cases(size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield points and roles for ever, each as often as the others."""
    step = [(p, r) for p in ("any", *STEP_POINTS) for r in ("leader", "other")]
    view = [(p, r) for p in VIEW_POINTS for r in ("leader", "other")]
    view += [(p, r) for p in GATHER_POINTS for r in ("late", "source")]
    join = [("join:pull", "joiner"), *([("join:pull", "source")] * (size > 2))]
    shuffled = random.Random(seed)
    while True:
        turn = [*step, *(view if size > 2 else ()), *join]
        shuffled.shuffle(turn)
        yield from turn
