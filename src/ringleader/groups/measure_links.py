"""Measures the links of a new group and gives all ranks the same result.

First the ranks of each host measure in rounds of pairs, all hosts at once, so that
ranks which share cores see the share they will get. Then the first ranks of the hosts
do the same, and their result counts for all links between two hosts: these share a
network card, and pairs that measure at once would each see a part of its speed. A pair
sends a few small messages for the latency, then larger and larger bursts until one
takes long enough to be reliable. The results are gathered on all ranks, because all
must choose the same algorithm. Links that earlier groups measured are not measured
again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded
from ringleader.groups.group import Group, handle_of
from ringleader.groups.known_links import CostRow, unknown_row
from ringleader.transport.crowded_cores import relax
from ringleader.transport.host_token import host_token
from ringleader.transport.link import Link, wait_ready
from ringleader.transport.mesh import Mesh

PINGS = 5
PING_BYTES = 64
FIRST_BURST = 64 << 10
LAST_BURST = 4 << 20
STEP_BYTES = 256 << 10
ENOUGH_S = 0.01
"""A burst of this duration exceeds scheduling noise and is short for a user."""
MANY_ROUND_TRIPS = 4
"""A burst that takes fewer tells how far the peer is, not how fast the link is."""
GROWTH = 4
"""How many times as long the next burst is; with a peer far away each takes long."""


def learn_network(
    formed: Group,
    mesh: Mesh,
    deadline: Deadline,
    hub: int | None = None,
    known: CostRow | None = None,
) -> None:
    """Measure the links, unless all ranks share memory; all ranks get equal results.

    ``hub`` is the rank that relays for the others; see Network. ``known`` are the links
    that need not be measured again if the peers know theirs, too.
    """
    if formed.size == 1:
        return
    if len(mesh.shm_peers) == formed.size - 1:
        row = CostRow(np.full(formed.size, 1e-6), np.full(formed.size, 5e9))
        network = _to_network(share(formed, row, deadline))
    else:
        network = measure(formed, mesh.bulk, deadline, known)
    handle_of(formed).network = replace(network, hub=hub)


def measure(
    group: Group,
    links: dict[int, Link],
    deadline: Deadline,
    known: CostRow | None = None,
) -> Network:
    """Measure the network of ``group``; all ranks call it, before other operations."""
    size, rank = group.size, group.rank
    costs = known or unknown_row(rank, size)
    rows = share(group, costs, deadline)
    missing = _unmeasured(rows)
    for partner in _meetings(rank, _hosts(rows)):
        if (rank, partner) in missing:
            costs.latencies[partner], costs.bandwidths[partner] = _measure_pair(
                links[partner], rank < partner, deadline
            )
    return _to_network(share(group, costs, deadline) if missing else rows)


def _unmeasured(rows: Sequence[torch.Tensor]) -> set[tuple[int, int]]:
    """The pairs of ranks that have to measure, in both orders; equal on all ranks."""
    hosts = _hosts(rows)
    missing = {
        (a, b)
        for a, row in enumerate(rows)
        for b in _meetings(a, hosts)
        if bool(row[3 + b].isnan())
    }
    return missing | {(b, a) for a, b in missing}


def _hosts(rows: Sequence[torch.Tensor]) -> list[int]:
    return [int(row[0]) for row in rows]


def share(group: Group, costs: CostRow, deadline: Deadline) -> list[torch.Tensor]:
    """Gather all ranks' rows: host, cores, shared memory, latencies, bandwidths."""
    shares = _shares_memory(group)
    head = np.array([_host_number(), os.cpu_count() or 1, shares], dtype=np.float64)
    row = torch.from_numpy(np.concatenate([head, costs.latencies, costs.bandwidths]))
    return _gather(group, row, deadline)


def _to_network(rows: list[torch.Tensor]) -> Network:
    """The network that the rows of all ranks describe."""
    size = len(rows)
    hosts = _hosts(rows)
    _fill_between_hosts(rows, hosts)
    _smooth(rows, size)
    links = tuple(
        tuple(
            None if a == b else LinkCost(float(r[3 + b]), float(r[3 + size + b]))
            for b in range(size)
        )
        for a, r in enumerate(rows)
    )
    return Network(
        links=links,
        hosts=tuple(hosts.index(h) for h in hosts),
        shares_memory=all(bool(r[2]) for r in rows),
        cores=int(min(r[1] for r in rows)),
    )


def _host_number() -> int:
    """Return a number of this host that a float64 can hold."""
    return int.from_bytes(hashlib.blake2b(host_token(), digest_size=6).digest(), "big")


def _shares_memory(group: Group) -> bool:
    return all(kind.startswith("shm") for kind in group.links().values())


def _gather(group: Group, row: torch.Tensor, deadline: Deadline) -> list[torch.Tensor]:
    """Return the rows of all ranks."""
    rows = [torch.empty_like(row) for _ in range(group.size)]
    algorithm = "shm" if _shares_memory(group) and group.size > 1 else "direct"
    group.all_gather(rows, row, algorithm=algorithm, timeout_s=deadline.left_s())
    return rows


