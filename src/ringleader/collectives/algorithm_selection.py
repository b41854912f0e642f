"""Selects the algorithm of a call by its size, the network and the configuration."""

from __future__ import annotations

from functools import lru_cache

from ringleader.collectives import hierarchy
from ringleader.collectives.algorithm import algorithms, program
from ringleader.collectives.config import AUTO, CollectiveConfig, parse_strategy
from ringleader.collectives.cost_model import Network, predict_s
from ringleader.collectives.schedule import Program
from ringleader.collectives.schedule_profile import (
    ScheduleProfile,
    profile,
    profile_programs,
)
from ringleader.errors import ConfigError

HIERARCHICAL = frozenset(
    {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"}
)
CODED_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "direct", "halving", "tree", "star"),
    "reduce_scatter": ("direct",),
    "all_gather": ("ring", "direct", "doubling", "tree", "star"),
}
"""The algorithms that support codecs: one rank computes the result of each chunk and
the others copy it, and no partial sum passes through a rank that cannot store it. In a
hierarchical all_reduce they are the algorithms across hosts."""
CODED_HIERARCHICAL = frozenset({"all_reduce", "all_gather"})
"""Operations whose hierarchy supports codecs. An all_reduce sends raw values inside
hosts; a reduce_scatter would keep partial sums that have no output."""
INT8_SHARE = 1028 / 4096
"""Size of int8 data, scales included, as a share of float32."""
INT8_ADDITIONS = 5.0
"""Encoding and decoding a tensor, with its error, takes as long as this many additions
of it (measured: 1 GB/s on a machine that adds 5 GB/s)."""
CODED_PEER_S = 0.5e-3
"""Extra time of a coded call per peer, for any size: 0.2 ms if every rank has a core,
more if ranks share cores."""
MIN_GAIN = 0.75
"""A codec is used only if its predicted time is below this share of the uncoded time,
because predictions are inexact."""
EXCHANGE_BYTES = 256 << 10
"""The most bytes that a rank sends to all peers together in one exchange. Its pieces
travel in lock-step, so it is never the best algorithm for more."""


def choose_algorithm(
    operation: str,
    num_bytes: int,
    network: Network,
    *,
    root: int = 0,
    config: CollectiveConfig | None = None,
    algorithm: str | None = None,
) -> tuple[str, int, str]:
    """Return (algorithm, arity, reason) for one call.

    The call's own ``algorithm`` comes first, then the configuration, then the lowest
    predicted time. Every rank must choose the same, so only arguments that are equal on
    all ranks are used: the network is exchanged when a group is formed.
    """
    config = config or CollectiveConfig()
    if algorithm is not None and algorithm != AUTO:
        name, arity = parse_strategy(operation, algorithm, config.tree_arity)
        return name, arity, "requested in the call"
    if network.size == 1:
        return algorithms(operation)[0], 2, "a group of one"
    if config.num_nodes is not None and operation in HIERARCHICAL:
        _check_hosts(network, config)
        return "hierarchy", config.tree_arity, "num_nodes is set in the configuration"
    name, arity = config.strategy(operation)
    if name != AUTO:
        return name, arity, "set in the configuration"
    threshold = config.tree_threshold_bytes
    is_below = threshold is not None and num_bytes < threshold
    if is_below and "tree" in algorithms(operation):
        return "tree", arity, f"{num_bytes} bytes are below the tree threshold"
    if network.shares_memory:
        return "shm", 2, "all ranks share memory"
    prices = _prices(operation, num_bytes, network, root, config.tree_arity)
    return _cheapest(prices, config.tree_arity, network)


def choose_coded_algorithm(
    operation: str,
    num_bytes: int,
    network: Network,
    algorithm: str | None = None,
    *,
    raw_bytes: int,
    config: CollectiveConfig | None = None,
) -> tuple[str, int, str]:
    """Return (algorithm, arity, reason) for a call that sends ``num_bytes`` encoded.

    ``raw_bytes`` is the size of the values as float32. Of the configuration only the
    hierarchy applies; its other algorithms are for calls without a codec.
    """
    config = config or CollectiveConfig()
    known = CODED_ALGORITHMS.get(operation, ())
    across = _across(config)[0]
    if operation in CODED_HIERARCHICAL and (
        operation != "all_reduce" or across in known
    ):
        known = (*known, "hierarchy")
    if algorithm is not None and algorithm != AUTO:
        name, arity = parse_strategy(operation, algorithm, 2)
        if name not in known:
            can = ", ".join(known) or "none"
            at = f" with {across} across hosts" if name == "hierarchy" else ""
            raise ConfigError(
                f"{operation}: algorithm {name}{at} supports no codec; these do: {can}"
            )
        return name, arity, "requested in the call"
    if network.size == 1:
        return known[0], 2, "a group of one"
    if config.num_nodes is not None and "hierarchy" in known:
        _check_hosts(network, config)
        return "hierarchy", config.tree_arity, "num_nodes is set in the configuration"
    prices = _coded_prices(operation, num_bytes, raw_bytes, network)
    return _cheapest({n: p for n, p in prices.items() if n in known}, 2, network)


def choose_codec(operation: str, num_bytes: int, network: Network) -> str | None:
    """Return the codec that "auto" uses; None if none is predicted to be faster."""
    if network.size == 1 or network.shares_memory:
        return None
    uncoded_s = min(_prices(operation, num_bytes, network, 0, 2).values())
    int8_bytes = round(num_bytes * INT8_SHARE)
    coded_s = min(_coded_prices(operation, int8_bytes, num_bytes, network).values())
    coded_s += CODED_PEER_S * (network.size - 1)
    return "int8" if coded_s < MIN_GAIN * uncoded_s else None


