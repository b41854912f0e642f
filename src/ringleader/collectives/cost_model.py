"""The cost model: predicts the time of a schedule on a measured network.

A schedule is reduced to a profile: the longest chain of messages, and the share of the
tensor that each rank sends, receives and reduces. With cut-through forwarding the bytes
of all steps overlap, so

    time = depth * (software + latency) + max over ranks (bytes) / bandwidth + reduction

which needs no simulation and is exact for our schedules on equal links. The ranks of
one host share its cores, so their copies and additions are summed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ringleader.collectives.schedule_profile import ScheduleProfile

WIRE_FAN_IN = 0.2
"""Extra wire time for each further sender to a rank from other hosts: concurrent TCP
streams do not share the wire evenly, the last one counts, and they lose packets.
Measured at 1 Gbit/s, 4 hosts: 3 senders 7 to 9 % at 32 MiB, 40 to 85 % at 256 KiB back
to back."""
HOST_FAN_IN = 0.08
"""The same inside a host, where more senders mean more and smaller system calls.
Measured on loopback, 4 ranks on 2 cores, 4 MiB: 3 senders 20 %."""
COPY_BANDWIDTH = 5e9
"""Bytes per second that one core copies into or out of a link."""
SOFTWARE_S = 30e-6
"""Time of our own code per step if every rank has a core to itself."""
MESSAGE_SHARE = 0.15
"""Time of our own code per message, as a share of SOFTWARE_S."""
STREAM_SHARE = 2.5
"""Time to set up the lanes of a stream, as a share of SOFTWARE_S; an exchange has
none."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """One direction between two ranks, as measured when the group was formed."""

    latency_s: float
    bandwidth: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The measured network of a group; equal on all its ranks."""

    links: tuple[tuple[LinkCost | None, ...], ...]
    """links[a][b] leads from rank a to rank b; None on the diagonal."""
    hosts: tuple[int, ...]
    """hosts[rank] is the number of its host."""
    shares_memory: bool = False
    """Whether ranks of one host have mapped each other's segments."""
    cores: int = 2
    reduce_bandwidth: float = 5e9
    """Bytes per second that one core adds."""
    copy_bandwidth: float = COPY_BANDWIDTH
    """Bytes per second that one core copies into or out of a link."""
    shared_bandwidth: float | None = None
    """Bytes per second that all links have together, as on Wi-Fi; None: each has its
    own. Groups do not measure it; it is for predictions, with one rank per host."""
    hub: int | None = None
    """The rank through which the others reach each other; -1: one outside this group;
    None: they reach each other directly."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @classmethod
    def unknown(cls, size: int) -> Self:
        """Assume a home network with one rank per host, before measurement."""
        link = LinkCost(latency_s=100e-6, bandwidth=125e6)
        row = tuple(link for _ in range(size))
        return cls(links=(row,) * size, hosts=tuple(range(size)))

    def part(self, ranks: Sequence[int]) -> Self:
        """Return the network of a subset of ranks."""
        links = tuple(tuple(self.links[a][b] for b in ranks) for a in ranks)
        hub = self.hub
        if hub is not None:
            hub = list(ranks).index(hub) if hub in ranks else -1
        hosts = tuple(self.hosts[r] for r in ranks)
        return replace(self, links=links, hosts=hosts, hub=hub)

    def host_lists(self) -> list[list[int]]:
        """Return the ranks of each host, hosts ordered by their first rank."""
        hosts: dict[int, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            hosts.setdefault(host, []).append(rank)
        return list(hosts.values())


def predict_s(
    shape: ScheduleProfile,
    num_bytes: int,
    network: Network,
    *,
    host_bytes: int | None = None,
) -> float:
    """Predict the seconds of one operation on ``num_bytes``.

    ``host_bytes`` is the size inside hosts, where it differs: what is encoded between
    hosts may travel as it is inside.
    """
    used = [network.links[a][b] for a, b in shape.links]
    latency_s = max((link.latency_s for link in used if link), default=0.0)
    most = max(len(ranks) for ranks in network.host_lists())
    software_s = SOFTWARE_S * max(1.0, most / network.cores)
    steps_s = shape.depth * (latency_s + software_s)
    steps_s += shape.messages * MESSAGE_SHARE * software_s
    if not shape.is_exchange:
        steps_s += STREAM_SHARE * software_s
    if host_bytes is None:
        host_bytes = num_bytes
    wire_s = _wire_s if network.hub is None else _hub_s
    if network.shared_bandwidth is not None:
        wire_s = _shared_s
    return steps_s + max(
        wire_s(shape, num_bytes, network), _host_s(shape, host_bytes, network)
    )


def _hub_s(shape: ScheduleProfile, num_bytes: int, network: Network) -> float:
    """Return the time of the slowest connection to the hub, or of the hub itself.

    A rank has one connection, for all its peers. The hub receives what every other
    rank sends, whomever it is for, and sends what every other rank receives.
    """
    sent = received = slowest = fastest = 0.0
    others = [rank for rank in range(network.size) if rank != network.hub]
    for rank in others:
        speed = _speed_to_hub(network, rank)
        busiest = max(shape.sent[rank], shape.received[rank])
        slowest, fastest = max(slowest, busiest / speed), max(fastest, speed)
        sent += shape.received[rank]
        received += shape.sent[rank]
    slowest = max(slowest, max(sent, received) / fastest)
    senders = sum(shape.sent[rank] > 0 for rank in others)
    return num_bytes * slowest * (1 + WIRE_FAN_IN * max(0, senders - 1))


def _speed_to_hub(network: Network, rank: int) -> float:
    """Return the bandwidth of a rank's connection to the hub.

    If the hub is outside the group, it was measured only as a part of other ways.
    """
    if network.hub is not None and network.hub >= 0:
        link = network.links[rank][network.hub]
        assert link is not None
        return link.bandwidth
    return max(link.bandwidth for link in network.links[rank] if link is not None)


def _shared_s(shape: ScheduleProfile, num_bytes: int, network: Network) -> float:
    """Return the time of the medium that carries what all ranks send."""
    assert network.shared_bandwidth is not None
    return num_bytes * sum(shape.sent) / network.shared_bandwidth


def _wire_s(shape: ScheduleProfile, num_bytes: int, network: Network) -> float:
    """Return the time of the busiest link or network card; a host has one card."""
    slowest = 0.0
    sent = dict.fromkeys(network.hosts, 0.0)
    received, fastest = dict(sent), dict(sent)
    fan_in = [0] * network.size
    for (a, b), share in shape.links.items():  # of 256 ranks there may be 65,000
        link, source, to = network.links[a][b], network.hosts[a], network.hosts[b]
        if link is None or source == to:
            continue
        bandwidth = link.bandwidth
        fan_in[b] += 1
        if share / bandwidth > slowest:
            slowest = share / bandwidth
        sent[source] += share
        received[to] += share
        if bandwidth > fastest[source]:
            fastest[source] = bandwidth
        if bandwidth > fastest[to]:
            fastest[to] = bandwidth
    for host, bandwidth in fastest.items():
        if bandwidth > 0.0:
            slowest = max(slowest, max(sent[host], received[host]) / bandwidth)
    more = max(1, *fan_in) - 1
    return num_bytes * slowest * (1 + WIRE_FAN_IN * more)


def _host_s(shape: ScheduleProfile, num_bytes: int, network: Network) -> float:
    """Return the time of the busiest host for copies and additions.

    A rank is one thread, so the time is at least that of the busiest rank, and at least
    the sum of all ranks of a host divided by its cores.
    """
    busy = [
        (shape.sent[r] + shape.received[r]) / network.copy_bandwidth
        + shape.reduced[r] / network.reduce_bandwidth
        for r in range(network.size)
    ]
    worst = max(busy)
    for ranks in network.host_lists():
        worst = max(worst, sum(busy[r] for r in ranks) / network.cores)
    return num_bytes * worst * (1 + HOST_FAN_IN * max(0, shape.fan_in - 1))
