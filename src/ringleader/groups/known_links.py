"""KnownLinks keeps what groups have measured for later groups of the same processes.

A view change forms a new group within milliseconds; measuring a link takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.transport.dialer import Endpoint

MAX_KEPT = 256
"""Links that are kept; far more than a run has members."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """The links from one rank to all ranks of a group; not a number where unknown."""

    latencies: np.ndarray
    bandwidths: np.ndarray


def unknown_row(rank: int, size: int) -> CostRow:
    """The row of ``rank`` before any link was measured."""
    row = CostRow(np.full(size, np.nan), np.full(size, np.nan))
    row.latencies[rank], row.bandwidths[rank] = 0.0, 1.0
    return row


class KnownLinks:
    """The measured links from this process to others, by the peer's endpoint.

    An endpoint names one life of a process at its addresses (its channel is random), so
    a peer that started again or moved to another network is measured anew.
    """

    def __init__(self) -> None:
        self._links: dict[Endpoint, LinkCost] = {}

    def row(self, rank: int, endpoints: Sequence[Endpoint]) -> CostRow:
        """What is known of the links of ``rank``, which is this process."""
        row = unknown_row(rank, len(endpoints))
        for peer, endpoint in enumerate(endpoints):
            link = self._links.get(endpoint)
            if peer != rank and link is not None:
                row.latencies[peer] = link.latency_s
                row.bandwidths[peer] = link.bandwidth
        return row

    def learn(self, rank: int, endpoints: Sequence[Endpoint], network: Network) -> None:
        """Keep the links of ``rank`` in the network of a group that has formed."""
        if len(self._links) + len(endpoints) > MAX_KEPT:
            self._links.clear()
        for endpoint, link in zip(endpoints, network.links[rank], strict=True):
            if link is not None:
                self._links[endpoint] = link