def _coded_prices(
    operation: str, num_bytes: int, raw_bytes: int, network: Network
) -> dict[str, float]:
    """Return algorithm -> predicted seconds, with encoding and decoding.

    Every rank encodes and decodes, except in a hierarchical all_reduce: there the local
    roots do, one of each host, and what travels inside hosts is not encoded.
    """
    prices = _prices(operation, num_bytes, network, 0, 2)
    ranks_per_core = max(len(ranks) for ranks in network.host_lists()) / network.cores
    speed = network.reduce_bandwidth / INT8_ADDITIONS
    codec_s = raw_bytes / speed * max(1.0, ranks_per_core)
    coded = {name: prices[name] + codec_s for name in CODED_ALGORITHMS[operation]}
    if "hierarchy" in prices and operation == "all_reduce":
        shape = _hierarchy_profile(operation, network, 0)
        price_s = predict_s(shape, num_bytes, network, host_bytes=raw_bytes)
        coded["hierarchy"] = price_s + raw_bytes / speed
    elif "hierarchy" in prices and operation in CODED_HIERARCHICAL:
        coded["hierarchy"] = prices["hierarchy"] + codec_s
    return coded


def _check_hosts(network: Network, config: CollectiveConfig) -> None:
    hosts = network.host_lists()
    most = max(len(h) for h in hosts)
    if len(hosts) != config.num_nodes or most > config.num_devices:
        text = (
            f"the configuration says num_nodes={config.num_nodes} with up to "
            f"num_devices={config.num_devices} ranks each, but the group has "
            f"{len(hosts)} hosts with up to {most}"
        )
        raise ConfigError(text)


def _prices(
    operation: str, num_bytes: int, network: Network, root: int, arity: int
) -> dict[str, float]:
    """Return algorithm -> predicted seconds."""
    prices = {}
    for name in algorithms(operation):
        if name == "exchange" and num_bytes * (network.size - 1) > EXCHANGE_BYTES:
            continue
        shape = profile(operation, name, network.size, root, arity)
        prices[name] = predict_s(shape, num_bytes, network)
    if operation in HIERARCHICAL and 1 < len(set(network.hosts)) < network.size:
        shape = _hierarchy_profile(operation, network, root)
        prices["hierarchy"] = predict_s(shape, num_bytes, network)
    return prices


def _cheapest(
    prices: dict[str, float], arity: int, network: Network
) -> tuple[str, int, str]:
    ranked = sorted(prices, key=lambda name: prices[name])
    best = ranked[0]
    reason = f"predicted {prices[best] * 1e6:.0f} us"
    if len(ranked) > 1:
        reason += f", next {ranked[1]} {prices[ranked[1]] * 1e6:.0f} us"
    if network.hub is not None:
        who = f"rank {network.hub}" if network.hub >= 0 else "a rank outside the group"
        reason += f"; all bytes pass through {who}"
    return best, arity, reason


@lru_cache(maxsize=64)
def _hierarchy_profile(operation: str, network: Network, root: int) -> ScheduleProfile:
    config = CollectiveConfig()
    ranks = range(network.size)
    programs = [hierarchy_program(operation, r, network, root, config) for r in ranks]
    return profile_programs(operation, programs)


def hierarchy_program(
    operation: str, rank: int, network: Network, root: int, config: CollectiveConfig
) -> Program:
    """Return the program of ``rank``: one algorithm inside each host, one across."""
    hosts = network.host_lists()
    # local_all_reduce also applies to its two halves, unless these are configured.
    inner = config.local_all_reduce
    local_reduce = _rooted("reduce", (config.local_reduce, inner), config)
    local_broadcast = _rooted("broadcast", (config.local_broadcast, inner), config)
    if operation == "all_reduce":
        across, arity = _across(config)
        return hierarchy.all_reduce(
            rank,
            hosts,
            local_reduce=local_reduce,
            across=lambda r, n: program(operation, across, r, n, arity=arity),
            local_broadcast=local_broadcast,
        )
    if operation == "reduce":
        outer = _rooted(operation, (config.global_reduce or AUTO,), config)
        return hierarchy.reduce_to(rank, hosts, root, local=local_reduce, across=outer)
    if operation == "broadcast":
        outer = _rooted(operation, (config.global_broadcast or AUTO,), config)
        return hierarchy.broadcast(
            rank, hosts, root, local=local_broadcast, across=outer
        )
    if operation == "all_gather":
        return hierarchy.all_gather(rank, hosts)
    if operation == "reduce_scatter":
        return hierarchy.reduce_scatter(rank, hosts)
    known = ", ".join(sorted(HIERARCHICAL))
    raise ConfigError(f"{operation}: only {known} support the algorithm hierarchy")


def _across(config: CollectiveConfig) -> tuple[str, int]:
    """Return (algorithm, arity) of an all_reduce among local roots."""
    strategy = config.global_all_reduce or AUTO
    name, arity = parse_strategy("all_reduce", strategy, config.tree_arity)
    if name not in algorithms("all_reduce") or name == "exchange":
        name = "ring"
    return name, arity


def _rooted(
    operation: str, strategies: tuple[str, ...], config: CollectiveConfig
) -> hierarchy.Rooted:
    """Return a builder for the first strategy that ``operation`` has, else the star."""
    name, arity = "star", config.tree_arity
    for strategy in strategies:
        base = strategy.partition(":")[0]
        if base in algorithms(operation):
            name, arity = parse_strategy(operation, strategy, config.tree_arity)
            break
    return lambda r, n, root: program(operation, name, r, n, root=root, arity=arity)
