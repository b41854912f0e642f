"""Adversary: draws the faults of one seed and applies them to a StepWorld."""

from __future__ import annotations

from random import Random

from ringleader.simulation.membership.trace_text import name_of
from ringleader.simulation.steps.node import StepNode
from ringleader.simulation.steps.world import StepWorld
from ringleader.training.data.balance import Flag


class Adversary:
    """Proposals by anybody, partitions, crashes, restarts, loss and duplication.

    The rates differ from seed to seed, so that some seeds make many steps and others
    hardly one between two view changes.
    """

    def __init__(self, world: StepWorld, rng: Random, num_events: int) -> None:
        size = len(world.nodes)
        per_step = 9.0 * size + 10.0
        self.world = world
        self._rng = rng
        self._propose_rate = 1.0 / (per_step * rng.uniform(0.3, 3.0))
        self._cut_rate = rng.choice((0.0, 1.0, 2.0)) / (4.0 * per_step)
        self._next_split = 30 if rng.random() < 0.3 else num_events
        """When the machines are split into parts that form views of their own at once;
        only in some seeds."""
        self._split_times = (15, 40, int(3 * per_step))
        if self._next_split < num_events:
            self._propose_rate /= 8.0
            self._cut_rate = 0.0
        self._crash_rate = rng.choice((0.0, 0.5, 1.0)) / (3.0 * per_step)
        self._restart_rate = rng.choice((0.2, 1.0)) / (3.0 * per_step)
        self._lose_rate = rng.choice((0.0, 0.0, 0.02, 0.1)) / per_step
        self._total_rate = (
            self._propose_rate
            + self._cut_rate
            + self._crash_rate
            + self._restart_rate
            + self._lose_rate
        )
        self._patience = 4 * size
        """So many threads wait before somebody notices that the view is stuck."""
        self._drop_chance = rng.choice((0.05, 0.3))
        self._crashes_left = rng.randint(0, 2 * size)
        self._doomed: list[tuple[int, StepNode, int]] = []
        self._power_cut_at = rng.randrange(num_events) if rng.random() < 0.06 else -1
        for node in world.nodes:
            node.speed = rng.choice((1.0, 1.0, 1.0, 0.15))
            node.quantum_s = rng.choice((0.1, 0.1, 0.25))
            node.flags = rng.choice((Flag(0), Flag(0), Flag(0), Flag.BATTERY))

    def strike(self) -> bool:
        """Perhaps do something bad; return True if it used up this event."""
        world, rng = self.world, self._rng
        self._kill_doomed()
        if world.num_events == self._power_cut_at:
            self._cut_power()
        if world.num_events == self._next_split:
            self._next_split += rng.choice(self._split_times)
            self._split()
            return True
        if world.num_idle > self._patience and not world.pool:
            world.num_idle = 0
            self._propose()
            return True
        draw = rng.random()
        if draw >= self._total_rate:
            return False
        for rate, fault in (
            (self._propose_rate, self._propose),
            (self._cut_rate, self._cut),
            (self._crash_rate, self._crash_any),
            (self._restart_rate, self._restart),
            (self._lose_rate, self._lose),
        ):
            if draw < rate:
                fault()
                return True
            draw -= rate
        return False

    # -- views -------------------------------------------------------------------------

    def _propose(self) -> None:
        """Propose a view, or several at once that compete."""
        for _ in range(1 if self._rng.random() < 0.7 else 2):
            self._propose_one()

    def _propose_one(self) -> None:
        world, rng = self.world, self._rng
        leader = rng.choice(world.living())
        members = [
            node
            for node in world.living()
            if node is leader
            or (self._is_linked(leader, node) and rng.random() > self._drop_chance)
        ]
        world.propose(leader, members)
        if rng.random() < 0.2:  # in the middle of a view change, or of its plan
            self._doom(rng.choice(members), 12 * len(members))

    def _is_linked(self, a: StepNode, b: StepNode) -> bool:
        blocked = self.world.blocked
        return (a.index, b.index) not in blocked and (b.index, a.index) not in blocked

    # -- processes ---------------------------------------------------------------------

    def _doom(self, node: StepNode, within: int) -> None:
        when = self.world.num_events + self._rng.randrange(1, within)
        self._doomed.append((when, node, node.life))
        self._doomed.sort(key=lambda item: item[0])

    def _kill_doomed(self) -> None:
        if self._doomed and self._doomed[0][0] <= self.world.num_events:
            _, node, life = self._doomed.pop(0)
            if node.is_alive and node.life == life:
                self._crash(node)

    def _crash_any(self) -> None:
        self._crash(self._rng.choice(self.world.living()))

    def _crash(self, node: StepNode) -> None:
        if self._crashes_left == 0 or len(self.world.living()) == 1:
            return
        self._crashes_left -= 1
        self.world.crash(node)
        self._attest(node)
        if self._rng.random() < 0.2:
            self._doom(self._rng.choice(self.world.living()), 30)

    def _attest(self, node: StepNode) -> None:
        """Some of the others get the proof that the process has ended."""
        chance = self._rng.choice((0.0, 0.5, 1.0))
        for other in self.world.living():
            if self._rng.random() < chance:
                self.world.attest(node, other)

    def _restart(self) -> None:
        world, rng = self.world, self._rng
        dead = [node for node in world.nodes if not node.is_alive]
        if dead:
            node = rng.choice(dead)
            if node.life >= 0:
                self._attest(node)
            # The others are started by hand, and may begin a run of their own.
            joins = node.life >= 0 and node.index % 2 == 0
            world.start(node, loads_disk=rng.random() < 0.3, joins=joins)

    def _cut_power(self) -> None:
        world = self.world
        world.tell("power cut")
        for node in world.living():
            world.crash(node)
        for node in world.nodes:
            world.start(node, loads_disk=True)

    # -- the network -------------------------------------------------------------------

    def _cut(self) -> None:
        """Change which machines reach which: islands, one-way cuts, or all."""
        world, rng = self.world, self._rng
        indexes = range(len(world.nodes))
        pairs = [(a, b) for a in indexes for b in indexes if a != b]
        kind = rng.random()
        if kind < 0.35:
            world.blocked = set()
        elif kind < 0.75:
            island = [rng.random() < 0.5 for _ in indexes]
            world.blocked = {(a, b) for a, b in pairs if island[a] != island[b]}
        else:
            world.blocked = {pair for pair in pairs if rng.random() < 0.15}
        names = [name_of(n.me) for n in world.living()]
        world.tell(f"of {len(names)} machines, {len(world.blocked)} directions are cut")

    def _split(self) -> None:
        """Split the machines into parts, most of which propose a view of their own.

        Sometimes all know of a process that has just died.
        """
        world, rng = self.world, self._rng
        if rng.random() < 0.2 and len(world.living()) > 2:
            dead = rng.choice(world.living())
            world.crash(dead)
            for node in world.living():
                world.attest(dead, node)
        num_parts = rng.choice((1, 2, 2, 3))
        part = [rng.randrange(num_parts) for _ in world.nodes]
        indexes = range(len(part))
        world.blocked = {(a, b) for a in indexes for b in indexes if part[a] != part[b]}
        for number in range(num_parts):
            island = [node for node in world.living() if part[node.index] == number]
            if island and rng.random() < 0.8:
                world.propose(rng.choice(island), island)

    def _lose(self) -> None:
        """Lose some messages and double others."""
        world, rng = self.world, self._rng
        pool = []
        for envelope in world.pool:
            is_message = envelope[4] != "wake"
            draw = rng.random()
            copies = (0 if draw < 0.2 else 2 if draw < 0.3 else 1) if is_message else 1
            pool += [envelope] * copies
        world.pool = pool
