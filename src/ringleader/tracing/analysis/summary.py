"""The summary of a recording: the parts of its steps, per step and on average."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from ringleader.tracing.analysis.causes import Causes, SlowLink
from ringleader.tracing.analysis.events import Links, Recording
from ringleader.tracing.analysis.parts import Parts, step_parts

WIFI = "Wi-Fi"


@dataclass(frozen=True, slots=True)
class Summary:
    """Where the time went, without the events themselves."""

    steps: dict[int, dict[int, Parts]]
    """rank -> number of the step -> its parts."""
    machines: dict[int, str]
    link_kinds: dict[int, str]
    links: Links
    dropped: dict[int, int]
    """rank -> events that it could not keep."""
    incomplete: tuple[int, ...]
    """Ranks whose trace ends early, because they died or were cut off."""

    def mean_steps(self, rank: int) -> tuple[int, Parts]:
        """Return the number of the steps that count, and their parts together.

        The first step of the program also contains the start and is left out if there
        are others.
        """
        steps = self.steps.get(rank, {})
        chosen = {n: p for n, p in steps.items() if n > 1 or len(steps) == 1}
        return len(chosen), reduce(Parts.__add__, chosen.values(), Parts())

    def name(self, rank: int) -> str:
        """Return a rank with its machine, as a sentence names it."""
        machine = self.machines.get(rank, "")
        return f"rank {rank} on `{machine}`" if machine else f"rank {rank}"

    def machine(self, rank: int) -> str:
        """Return the machine of a rank, as a sentence names it."""
        machine = self.machines.get(rank, "")
        return f"`{machine}`" if machine else f"rank {rank}"

    def is_one_machine(self, link: SlowLink) -> bool:
        """Return whether both ends of a link are on the same machine."""
        source, target = (self.machines.get(r, "") for r in (link.source, link.target))
        return bool(source) and source == target

    def slow_end(self, link: SlowLink) -> int | None:
        """Return the rank at the slow end of a link; None if that is unknown.

        It is the end whose other links are slow as well, or the only one on Wi-Fi.
        """
        ends = link.source, link.target
        first, second = (self._other_links(end, set(ends)) for end in ends)
        if first is not None and second is not None:
            if 2 * first < second:
                return ends[0]
            if 2 * second < first:
                return ends[1]
        wireless = [end for end in ends if self.link_kinds.get(end) == WIFI]
        return wireless[0] if len(wireless) == 1 else None

    def _other_links(self, rank: int, ends: set[int]) -> float | None:
        """Return the speed of the links of ``rank`` to all but ``ends``, at best."""
        others = [
            (self.links.get((rank, peer)), self.links.get((peer, rank)))
            for peer in self.machines
            if peer not in ends
        ]
        known = [min(a, b) for a, b in others if a is not None and b is not None]
        return max(known, default=None)


def summarize(recording: Recording) -> Summary:
    """Return the summary of a recording that is on one clock."""
    ranks = recording.ranks
    return Summary(
        steps=step_parts(recording, Causes(recording)),
        machines={rank: trace.machine for rank, trace in ranks.items()},
        link_kinds={rank: trace.link_kind for rank, trace in ranks.items()},
        links=recording.links,
        dropped={r: t.num_dropped for r, t in ranks.items() if t.num_dropped},
        incomplete=tuple(r for r, t in sorted(ranks.items()) if not t.is_complete),
    )
