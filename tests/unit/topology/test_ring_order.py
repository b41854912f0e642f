"""The ring order: nothing is better up to ten nodes, and little is beyond."""

from __future__ import annotations

import random
import time
from itertools import permutations

import pytest

from ringleader.errors import ConfigError
from ringleader.topology.exact_ring_search import best_ring
from ringleader.topology.heuristic_ring_search import good_ring
from ringleader.topology.hop_table import HopTable
from ringleader.topology.ring_order import MAX_EXACT, merge_close_rates, ring_order

Pairs = dict[tuple[str, str], float]
FAST, SLOW = 125e6, 12.5e6


def names(count: int) -> list[str]:
    return [f"n{i:02}" for i in range(count)]


def links(ids: list[str], rate: float = FAST) -> Pairs:
    return dict.fromkeys(permutations(ids, 2), rate)


def hops(order: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(order, (*order[1:], order[0]), strict=True))


def slowest(order: tuple[str, ...], rates: Pairs) -> float:
    return min(rates[a, b] for a, b in hops(order))


def draw(count: int, seed: int, levels: list[float] | None = None) -> Pairs:
    """Each direction of each pair as chance wants it."""
    rng = random.Random(seed)
    ids = names(count)
    if levels:
        return {pair: rng.choice(levels) for pair in permutations(ids, 2)}
    return {pair: rng.uniform(1e6, 1e9) for pair in permutations(ids, 2)}


def test_one_slow_pair_is_avoided() -> None:
    ids = names(4)
    rates = links(ids)
    rates["n00", "n01"] = rates["n01", "n00"] = SLOW
    assert ring_order(ids, rates) == ("n00", "n02", "n01", "n03")


def test_the_direction_is_chosen_too() -> None:
    """Links that are slow one way only: the same ring the other way round is fast."""
    ids = names(3)
    rates = links(ids)
    rates["n00", "n01"] = SLOW
    assert ring_order(ids, rates) == ("n00", "n02", "n01")
    rates["n02", "n01"] = rates["n01", "n00"] = SLOW / 2
    assert ring_order(ids, rates) == ("n00", "n01", "n02")


def test_all_nodes_find_the_same_ring_whatever_their_list() -> None:
    ids = names(6)
    for seed in range(5):
        rates = draw(6, seed, [1e7, 1e8])
        rng = random.Random(seed)
        found = {ring_order(rng.sample(ids, 6), rates) for _ in range(4)}
        assert len(found) == 1


def test_among_equally_fast_rings_the_one_with_less_latency_wins() -> None:
    ids = names(4)
    waits = dict.fromkeys(permutations(ids, 2), 1e-3)
    for a, b in (("n00", "n02"), ("n02", "n01"), ("n01", "n03"), ("n03", "n00")):
        waits[a, b] = 1e-4
    rates = links(ids)
    assert ring_order(ids, rates, waits) == ("n00", "n02", "n01", "n03")
    rates["n00", "n01"] *= 2  # more bandwidth is worth any latency
    assert ring_order(ids, rates, waits)[:2] == ("n00", "n01")


