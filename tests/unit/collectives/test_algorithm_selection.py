"""Algorithm selection: explicit requests first, then the predicted time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.collectives.algorithm import OPERATIONS, ROOTED, algorithms
from ringleader.collectives.algorithm_selection import (
    HIERARCHICAL,
    choose_algorithm,
    hierarchy_program,
)
from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import LinkCost, Network, predict_s
from ringleader.collectives.schedule import Program
from ringleader.collectives.schedule_checker import (
    check_all_reduce,
    check_broadcast,
    check_reduce,
)
from ringleader.collectives.schedule_profile import profile
from ringleader.errors import ConfigError

MIB = 1 << 20


def gigabit(size: int, latency_s: float = 100e-6) -> Network:
    """Return a network of hosts on a gigabit switch."""
    link = LinkCost(latency_s, 119e6)
    return replace(Network.unknown(size), links=((link,) * size,) * size)


def test_large_tensors_in_small_homes_get_a_bandwidth_optimal_algorithm() -> None:
    """FT-17: two or three machines do not get a tree for every size, nor a star."""
    for size in (2, 3, 4, 8):
        name, _, reason = choose_algorithm("all_reduce", 64 * MIB, gigabit(size))
        shape = profile("all_reduce", name, size, 0, 2)
        assert max(shape.sent) == pytest.approx(2 * (size - 1) / size), name
        assert "predicted" in reason


def test_tiny_tensors_get_the_fewest_steps() -> None:
    name, _, _ = choose_algorithm("all_reduce", 4, gigabit(4))
    assert profile("all_reduce", name, 4, 0, 2).depth == 1


def test_many_ranks_on_a_quick_network_do_not_talk_to_everybody() -> None:
    name, _, _ = choose_algorithm("all_reduce", 4, gigabit(64, latency_s=20e-6))
    shape = profile("all_reduce", name, 64, 0, 2)
    assert shape.messages < 64


def test_the_middle_is_chosen_when_only_its_links_are_fast() -> None:
    """Every other algorithm crosses slow links."""
    size = 4
    slow, fast = LinkCost(50e-3, 1e6), LinkCost(1e-4, 1e9)
    links = tuple(
        tuple(fast if 0 in (a, b) else slow for b in range(size)) for a in range(size)
    )
    network = replace(Network.unknown(size), links=links)
    name, _, _ = choose_algorithm("all_reduce", MIB, network)
    used = profile("all_reduce", name, size, 0, 2).links
    assert all(0 in pair for pair in used), name


def test_senders_of_other_hosts_that_meet_at_one_card_are_priced() -> None:
    """They fill one queue and lose packets; senders of the same host do not."""
    star = profile("reduce", "star", 4, 0, 2)
    alone = gigabit(4)
    times = [
        predict_s(star, 64 * MIB, replace(alone, hosts=hosts))
        for hosts in ((0, 1, 2, 3), (0, 0, 0, 1))
    ]
    one_card_s = 64 * MIB / 119e6
    assert times[0] == pytest.approx(3 * one_card_s * 1.4, rel=0.01)
    assert times[1] == pytest.approx(one_card_s, rel=0.1)


def test_ranks_that_share_memory_use_it() -> None:
    network = replace(gigabit(4), hosts=(0, 0, 0, 0), shares_memory=True)
    for operation in OPERATIONS:
        assert choose_algorithm(operation, MIB, network)[0] == "shm"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_explicit_algorithm_is_honoured(operation: str) -> None:
    for name in algorithms(operation):
        chosen, _, reason = choose_algorithm(operation, 4, gigabit(4), algorithm=name)
        assert chosen == name
        assert reason == "requested in the call"


def test_an_unknown_algorithm_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="ring"):
        choose_algorithm("all_reduce", 4, gigabit(4), algorithm="carousel")


def test_strategies_of_the_configuration_are_honoured() -> None:
    config = CollectiveConfig(
        local_all_reduce="tree:3", local_broadcast="star", local_reduce="ring"
    )
    network = gigabit(4)
    assert choose_algorithm("all_reduce", 4, network, config=config)[:2] == ("tree", 3)
    assert choose_algorithm("broadcast", 4, network, config=config)[0] == "star"
    assert choose_algorithm("reduce", 4, network, config=config)[0] == "ring"


def test_the_tree_threshold_overrides_the_price() -> None:
    config = CollectiveConfig(tree_threshold_bytes=MIB, tree_arity=4)
    network = gigabit(4)
    assert choose_algorithm("all_reduce", MIB - 1, network, config=config)[:2] == (
        "tree",
        4,
    )
    assert choose_algorithm("all_reduce", MIB, network, config=config)[0] != "tree"


def test_naming_hosts_turns_the_hierarchy_on() -> None:
    config = CollectiveConfig(
        num_devices=2,
        num_nodes=2,
        global_all_reduce="ring",
        global_reduce="tree:2",
        global_broadcast="tree:2",
    )
    network = replace(gigabit(4), hosts=(0, 0, 1, 1))
    for operation in sorted(HIERARCHICAL):
        assert (
            choose_algorithm(operation, MIB, network, config=config)[0] == "hierarchy"
        )
    with pytest.raises(ConfigError, match="num_nodes=2"):
        choose_algorithm("all_reduce", MIB, gigabit(4), config=config)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 2, 1, 0)])
@pytest.mark.parametrize("strategy", ["ring", "tree:3", "star", "doubling"])
def test_configured_hierarchies_are_proven(
    hosts: tuple[int, ...], strategy: str
) -> None:
    """Every rank counts once, however unequal the hosts."""
    size = len(hosts)
    network = replace(gigabit(size), hosts=hosts)
    config = CollectiveConfig(
        num_devices=4,
        num_nodes=len(set(hosts)),
        local_all_reduce=strategy,
        global_all_reduce=strategy,
        global_reduce=strategy,
        global_broadcast=strategy,
    )

    def programs(operation: str, root: int) -> list[Program]:
        ranks = range(size)
        return [hierarchy_program(operation, r, network, root, config) for r in ranks]

    check_all_reduce(programs("all_reduce", 0))
    for root in range(size):
        check_reduce(programs("reduce", root), root)
        check_broadcast(programs("broadcast", root), root)


def test_ranks_on_several_hosts_are_offered_a_hierarchy() -> None:
    inside, outside = LinkCost(2e-6, 5e9), LinkCost(100e-6, 119e6)
    hosts = (0, 1, 0, 1, 1, 0, 1, 0)  # in order, a ring would cross no more often
    links = tuple(tuple(inside if a == b else outside for b in hosts) for a in hosts)
    network = replace(Network.unknown(8), links=links, hosts=hosts, cores=8)
    for operation in sorted(HIERARCHICAL):
        assert choose_algorithm(operation, 64 * MIB, network)[0] == "hierarchy"
    assert choose_algorithm("gather", 64 * MIB, network)[0] != "hierarchy"


def test_a_group_of_one_needs_no_choice() -> None:
    for operation in OPERATIONS:
        assert (
            choose_algorithm(operation, MIB, Network.unknown(1))[2] == "a group of one"
        )


def test_prices_grow_with_bytes_and_latency() -> None:
    for operation in OPERATIONS:
        for name in algorithms(operation):
            root = 2 if operation in ROOTED else 0
            shape = profile(operation, name, 5, root, 2)
            small = predict_s(shape, 1000, gigabit(5))
            assert small < predict_s(shape, 10 * MIB, gigabit(5))
            assert small < predict_s(shape, 1000, gigabit(5, latency_s=0.01))


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_devices": 0},
        {"tree_arity": 1},
        {"timeout_s": 0},
        {"tree_threshold_bytes": -1},
        {"num_nodes": 0},
        {"num_nodes": 2},
        {"num_nodes": 2, "global_all_reduce": "ring"},
        {"local_all_reduce": "tree:0"},
        {"local_all_reduce": "tree:1"},
        {"local_all_reduce": "ring:2"},
        {"local_all_reduce": "nonsense"},
        {"local_broadcast": "halving"},
    ],
)
def test_configurations_that_make_no_sense_are_refused(
    wrong: dict[str, object],
) -> None:
    """The arity inside a strategy is checked like the general one."""
    with pytest.raises(ConfigError):
        CollectiveConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("num_bytes", [4096, 64 * MIB])
def test_where_all_bytes_pass_one_rank_it_is_the_centre(
    size: int, num_bytes: int
) -> None:
    network = replace(gigabit(size), hub=0)
    name, _, reason = choose_algorithm("all_reduce", num_bytes, network)
    assert name == "star"
    assert "all bytes pass through rank 0" in reason


def test_a_hub_pays_for_what_it_relays() -> None:
    """A ring sends 2 (n-1)/n of the tensor on each of n links; the hub is on one."""
    network = replace(gigabit(4), hub=0)
    star, ring = (profile("all_reduce", name, 4, 0, 2) for name in ("star", "ring"))
    ratio = predict_s(ring, 64 * MIB, network) / predict_s(star, 64 * MIB, network)
    assert ratio == pytest.approx(4.5 / 3, rel=0.01)


def test_a_part_of_a_star_knows_where_its_hub_is() -> None:
    network = replace(gigabit(4), hub=0)
    assert network.part([3, 0]).hub == 1
    assert network.part([1, 2, 3]).hub == -1
    assert gigabit(4).part([1, 2]).hub is None
    _, _, reason = choose_algorithm("all_reduce", MIB, network.part([1, 2, 3]))
    assert "a rank outside the group" in reason
