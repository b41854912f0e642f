"""Profiles of networks that people have, and what an all_reduce takes on them.

A profile has the payload rate and the latency of a link, and what the links share. The
time is that of the cost model by which groups choose, so the algorithm is the one that
a group would choose, and the time per message is that of our own code. docs/scale.md
tells where each figure comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ringleader.collectives.algorithm import algorithms
from ringleader.collectives.algorithm_selection import (
    CODED_ALGORITHMS,
    CODED_PEER_S,
    EXCHANGE_BYTES,
    INT8_ADDITIONS,
    INT8_SHARE,
)
from ringleader.collectives.cost_model import LinkCost, Network, predict_s
from ringleader.collectives.even_profile import even_profile
from ringleader.errors import ConfigError

PAYLOAD_SHARE = 1448 / 1538
"""Payload share of the line rate with TCP over Ethernet: 1448 of every 1538 bytes on
the wire (the rest is preamble, gap, Ethernet, IP and TCP headers with timestamps)."""

LOCAL_STEPS = 50
"""Steps of a round with little communication: the usual ``low_comm="diloco:50"``."""


class Medium(Enum):
    """What the links of a network share."""

    SWITCH = "full duplex, one card per node, a switch that never blocks"
    AIR = "half duplex, one channel for all, twice per byte: up and down"
    RING = "full duplex, a cable to each of two neighbours, no switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProfile:
    """A kind of network."""

    title: str
    line_bytes_per_s: float
    """The rate that is printed on the box."""
    bytes_per_s: float
    """Payload from one node to another while nobody else sends, one way."""
    latency_s: float
    """One way, from system call to system call, on an idle network."""
    medium: Medium = Medium.SWITCH

    @classmethod
    def ethernet(cls, gigabits: float, latency_s: float) -> WireProfile:
        """Return Ethernet with frames of 1500 bytes."""
        rate = gigabits * 1e9 / 8
        return cls(
            title=f"{gigabits:g} Gbit/s Ethernet",
            line_bytes_per_s=rate,
            bytes_per_s=rate * PAYLOAD_SHARE,
            latency_s=latency_s,
        )

    def network(self, size: int) -> Network:
        """Return the network of ``size`` nodes with one rank each."""
        row = (LinkCost(self.latency_s, self.bytes_per_s),) * size
        is_shared = self.medium is Medium.AIR
        return Network(
            links=(row,) * size,
            hosts=tuple(range(size)),
            shared_bandwidth=self.bytes_per_s if is_shared else None,
        )

    def bound_s(self, num_bytes: int, size: int) -> float:
        """Return the least time in which this wire can carry an all_reduce.

        Every node has to send and to receive 2(n-1)/n of the tensor. One channel
        carries that for all of them.
        """
        share = 2 * (size - 1) / size
        if self.medium is Medium.AIR:
            share *= size
        return share * num_bytes / self.bytes_per_s


PROFILES = {
    "wifi6": WireProfile(
        title="Wi-Fi 6, one access point, 80 MHz",
        line_bytes_per_s=1201e6 / 8,
        bytes_per_s=582e6 / 8 / 2,
        latency_s=2e-3,
        medium=Medium.AIR,
    ),
    "1gbe": WireProfile.ethernet(1, 100e-6),
    "2.5gbe": WireProfile.ethernet(2.5, 80e-6),
    "10gbe": WireProfile.ethernet(10, 40e-6),
    "25gbe": WireProfile.ethernet(25, 30e-6),
    "thunderbolt": WireProfile(
        title="Thunderbolt 4 ring",
        line_bytes_per_s=20e9 / 8,
        bytes_per_s=16.4e9 / 8,
        latency_s=300e-6,
        medium=Medium.RING,
    ),
}
"""Name -> profile."""


def find_profile(name: str) -> WireProfile:
    """Return a profile by its name; raises ConfigError if there is none."""
    found = PROFILES.get(name.strip().lower())
    if found is None:
        raise ConfigError(f"unknown profile {name!r}; use one of {', '.join(PROFILES)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """What is predicted for one number of nodes; efficiencies need the step's time."""

    nodes: int
    time_s: float
    algorithm: str
    wire_share: float
    """The least time of the wire, as a share of the time."""
    int8_s: float
    int8_algorithm: str
    efficiency: float | None = None
    """Share of the time in which nodes compute, if nothing is sent meanwhile."""
    int8_efficiency: float | None = None
    rounds_efficiency: float | None = None
    """With one int8 exchange per ``LOCAL_STEPS`` steps."""


def predict_row(
    wire: WireProfile, num_bytes: int, network: Network, step_s: float | None = None
) -> ScaleRow:
    """Predict the all_reduce of a float32 gradient on ``network``, of this kind."""
    size = network.size
    algorithm, time_s = predict_on(wire, num_bytes, network)
    int8_algorithm, int8_s = predict_int8(wire, num_bytes, network)
    row = ScaleRow(
        nodes=size,
        time_s=time_s,
        algorithm=algorithm,
        wire_share=wire.bound_s(num_bytes, size) / time_s,
        int8_s=int8_s,
        int8_algorithm=int8_algorithm,
    )
    if step_s is None:
        return row
    return replace(
        row,
        efficiency=step_s / (step_s + time_s),
        int8_efficiency=step_s / (step_s + int8_s),
        rounds_efficiency=step_s / (step_s + int8_s / LOCAL_STEPS),
    )


def predict_on(
    wire: WireProfile, num_bytes: int, network: Network
) -> tuple[str, float]:
    """Return the algorithm that a group would choose, and its seconds."""
    names = [
        name
        for name in _possible(wire, network.size, algorithms("all_reduce"))
        if name != "exchange" or num_bytes * (network.size - 1) <= EXCHANGE_BYTES
    ]
    chosen = _choice(names, num_bytes, network)
    return chosen, predict_s(even_profile(chosen, network.size), num_bytes, network)


def predict_int8(
    wire: WireProfile, num_bytes: int, network: Network
) -> tuple[str, float]:
    """Return the same with int8, including the time to encode and decode."""
    names = _possible(wire, network.size, CODED_ALGORITHMS["all_reduce"])
    coded_bytes = round(num_bytes * INT8_SHARE)
    chosen = _choice(names, coded_bytes, network)
    time_s = predict_s(even_profile(chosen, network.size), coded_bytes, network)
    time_s += num_bytes * INT8_ADDITIONS / network.reduce_bandwidth
    return chosen, time_s + CODED_PEER_S * (network.size - 1)


def _possible(wire: WireProfile, size: int, names: tuple[str, ...]) -> list[str]:
    """Return the algorithms that need no link which the network does not have."""
    is_ring = wire.medium is Medium.RING and size > 3
    return [name for name in names if name == "ring" or not is_ring]


def _choice(names: list[str], num_bytes: int, network: Network) -> str:
    """Choose as a group does, which does not know that its links share a channel."""
    seen = replace(network, shared_bandwidth=None)
    size = network.size
    return min(names, key=lambda n: predict_s(even_profile(n, size), num_bytes, seen))
