"""Programs: the moves of this rank in a collective, for the engines that use links."""

from __future__ import annotations

from ringleader.collectives.algorithm import program
from ringleader.collectives.algorithm_selection import hierarchy_program
from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.collectives.schedule import Program
from ringleader.engine.call import PlanKey


class Programs:
    """Makes the programs of one rank in one group."""

    def __init__(self, rank: int, network: Network, config: CollectiveConfig) -> None:
        self._rank = rank
        self.network = network
        """Says which ranks share a host; equal on all ranks."""
        self._config = config

    def make(self, key: PlanKey) -> Program:
        """The moves of this rank in calls with ``key``."""
        operation, algorithm, root, arity = key
        rank, network = self._rank, self.network
        if algorithm == "hierarchy":
            return hierarchy_program(operation, rank, network, root, self._config)
        return program(operation, algorithm, rank, network.size, root=root, arity=arity)

    def raw_peers(self, key: PlanKey) -> list[int]:
        """The peers to which a call with a codec sends values as they are.

        In a hierarchical all_reduce these are the ranks of the same host. An all_gather
        is encoded by the rank that contributes the values, whose error is then known
        there, and the same bytes are forwarded inside hosts and across.
        """
        operation, algorithm, *_ = key
        if (operation, algorithm) != ("all_reduce", "hierarchy"):
            return []
        hosts, rank = self.network.hosts, self._rank
        return [p for p, h in enumerate(hosts) if h == hosts[rank] and p != rank]
