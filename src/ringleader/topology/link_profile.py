"""What a link is, nominal or measured: latency and bytes per second each way."""

from __future__ import annotations

import math
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from ringleader.topology.interface_kind import InterfaceKind

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One link, seen from one of its two nodes."""

    latency_s: Seconds
    """One way: half a round trip."""
    out_bytes_per_s: Rate
    in_bytes_per_s: Rate
    kind: InterfaceKind = InterfaceKind.UNKNOWN

    @classmethod
    def unknown(cls) -> Self:
        """A link that nobody has measured: a home network, taken for a slow one."""
        return cls(10e-3, 125e6, 125e6)

    @classmethod
    def thunderbolt(cls) -> Self:
        """40 Gbit/s over a cable between two machines."""
        return cls(10e-6, 5e9, 5e9, InterfaceKind.THUNDERBOLT)

    @classmethod
    def ethernet(cls) -> Self:
        """1 Gbit/s through a switch."""
        return cls(500e-6, 125e6, 125e6, InterfaceKind.ETHERNET)

    @classmethod
    def wifi(cls) -> Self:
        """100 Mbit/s over the air, and time to get hold of it."""
        return cls(5e-3, 12.5e6, 12.5e6, InterfaceKind.WIFI)

    def mirrored(self) -> Self:
        """The same link, seen from the other node."""
        return msgspec.structs.replace(
            self,
            out_bytes_per_s=self.in_bytes_per_s,
            in_bytes_per_s=self.out_bytes_per_s,
        )

    def seconds_for(self, num_bytes: int) -> float:
        """How long ``num_bytes`` take to the other node; for ever if none arrive."""
        if self.out_bytes_per_s <= 0:
            return math.inf
        return self.latency_s + num_bytes / self.out_bytes_per_s


def measurement_rounds(num_nodes: int) -> list[list[tuple[int, int]]]:
    """Who measures with whom: all pairs, each once, in rounds of disjoint pairs.

    The circle method: one seat stays, the others move on by one. With an odd number of
    nodes one of them sits out in each round.
    """
    seats = num_nodes + num_nodes % 2
    schedule = []
    for turn in range(seats - 1):
        circle = [(turn + k) % (seats - 1) for k in range(seats - 1)] + [seats - 1]
        pairs = zip(circle[: seats // 2], reversed(circle[seats // 2 :]), strict=True)
        meeting = [(min(pair), max(pair)) for pair in pairs if max(pair) < num_nodes]
        schedule.append(sorted(meeting))
    return schedule if num_nodes > 1 else []
