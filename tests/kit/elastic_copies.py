"""Faults while members of an elastic run copy the state, and what has to go on then.

A machine falls behind (it is stopped, or its cable is cut), returns with a complete
state that is not the newest, and copies that of the others; or a newcomer does. In the
middle of the copy something is lost. Whoever had a complete state must train on.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ringleader.simulation.lan import VirtualLan
from tests.kit.elastic_world import Member, World

REACH_S = 200.0
"""How long a fault may take to happen, and what follows it to end. A machine that falls
silent again and again waits for up to 64 s until it is a member."""
NUM_POINTS = 20
PAUSE_S = 0.002
SLOW_S = 0.05
"""Time of a quantum, and that of one on a machine that is to fall behind."""

FAULTS = ("source killed", "sources killed", "source stopped", "adopter killed")
CUT = "link cut"
"""Only in namespaces."""
NEWCOMER = ("newcomer killed", "newcomer's source killed")


class Case(NamedTuple):
    """What is lost, and after how many pieces of the copy."""

    fault: str
    piece: int


@dataclass(slots=True)
class Copies:
    """What was seen; ``not_reached`` are copies that ended before the fault."""

    cases: dict[str, int] = field(default_factory=dict)
    not_reached: int = 0
    waits_s: list[float] = field(default_factory=list)
    """From each fault to the next step of all machines that are left."""
    failures: list[str] = field(default_factory=list)
    steps_compared: int = 0

    @property
    def num_faults(self) -> int:
        """Faults in the middle of a copy after which all was well."""
        return sum(self.cases.values())

    def add(self, other: Copies) -> None:
        """Add what another process has seen."""
        for fault, count in other.cases.items():
            self.cases[fault] = self.cases.get(fault, 0) + count
        self.not_reached += other.not_reached
        self.waits_s += other.waits_s
        self.failures += other.failures
        self.steps_compared += other.steps_compared

    def note(self, fault: str, wait_s: float) -> None:
        """Count a case that ended well."""
        self.cases[fault] = self.cases.get(fault, 0) + 1
        self.waits_s.append(round(wait_s, 3))


class CopyFaults:
    """Carries out cases in a world; raises what the world does."""

    def __init__(self, world: World, found: Copies, seed: int) -> None:
        self._world = world
        self._found = found
        self._random = random.Random(seed)
        self._stopped: set[Member] = set()

    def begin(self) -> None:
        """Start the run, with all machines."""
        for index in range(self._world.size):
            self._world.start(index, joins=False)
        self._world.wait_complete()
        self._settle()

    def _settle(self) -> None:
        self._world.is_split, self._world.weights = False, {}
        for member in self._world.alive.values():
            member.tell(pause_s=PAUSE_S)

    def carry_out(self, case: Case) -> None:
        """Carry out a case, and bring all machines together again."""
        if case.fault in NEWCOMER:
            at_s = self._lose_with_newcomer(case)
        else:
            at_s = self._lose_with_member(case)
        world = self._world
        left = [m for m in world.alive.values() if m not in self._stopped]
        if at_s is None:
            self._found.not_reached += 1
        else:
            after_s = world.wait_for_step(at_s, left, REACH_S)
            self._found.note(case.fault, after_s - at_s)
        world.check_ledger(left[0])
        self._bring_back()

    def _bring_back(self) -> None:
        world = self._world
        if world.net is not None:
            world.net.heal()
        for member in self._stopped:
            world.kill(member, signal.SIGCONT)
        self._stopped.clear()
        for member in world.alive.values():
            member.tell(arm="")
        for index in set(range(world.size)) - world.alive.keys():
            world.start(index, joins=True)
        world.wait_complete(REACH_S)
        self._settle()

    # -- a member that is behind -------------------------------------------------------

    def _lose_with_member(self, case: Case) -> float | None:
        """Return when the fault happened; None if it did not."""
        world = self._world
        lives = list(world.alive.values())
        behind = self._random.choice(lives)
        others = [member for member in lives if member is not behind]
        behind.tell(pause_s=SLOW_S)  # alone, it does less than the others
        self._fall_behind(behind, others)
        point = _sent(case.piece, len(others))
        sources = self._random.sample(others, 1 if case.fault != FAULTS[1] else 2)
        match case.fault:
            case "adopter killed":
                behind.tell(arm=f"copy:piece@{case.piece}")
                dying = [behind]
            case "source stopped":
                self._arm(sources, stop_at=point)
                dying = sources
            case "link cut":
                self._arm(sources, hold_at=point)
                dying = sources
            case _:
                self._arm(sources, arm=point)
                dying = sources
        self._return(behind)
        return self._wait_for_fault(case.fault, dying, behind)

    def _fall_behind(self, behind: Member, others: list[Member]) -> None:
        """Silence a member until the others have gone on without it."""
        world = self._world
        world.is_split = True
        since_s = time.monotonic()
        if world.net is None:
            world.kill(behind, signal.SIGSTOP)
        else:
            world.net.cut(behind.index)
        without = [world.nodes[behind.index]]
        world.wait_for_step(since_s, others, REACH_S, without=without)
        first = max(member.version for member in others)
        world.wait(
            lambda: min(m.version for m in others) >= first + 5, REACH_S, "five steps"
        )

    def _return(self, behind: Member) -> None:
        if self._world.net is None:
            self._world.kill(behind, signal.SIGCONT)
        else:
            self._world.net.mend(behind.index)

    def _arm(self, members: list[Member], **command: str) -> None:
        for member in members:
            member.replies.clear()
            member.tell(**command)
        self._world.wait(
            lambda: all("armed" in m.replies or not m.is_alive for m in members),
            REACH_S,
            "the armed points",
        )

    def _wait_for_fault(
        self, fault: str, dying: list[Member], behind: Member
    ) -> float | None:
        """Wait until it has happened, or until the copy has ended before it."""
        world = self._world
        since_s = time.monotonic()
        event = {"source stopped": "stops", CUT: "holds"}.get(fault, "")

        def has_happened() -> bool:
            if event:
                return any(event in member.replies for member in dying)
            return any(not member.is_alive for member in dying)

        def is_over() -> bool:
            has_stepped = behind.first_step_s(since_s) < math.inf
            is_back = has_stepped and len(behind.members) == len(world.alive)
            return is_back or has_happened()

        world.wait(is_over, REACH_S, f"{fault} in a copy")
        if not has_happened():
            return None
        at_s = time.monotonic()
        if fault == CUT and world.net is not None:
            world.net.cut(behind.index)
        if fault == "source stopped":
            self._stopped |= {m for m in dying if "stops" in m.replies}
        if fault == FAULTS[1]:  # the others of the two go on without a copy: end them
            for member in dying:
                world.kill(member)
        return at_s

    # -- a newcomer --------------------------------------------------------------------

    def _lose_with_newcomer(self, case: Case) -> float | None:
        world = self._world
        victim = self._random.choice(list(world.alive.values()))
        world.is_split = True
        world.kill(victim)
        others = list(world.alive.values())
        world.wait_for_step(
            victim.died_s, others, REACH_S, without=[world.nodes[victim.index]]
        )
        if case.fault == "newcomer killed":
            point = f"copy:piece@{case.piece}"
            dying = newcomer = world.start(victim.index, joins=True, kill_at=point)
        else:
            dying = self._random.choice(others)
            self._arm([dying], arm=_sent(case.piece, len(others)))
            newcomer = world.start(victim.index, joins=True)
        world.wait(
            lambda: not dying.is_alive or len(newcomer.members) == world.size,
            REACH_S,
            f"{case.fault} in a copy",
        )
        return None if dying.is_alive else dying.died_s


def _sent(piece: int, num_sources: int) -> str:
    """Return the point at which a source has sent its part of so many pieces."""
    return f"copy:piece@{1 + (piece - 1) // num_sources}"


def cases(size: int, seed: int, net: VirtualLan | None = None) -> Iterator[Case]:
    """Yield faults at all points of the copy for ever, each as often as the others."""
    shuffled = random.Random(seed)
    faults = [f for f in FAULTS if size > 2 or f != FAULTS[1]]
    faults += [CUT] * (net is not None) + [NEWCOMER[0]] + [NEWCOMER[1]] * (size > 2)
    while True:
        turn = [Case(f, piece) for f in faults for piece in range(1, NUM_POINTS + 1)]
        shuffled.shuffle(turn)
        yield from turn
