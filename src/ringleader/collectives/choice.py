"""Which algorithm for which call: a pure function of size, network and wishes."""

from __future__ import annotations

from functools import lru_cache

from ringleader.collectives import hierarchy
from ringleader.collectives.algorithm import algorithms, program
from ringleader.collectives.config import AUTO, CollectiveConfig, parse_strategy
from ringleader.collectives.cost import Network, Profile, price, profile, profile_of
from ringleader.collectives.schedule import Program

EXCHANGE_BYTES = 64 << 10
"""Beyond this the exchange needs several messages and is never the best."""


def choose(
    operation: str,
    num_bytes: int,
    network: Network,
    *,
    root: int = 0,
    config: CollectiveConfig | None = None,
    algorithm: str | None = None,
) -> tuple[str, int, str]:
    """(algorithm, arity, reason). An explicit wish is honoured, the rest is priced.

    Every rank must come to the same answer, so only arguments that are equal on all of
    them may be used: the network is exchanged at formation for that purpose.
    """
    config = config or CollectiveConfig()
    if algorithm is not None and algorithm != AUTO:
        name, arity = parse_strategy(operation, algorithm, config.tree_arity)
        return name, arity, "asked for in the call"
    if network.size == 1:
        return algorithms(operation)[0], 2, "a group of one"
    name, arity = config.strategy(operation)
    if name != AUTO:
        return name, arity, "set in the configuration"
    if config.num_nodes is not None and operation == "all_reduce":
        return "hierarchy", arity, "the configuration names hosts"
    if len(set(network.hosts)) == 1 and network.shares_memory:
        return "shm", 2, "all ranks share memory"
    threshold = config.tree_threshold_bytes
    if threshold is not None and "tree" in algorithms(operation):
        if num_bytes < threshold:
            return "tree", arity, f"{num_bytes} bytes are below the tree threshold"
    return _cheapest(operation, num_bytes, network, root, config)


def _cheapest(
    operation: str, num_bytes: int, network: Network, root: int, config: CollectiveConfig
) -> tuple[str, int, str]:
    arity = config.tree_arity
    prices = {}
    for name in algorithms(operation):
        if name == "exchange" and num_bytes > EXCHANGE_BYTES:
            continue
        shape = profile(operation, name, network.size, root, arity)
        prices[name] = price(shape, num_bytes, network)
    if operation == "all_reduce" and 1 < len(set(network.hosts)) < network.size:
        prices["hierarchy"] = price(_hierarchy_profile(network), num_bytes, network)
    ranked = sorted(prices, key=lambda name: prices[name])
    best = ranked[0]
    reason = f"predicted {prices[best] * 1e6:.0f} us"
    if len(ranked) > 1:
        reason += f", next {ranked[1]} {prices[ranked[1]] * 1e6:.0f} us"
    return best, arity, reason


@lru_cache(maxsize=16)
def _hierarchy_profile(network: Network) -> Profile:
    config = CollectiveConfig()
    ranks = range(network.size)
    programs = [hierarchy_program(r, network, config) for r in ranks]
    return profile_of("all_reduce", programs)


def hierarchy_program(
    rank: int, network: Network, config: CollectiveConfig
) -> Program:
    """Local reduce, all_reduce across hosts, local broadcast, as configured."""

    def rooted(operation: str, wish: str) -> hierarchy.Rooted:
        name, arity = parse_strategy(operation, wish, config.tree_arity)
        name = name if name in algorithms(operation) else "star"
        return lambda r, n, root: program(operation, name, r, n, root=root, arity=arity)

    wish = config.global_all_reduce or AUTO
    across, arity = parse_strategy("all_reduce", wish, config.tree_arity)
    if across not in algorithms("all_reduce") or across == "exchange":
        across = "ring"
    return hierarchy.all_reduce(
        rank,
        network.host_lists(),
        local_reduce=rooted("reduce", config.local_reduce),
        across=lambda r, n: program("all_reduce", across, r, n, arity=arity),
        local_broadcast=rooted("broadcast", config.local_broadcast),
    )