@pytest.mark.parametrize("seed", range(12))
def test_no_other_ring_is_better(seed: int) -> None:
    """Against all rings there are: slowest hop, then sum, then latency, then ids."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    ids = names(count)
    rates = draw(count, seed, [1e6, 1e7, 1e8] if seed % 2 else None)
    waits = {pair: rng.choice([1e-4, 1e-3]) for pair in rates}
    hosts = [ids[1:3], [ids[0], ids[-1]]] if count >= 5 and seed % 3 else []
    hops = HopTable.between(ids, rates, waits, hosts)
    rings = [r for r in permutations(range(count)) if hops.keeps_hosts_together(r)]
    first = {r for r in rings if r[0] in hosts_of(hops, r)}
    best = max((hops.slowest(r), hops.total(r)) for r in rings)
    want = min(r for r in first if (hops.slowest(r), hops.total(r)) == best)
    assert best_ring(hops) == want
    assert ring_order(ids, rates, waits, same_host=hosts) == tuple(ids[i] for i in want)


def hosts_of(hops: HopTable, ring: tuple[int, ...]) -> set[int]:
    """The node that may come first: where the host of node 0 begins."""
    home = hops.host[0]
    size = len(ring)
    starts = {
        ring[i]
        for i in range(size)
        if home >> ring[i] & 1 and not home >> ring[i - 1] & 1
    }
    return starts or {0}


def test_ten_nodes_take_a_moment() -> None:
    ids = names(MAX_EXACT)
    for rates, hosts in (
        (draw(MAX_EXACT, 1), []),
        (links(ids), []),
        (links(ids), [ids]),
    ):
        started_s = time.process_time()
        ring_order(ids, rates, same_host=hosts)
        assert time.process_time() - started_s < 8.0, "all orders would take longer"


@pytest.mark.parametrize("levels", [None, [1e6, 1e7, 1e8]])
def test_the_search_finds_the_fastest_slowest_hop_of_few_nodes(
    levels: list[float] | None,
) -> None:
    """Where the best is known: the same slowest hop, and nearly the same sum."""
    shares = []
    for seed in range(16):
        count = 8 + seed % 3
        hops = HopTable.between(names(count), draw(count, seed, levels), {}, [])
        best, good = best_ring(hops), good_ring(hops)
        assert sorted(good) == list(range(count))
        assert hops.slowest(good) == hops.slowest(best), f"seed {seed}"
        shares.append(hops.total(good) / hops.total(best))
    assert sum(shares) / len(shares) > 0.93


@pytest.mark.parametrize("count", [16, 32, 64])
def test_a_hidden_fast_ring_is_found(count: int) -> None:
    """Cables from each node to two others, anything else slow: one ring, both ways."""
    ids = names(count)
    ring = random.Random(count).sample(ids, count)
    rates = links(ids, SLOW)
    for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
        rates[a, b] = rates[b, a] = FAST
    assert slowest(ring_order(ids, rates), rates) == FAST


@pytest.mark.parametrize("count", [16, 32, 64])
def test_a_hidden_one_way_ring_among_false_leads_is_found(count: int) -> None:
    ids = names(count)
    rng = random.Random(count)
    ring = rng.sample(ids, count)
    rates = links(ids, SLOW)
    for pair in zip(ring, ring[1:] + ring[:1], strict=True):
        rates[pair] = FAST
    for _ in range(count):
        a, b = rng.sample(ids, 2)
        rates[a, b] = FAST
    assert slowest(ring_order(ids, rates), rates) == FAST


@pytest.mark.parametrize("count", [16, 32, 64])
def test_a_slow_cable_between_two_switches_is_used_twice(count: int) -> None:
    """No ring can do with less, and more would fill it."""
    ids = names(count)
    upstairs = set(random.Random(count).sample(ids, count // 3))
    rates = {
        (a, b): SLOW if (a in upstairs) != (b in upstairs) else FAST
        for a, b in permutations(ids, 2)
    }
    order = ring_order(ids, rates)
    assert sum(rates[hop] == SLOW for hop in hops(order)) == 2


@pytest.mark.parametrize("count", [16, 64])
def test_slow_pairs_are_avoided_by_many_nodes_too(count: int) -> None:
    ids = names(count)
    rng = random.Random(count)
    rates = links(ids)
    for _ in range(count):
        a, b = rng.sample(ids, 2)
        rates[a, b] = rates[b, a] = SLOW
    assert slowest(ring_order(ids, rates), rates) == FAST


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [5, 10, 14, 30])
def test_nodes_of_one_host_stay_together(count: int, seed: int) -> None:
    """Memory is faster than any wire, so the wire between hosts is crossed once each.

    Even where the figures would tempt to leave a host early.
    """
    ids = names(count)
    mixed = random.Random(seed).sample(ids, count)
    hosts = [mixed[:2], mixed[2:5], mixed[5:9]]
    rates = draw(count, seed)
    if seed % 2:  # the same both ways, so that turning a stretch around may pay
        rates = {(a, b): rates[min(a, b), max(a, b)] for a, b in rates}
    order = ring_order(ids, rates, same_host=hosts)
    assert sorted(order) == ids
    home = next((host for host in hosts if "n00" in host), ["n00"])
    assert order[0] in home
    for host in filter(None, [*hosts, home]):
        places = sorted(order.index(node) for node in host)
        assert places == list(range(places[0], places[0] + len(host)))


def test_a_host_needs_no_measured_wire_inside() -> None:
    rates: Pairs = {("a", "c"): 1e8, ("c", "a"): 1e8, ("b", "c"): 1e8, ("c", "b"): 1e6}
    order = ring_order(["a", "b", "c"], rates, same_host=[["a", "b"]])
    assert order == ("a", "b", "c")
    assert ring_order(["a", "b"], {}, same_host=[["a", "b"]]) == ("a", "b")


def test_what_nobody_measured_counts_as_no_link() -> None:
    ids = names(4)
    rates = links(ids, 1.0)
    del rates["n00", "n01"], rates["n01", "n00"]
    assert ring_order(ids, rates) == ("n00", "n02", "n01", "n03")
    assert ring_order(ids, {}) == tuple(ids)
    assert ring_order(names(20), {}) == tuple(names(20))


def test_small_rings_and_mistakes() -> None:
    assert ring_order([], {}) == ()
    assert ring_order(["a"], {}) == ("a",)
    assert ring_order(["b", "a"], {}) == ("a", "b")
    with pytest.raises(ConfigError, match="a is in the list twice"):
        ring_order(["a", "b", "a"], {})
    with pytest.raises(ConfigError, match="a is on two hosts"):
        ring_order(["a", "b", "c"], {}, same_host=[["a", "b"], ["a", "c"]])


def test_rates_that_differ_by_chance_are_levelled() -> None:
    rates = {("a", "b"): 119e6, ("b", "c"): 123e6, ("c", "a"): 110e6}
    rest = {("a", "d"): 12e6, ("d", "a"): 0.0}
    level: Pairs = dict.fromkeys(rates, 123e6)
    assert merge_close_rates({**rates, **rest}) == {**level, **rest}
    assert merge_close_rates(dict[tuple[str, str], float]()) == {}
