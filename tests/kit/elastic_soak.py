"""Trains for long while members are killed, and watches the one that never is."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from tests.kit.elastic_world import Report, World

SIZE = 4
PAUSE_S = 0.01
"""Time of a quantum, beside its computation."""
FLAT_S = 60.0
"""How long threads and descriptors of a view that is over may take to go."""
NAMES = ("rss", "descriptors", "threads")


@dataclass(slots=True)
class Soak:
    """One world that is killed in again and again."""

    world: World
    seed: int
    kills: int = 0
    step_s: float = 0.0
    """Mean time of a step before the first kill."""
    usages: list[Report] = field(default_factory=list)
    """Of the member that is never killed, before every kill."""

    def begin(self, quiet_s: float) -> None:
        """Start all members, and measure steps without failures for some time."""
        world = self.world
        for index in range(world.size):
            world.start(index, joins=False)
        world.wait_complete()
        self._settle()
        self.follow(min(2.0, quiet_s))
        before, began_s = self.version, self.stepped_s
        self.follow(quiet_s)
        self.step_s = (self.stepped_s - began_s) / max(1, self.version - before)

    @property
    def version(self) -> int:
        """Steps that the member which is never killed has applied."""
        return self.world.alive[0].version

    @property
    def stepped_s(self) -> float:
        """When it applied the last one."""
        return self.world.alive[0].stepped_s

    def follow(self, seconds: float) -> None:
        """Handle reports for some time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.world.handle(min(left_s, 0.1))

    def kill_one(self) -> None:
        """Kill any but the first member, and start it again at once."""
        world = self.world
        world.wait_complete()
        self.usages.append(self.usage())
        index = random.Random(self.seed + self.kills).randrange(1, world.size)
        killed_s = world.kill(world.alive[index])
        self.kills += 1
        world.wait_for_step(
            killed_s, [*world.alive.values()], without=[world.nodes[index]]
        )
        world.start(index, joins=True)
        self._settle()

    def usage(self) -> Report:
        """Ask the member that is never killed what it uses."""
        return self.world.ask(self.world.alive[0], "usage")

    def thirds(self, name: str) -> tuple[float, float]:
        """Return the median in the first third of the usages, and in the last."""
        values = [float(usage[name]) for usage in self.usages]
        part = max(1, len(values) // 3)
        return statistics.median(values[:part]), statistics.median(values[-part:])

    def _settle(self) -> None:
        for member in self.world.alive.values():
            member.tell(pause_s=PAUSE_S)
