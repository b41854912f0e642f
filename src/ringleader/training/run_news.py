"""RunNews: tells the person at a machine who trains, and how the work is divided."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from ringleader.collectives.cost_model import Network
from ringleader.ids import NodeId, short
from ringleader.training.data.balance import NEW, Balance
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.efficiency import Traffic, plan_text

PLAN_EVERY_S: Final = 30.0
"""A plan of the same machines is not shown more often, and each time it is, the next
one waits twice as long: by then people know that the speeds go up and down."""
MOVED: Final = 0.1
"""Share of a step that must have moved to other machines for the plan to be news."""


def tell(text: str) -> None:
    """Print to standard error: standard output belongs to the script."""
    print(f"ringleader: {text}", file=sys.stderr, flush=True)  # noqa: T201


class RunNews:
    """What the user at this machine reads of a run. Only the user's thread calls it."""

    def __init__(
        self,
        spec: DataSpec,
        traffic: Traffic,
        show: Callable[[str], None] = tell,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._traffic = traffic
        self._show = show
        self._now_s = now_s
        self._names: dict[NodeId, str] = {}
        self._is_completing = False
        self._leader: NodeId | None = None
        """The machine that was named as the one that goes on."""
        self._shown: tuple[tuple[NodeId, int], ...] = ()
        self._shown_s = -inf
        self._pause_s = PLAN_EVERY_S

    def entered(self, names: Mapping[NodeId, str], version: int) -> None:
        """Say who left and who joined. ``names`` are the machines from now on."""
        left = [name for node, name in self._names.items() if node not in names]
        came = [name for node, name in names.items() if node not in self._names]
        is_first = not self._names
        self._names = dict(names)
        who = _machines(list(names.values()))
        if is_first:
            self._show(f"step {version + 1} begins on {who}")
        elif left or came:
            parts = [f"{_listed(left)} left the run"] if left else []
            parts += [f"{_listed(came)} joined"] if came else []
            self._show(f"{' and '.join(parts)}; step {version + 1} goes on on {who}")
        self._is_completing = self._is_completing or bool(left and not is_first)

    def no_witness(self, leader: NodeId) -> None:
        """Say what ``partition="majority"`` means for two machines, if that is new."""
        if leader == self._leader:
            return
        self._leader = leader
        first = self._names[leader]
        other = next(name for node, name in self._names.items() if node != leader)
        self._show(
            f'partition="majority" with two machines: if they lose each other, {first} '
            f"goes on and {other} waits for it, also if {first} has lost its power"
        )

    def show(self, text: str) -> None:
        """Say something that is said once."""
        self._show(text)

    def recovered(self, version: int) -> None:
        """Say that the run goes on from a checkpoint."""
        self._show(
            f"no machine has a complete state; going on from the newest checkpoint "
            f"here, of step {version}"
        )

    def came_too_late(self) -> None:
        """Say that nothing is left to do."""
        self._show("the other machines have finished this run; nothing is left to do")

    def delivered(self, version: int, contributors: Sequence[NodeId]) -> None:
        """Say that the step in which a machine was lost is complete."""
        if self._is_completing:
            self._is_completing = False
            by = [self._names.get(node, short(node)) for node in contributors]
            self._show(f"step {version} is complete, computed by {_listed(by)}")

    def plan(self, balance: Balance, network: Network) -> None:
        """Show how the work is divided, if that was measured well and is news."""
        members = [node for node, _ in balance.quotas]
        if members != list(self._names) or not _is_measured(balance):
            return
        if [node for node, _ in self._shown] != members:
            self._pause_s = PLAN_EVERY_S
        elif self._now_s() - self._shown_s < self._pause_s or not _is_news(
            dict(self._shown), dict(balance.quotas)
        ):
            return
        else:
            self._pause_s *= 2
        self._shown, self._shown_s = balance.quotas, self._now_s()
        reduce_s = self._traffic.reduce_s(network, members)
        self._show(plan_text(self._spec, balance, reduce_s, self._names, self._traffic))


def _is_news(before: Mapping[NodeId, int], now: Mapping[NodeId, int]) -> bool:
    """Return whether a machine does half or twice what it did, and that is much work.

    A few samples more here and less there change nothing that somebody would do.
    """
    pairs = [(before[node], count) for node, count in now.items()]
    moved = sum(max(0, new - old) for old, new in pairs)
    is_much = moved >= MOVED * sum(now.values())
    return is_much and any(2 * min(pair) <= max(pair) for pair in pairs)


def _is_measured(balance: Balance) -> bool:
    speeds = dict(balance.speeds)
    working = [node for node, count in balance.quotas if count]
    return all(n in speeds and len(speeds[n].recent_s) >= NEW for n in working)


def _machines(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} alone"
    return f"{len(names)} machines: {', '.join(names)}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names or ["nobody"]
    return f"{', '.join(first)} and {last}" if first else last