def _fill_between_hosts(rows: list[torch.Tensor], hosts: list[int]) -> None:
    """Set every link between two hosts to what their first ranks measured."""
    size = len(hosts)
    first = [hosts.index(host) for host in hosts]
    for a in range(size):
        for b in range(size):
            if first[a] != first[b]:
                for table in (3, 3 + size):  # latencies, bandwidths
                    rows[a][table + b] = rows[first[a]][table + first[b]]


def _smooth(rows: list[torch.Tensor], size: int) -> None:
    """Set the bandwidth of links that are about as fast as most to the median.

    A short measurement is off by 10 %, and an algorithm that depends on one link must
    not lose against one that uses many because of one bad measurement.
    """
    table = torch.stack([r[3 + size :] for r in rows])
    usual = float(table[~torch.eye(size, dtype=torch.bool, device="cpu")].median())
    for row in rows:
        speeds = row[3 + size :]
        speeds[(speeds > 0.5 * usual) & (speeds < 1.4 * usual)] = usual


def _meetings(rank: int, hosts: list[int]) -> list[int]:
    """The ranks that ``rank`` measures with, in order: those of its host, then, if it
    is the first of its host, the first ranks of the others."""
    local = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    teams = [local]
    if local[0] == rank:
        teams.append([hosts.index(host) for host in dict.fromkeys(hosts)])
    return [
        team[seat] for team in teams for seat in _partners(team.index(rank), len(team))
    ]


def _partners(rank: int, size: int) -> list[int]:
    """The partner of ``rank`` in each round of a round-robin tournament."""
    seats = size + size % 2
    partners = []
    for turn in range(seats - 1):
        if rank == seats - 1:
            other = turn * (seats // 2) % (seats - 1)
        else:
            other = (turn - rank) % (seats - 1)
            if other == rank:
                other = seats - 1
        if other < size:
            partners.append(other)
    return partners


def _measure_pair(link: Link, leads: bool, deadline: Deadline) -> tuple[float, float]:
    """(latency, bandwidth) from this rank to the peer; both ranks measure in turn."""
    if leads:
        result = _lead(link, deadline)
        _follow(link, deadline)
    else:
        _follow(link, deadline)
        result = _lead(link, deadline)
    return result


def _lead(link: Link, deadline: Deadline) -> tuple[float, float]:
    # Allocated and touched before, so that memory is not part of the measurement.
    memory = memoryview(bytearray(b"\1") * LAST_BURST)
    round_trips = []
    for _ in range(PINGS):
        started_s = time.perf_counter()
        _send(link, memory[:PING_BYTES], deadline)
        _recv(link, memory[:PING_BYTES], deadline)
        round_trips.append(time.perf_counter() - started_s)
    latency_s = min(round_trips) / 2
    enough_s = max(ENOUGH_S, MANY_ROUND_TRIPS * 2 * latency_s)
    burst = FIRST_BURST
    while True:
        took_s = _time_burst(link, memory[:burst], deadline)
        is_last = burst >= LAST_BURST
        if took_s > enough_s or is_last:
            # TCP may have widened its windows during that burst.
            took_s = min(took_s, _time_burst(link, memory[:burst], deadline))
        if took_s > enough_s or is_last:
            _send(link, _announce(0), deadline)
            return latency_s, burst / max(took_s - 2 * latency_s, took_s / 10)
        burst *= GROWTH


def _time_burst(link: Link, burst: memoryview, deadline: Deadline) -> float:
    """Return the seconds until the peer has confirmed that it has all of it."""
    started_s = time.perf_counter()
    _send(link, _announce(len(burst)), deadline)
    _send(link, burst, deadline)
    _recv(link, memoryview(bytearray(PING_BYTES)), deadline)
    return time.perf_counter() - started_s


def _announce(burst: int) -> memoryview:
    """The message that announces how many bytes follow; 0 ends the measurement."""
    return memoryview(burst.to_bytes(PING_BYTES, "little"))


def _follow(link: Link, deadline: Deadline) -> None:
    memory = memoryview(bytearray(b"\1") * STEP_BYTES)
    ping = memory[:PING_BYTES]
    for _ in range(PINGS):
        _recv(link, ping, deadline)
        _send(link, ping, deadline)
    while True:
        _recv(link, ping, deadline)
        left = min(int.from_bytes(ping, "little"), LAST_BURST)
        if not left:
            return
        while left:
            step = min(left, STEP_BYTES)
            _recv(link, memory[:step], deadline)
            left -= step
        _send(link, ping, deadline)


def _send(link: Link, view: memoryview, deadline: Deadline) -> None:
    while view:
        sent = link.try_send(view)
        view = view[sent:]
        if not sent:
            _pause(link, deadline, sending=True)


def _recv(link: Link, view: memoryview, deadline: Deadline) -> None:
    spins = 0
    while view:
        received = link.try_recv_into(view)
        view = view[received:]
        spins += 1
        if not received and spins < 50:
            relax()
        elif not received:
            _pause(link, deadline, sending=False)


def _pause(link: Link, deadline: Deadline, *, sending: bool) -> None:
    if deadline.is_over():
        raise DeadlineExceeded(link.peer, "sent nothing while the links were measured")
    try:
        wanted = link.arm(sending=sending, receiving=not sending)
        if wanted is not None:
            wait_ready(wanted, min(0.05, deadline.left_s()))
    finally:
        link.disarm()
