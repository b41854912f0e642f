"""Kills members of an elastic run at named points and brings them back."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator

from tests.kit.elastic_tally import Tally
from tests.kit.elastic_world import Member, World

STEP_POINTS = (
    *("any", "compute", "rs:0", "rs:1", "ag:sideband", "ag:0", "ag:1"),
    *("held", "applying"),
)
VIEW_POINTS = ("prepare", "status", "install")
GATHER_POINTS = ("gather:0", "gather:1", "gather:2")
LIVE_POINTS = ("join:hand", "join:log")
"""Points of a newcomer that follows the run before it is a member, and of its sources.
Such a small state is copied otherwise."""
REACH_S = 60.0
"""How long an armed point may take until it is reached."""
PAUSE_S = 0.002
"""Time of a quantum, beside its computation."""

Case = tuple[str, str]
"""A named point and a role."""


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

    def kill_once(self, case: Case) -> None:
        """Carry out one case: a point and a role; then bring all back.

        The gap of the kill ends when each survivor has applied a step of a view that
        the dead are no members of: a step that was on its way does not count.
        """
        lives = list(self._world.alive.values())
        step_s = self._median_step()
        victim = self._carry_out(*case)
        name = "/".join(case)
        if victim is None:
            self._tally.not_reached[name] = self._tally.not_reached.get(name, 0) + 1
        else:
            survivors = [m for m in lives if m.is_alive]
            after_s = self._wait_for_survivors(victim.died_s, survivors)
            self._tally.note_kill(name, after_s - victim.died_s, step_s)
        self.refill()

    def _carry_out(self, point: str, role: str) -> Member | None:
        """Return the member that has died at the point, in the role."""
        if role == "joiner":
            return self._kill_joiner(point)
        if point in VIEW_POINTS:
            return self._kill_in_view_change(point, role)
        if point in GATHER_POINTS:
            return self._kill_in_gather(point, role)
        if point.startswith("join:"):
            return self._kill_source(point)
        return self._kill_in_step(point, role)

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
        self._tally.steps_s += [round(step_s, 5) for step_s in steps]
        return statistics.median(steps)

    # -- who -------------------------------------------------------------------------

    def _ring(self) -> list[Member]:
        """Return the living members in ring order; the first one is the leader.

        On a busy machine one may have been thought dead: it comes back first.
        """
        lives = list(self._world.alive.values())
        nodes = {self._node(member) for member in lives}
        self._world.wait(
            lambda: all(nodes <= set(m.members) for m in lives),
            REACH_S,
            "all living members in one view",
        )
        return sorted(lives, key=lambda m: lives[0].members.index(self._node(m)))

    def _node(self, member: Member) -> str:
        return self._world.nodes[member.index]

    # -- kills -----------------------------------------------------------------------

    def _kill_in_step(self, point: str, role: str) -> Member | None:
        leader, *others = self._ring()
        victim = leader if role == "leader" else self._random.choice(others)
        if point == "any":
            time.sleep(self._random.uniform(0, 0.03))
            self._world.kill(victim)
            return victim
        if point == "publish":
            victim = leader if role == "leader" else others[0]  # the two that write
            victim.tell(saves=True)
        victim.tell(arm=point)
        return self._reached(victim)

    def _kill_in_view_change(self, point: str, role: str) -> Member | None:
        """Kill one member, and a second one in the view change that follows.

        The second one is the leader, which proposes the view; or, as the leader was the
        first one, its successor in that; or another.
        """
        leader, *others = self._ring()
        if role == "leader":
            first, second = self._random.choice(others), leader
        elif role == "proposer":
            first, second = leader, others[0]
        else:
            first, second = self._random.choice([leader, *others[:-1]]), others[-1]
        self._arm(second, point)
        self._kill_first(first)
        return self._reached(second)

    def _kill_in_gather(self, point: str, role: str) -> Member | None:
        """Kill while a member that is late gets the result that another delivered.

        The late one holds a result and waits; when another has delivered the result, a
        third member is killed, so that the view change finds different versions.
        """
        world = self._world
        late, first, source = self._random.sample([*world.alive.values()], 3)
        dying = late if role == "late" else source
        if dying is source:
            self._arm(source, point)
        self._let_wait(late, "held", then=point if dying is late else "")
        world.wait(
            lambda: source.version > late.version, REACH_S, "a result of the others"
        )
        self._kill_first(first)
        return self._reached(dying)

    def _kill_joiner(self, point: str) -> Member | None:
        """Kill one member; then the one that replaces it."""
        index = self._kill_before_join().index
        newcomer = self._start_newcomer(index, point, kill_at=point)
        return self._reached(newcomer)

    def _kill_source(self, point: str) -> Member | None:
        """Kill one member; then the one from which its replacement gets the state."""
        index = self._kill_before_join().index
        dying = self._ring()[0]
        self._arm(dying, point)
        self._start_newcomer(index, point)
        return self._reached(dying)

    def _start_newcomer(self, index: int, point: str, kill_at: str = "") -> Member:
        variables = {"LIVE_BYTES": "0"} if point in LIVE_POINTS else {}
        return self._world.start(index, joins=True, kill_at=kill_at, **variables)

    def _kill_before_join(self) -> Member:
        victim = self._random.choice(self._ring()[1:])
        self._kill_first(victim)
        self._wait_for_survivors(victim.died_s, [*self._world.alive.values()])
        return victim

    def _kill_first(self, victim: Member) -> None:
        """Kill a member whose gap is not measured, since another kill follows."""
        self._world.kill(victim)
        self._tally.note_kill("any/first of two")

    # -- waiting ---------------------------------------------------------------------

    def _arm(self, member: Member, point: str) -> None:
        """Arm a point, or none, and wait until that is so, or the member has died."""
        member.replies.pop("armed", None)
        member.tell(arm=point)
        self._world.wait(
            lambda: "armed" in member.replies or not member.is_alive,
            REACH_S,
            "the armed point",
        )

    def _let_wait(self, member: Member, point: str, then: str = "") -> None:
        """Let a member wait at a point until a view is installed."""
        member.replies.pop("waits", None)
        member.tell(wait_at=point, then=then)
        self._world.wait(lambda: "waits" in member.replies, REACH_S, "a late member")

    def _reached(self, victim: Member) -> Member | None:
        """Return the victim once it has killed itself; None if it does not."""
        if self._world.wait_for_death(victim, REACH_S):
            return victim
        self._arm(victim, "")
        return None if victim.is_alive else victim

    def _wait_for_survivors(self, after_s: float, survivors: list[Member]) -> float:
        world = self._world
        gone = set(range(world.size)) - world.alive.keys()
        without = [world.nodes[index] for index in gone]
        return world.wait_for_step(after_s, survivors, without=without)


def matrix(size: int) -> list[Case]:
    """Return all points with all roles that worlds of a size can survive."""
    found = [(p, r) for p in (*STEP_POINTS, "publish") for r in ("leader", "other")]
    found += [(p, "joiner") for p in (*VIEW_POINTS, *LIVE_POINTS, "join:pull")]
    if size > 2:
        roles = ("leader", "proposer", "other")
        found += [(p, r) for p in VIEW_POINTS for r in roles]
        found += [(p, r) for p in GATHER_POINTS for r in ("late", "source")]
        found += [(p, "source") for p in (*LIVE_POINTS, "join:pull")]
    return found


def cases(size: int, seed: int) -> Iterator[Case]:
    """Yield points and roles for ever, each as often as the others."""
    shuffled = random.Random(seed)
    while True:
        turn = matrix(size)
        shuffled.shuffle(turn)
        yield from turn
