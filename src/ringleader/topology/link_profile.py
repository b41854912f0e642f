"""LinkProfile describes one link: latency, and bytes per second in each direction."""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from ringleader.topology.interface_kind import InterfaceKind

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One link, seen from one of its two nodes.

    It holds nothing that could form a cycle, so the collector need not look at it: 50
    nodes have thousands.
    """

    latency_s: Seconds
    """One way: half a round trip."""
    out_bytes_per_s: Rate
    in_bytes_per_s: Rate
    kind: InterfaceKind = InterfaceKind.UNKNOWN

    def mirrored(self) -> Self:
        """Return the same link, seen from the other node."""
        return msgspec.structs.replace(
            self,
            out_bytes_per_s=self.in_bytes_per_s,
            in_bytes_per_s=self.out_bytes_per_s,
        )


def measurement_rounds(num_nodes: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs that together contain every pair once.

    The pairs of a round can be measured at the same time. This is the circle method of
    round-robin tournaments: one position is fixed and the others rotate. If the number
    of nodes is odd, one node pauses in each round.
    """
    seats = num_nodes + num_nodes % 2
    schedule = []
    for turn in range(seats - 1):
        circle = [(turn + k) % (seats - 1) for k in range(seats - 1)] + [seats - 1]
        pairs = zip(circle[: seats // 2], reversed(circle[seats // 2 :]), strict=True)
        real = [(min(pair), max(pair)) for pair in pairs if max(pair) < num_nodes]
        schedule.append(sorted(real))
    return schedule if num_nodes > 1 else []
