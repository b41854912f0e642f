"""Simulates rings on uneven networks by a recurrence on arrays over all ranks.

In a ring every node has one lane out and one lane in, so nothing needs arbitration:
when a segment leaves depends only on earlier moves of the same rank, and when it
arrives only on the left neighbour. All ranks have the same shape, so move i of all
ranks is one array operation. The result equals that of ``event_replay.py`` exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringleader.collectives.schedule import Kind
from ringleader.simulation.collectives.network_model import NetworkModel
from ringleader.simulation.collectives.program_shape import ProgramShape

MAX_CELLS = 24_000_000
"""Limit on messages times segments: about one second, and 100 MB for 1000 nodes."""

Array = NDArray[np.float64]


def is_ring(shape: ProgramShape, network: NetworkModel) -> bool:
    """Whether the recurrence applies: one lane per node, no trunk used by two lanes."""
    distances = set(shape.distances)
    if len(distances) != 1 or not _is_ordered(shape):
        return False
    if len(shape.kinds) * network.size > 2 * MAX_CELLS:
        return False
    [distance] = distances
    size = network.size
    trunks = [network.crossed_islands(r, (r + distance) % size) for r in range(size)]
    used = [t for t in trunks if t is not None]
    return len(used) == len(set(used))


def _is_ordered(shape: ProgramShape) -> bool:
    """Whether the k-th send precedes the k-th receive, for all k."""
    ahead = 0
    for kind in shape.kinds:
        ahead += 1 if kind is Kind.SEND else -1
        if ahead < 0:
            return False
    return ahead == 0


@dataclass(slots=True)
class _RingTimes:
    """Per rank: time of a segment on each resource, and when the resource is free."""

    distance: int
    egress: Array
    lane: Array
    is_link_slow: NDArray[np.bool_]
    latency: Array
    ingress: Array
    reduce: Array
    egress_free: Array
    link_free: Array
    ingress_free: Array
    reduce_free: Array


def _ring(shape: ProgramShape, network: NetworkModel, segment: float) -> _RingTimes:
    size, distance = network.size, shape.distances[0]
    links = [network.link_between(r, (r + distance) % size) for r in range(size)]
    egress = np.array([segment / n.egress_bytes_per_s for n in network.nodes])
    link = np.array([segment / w.bytes_per_s for w in links])
    return _RingTimes(
        distance=distance,
        egress=egress,
        lane=np.maximum(link, egress),
        is_link_slow=link > egress,
        latency=np.array([w.latency_s for w in links]),
        ingress=np.array([segment / n.ingress_bytes_per_s for n in network.nodes]),
        reduce=np.array([segment / n.reduce_bytes_per_s for n in network.nodes]),
        egress_free=np.zeros(size),
        link_free=np.zeros(size),
        ingress_free=np.zeros(size),
        reduce_free=np.zeros(size),
    )


def finish_times(
    shape: ProgramShape, network: NetworkModel, chunk_bytes: int, segments: int
) -> list[float]:
    """Return the time at which each rank is done."""
    ring = _ring(shape, network, chunk_bytes / segments)
    nothing = np.zeros((segments, network.size))
    done: dict[int, Array] = {}
    uses = Counter(before for befores in shape.befores for before in befores)
    arrived: list[Array] = []
    num_received = 0
    finish = np.zeros(network.size)
    for index, kind in enumerate(shape.kinds):
        ready = nothing
        for before in shape.befores[index]:
            ready = np.maximum(ready, done[before])
            uses[before] -= 1
            if not uses[before]:
                del done[before]  # frees memory: 1000 ranks times 1000 chunks
        if kind is Kind.SEND:
            done[index], landed = _send(ring, ready)
            arrived.append(landed)
            end = done[index][-1] + ring.lane
        else:
            there = np.maximum(arrived[num_received], ready)
            arrived[num_received] = nothing  # frees memory
            num_received += 1
            done[index] = _sum(ring, there) if kind is Kind.REDUCE else there
            end = done[index][-1]
        np.maximum(finish, end, out=finish)
        if not uses[index]:
            del done[index]
    return [float(f) for f in finish]


def _send(ring: _RingTimes, ready: Array) -> tuple[Array, Array]:
    """Return when the segments of one message leave, and when they have arrived."""
    left, landed = np.empty_like(ready), np.empty_like(ready)
    for at, row in enumerate(ready):
        start = np.maximum(row, np.maximum(ring.egress_free, ring.link_free))
        ring.egress_free = start + ring.egress
        ring.link_free = np.where(ring.is_link_slow, start + ring.lane, 0.0)
        left[at] = start
        head = np.roll(start + ring.latency, ring.distance)
        ring.ingress_free = np.maximum(head, ring.ingress_free) + ring.ingress
        tail = head + np.roll(ring.lane, ring.distance)
        landed[at] = np.maximum(ring.ingress_free, tail)
    return left, landed


def _sum(ring: _RingTimes, there: Array) -> Array:
    summed = np.empty_like(there)
    for at, row in enumerate(there):
        ring.reduce_free = np.maximum(row, ring.reduce_free) + ring.reduce
        summed[at] = ring.reduce_free
    return summed
