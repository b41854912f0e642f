"""Calls with a codec in a hierarchy: encoded across hosts, raw inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ringleader.codec.codec import BLOCK
from ringleader.collectives.algorithm_selection import (
    CODED_ALGORITHMS,
    choose_codec,
    choose_coded_algorithm,
    hierarchy_program,
)
from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.engine.over_links import coded_frames
from ringleader.engine.over_links.coded_frames import CodedPlan
from ringleader.engine.over_links.programs import Programs
from ringleader.errors import ConfigError
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_threads, run_world, world

LAYOUTS = ((0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 2, 2), (0, 1, 0, 2, 1))
"""The host of every rank: 2 + 2, 3 + 1, 1 + 1 + 2, and two hosts interleaved."""
LENGTHS = (1, 5, 2049, 20_001)
EXACT = 1e-6
"""Rounding of float32 sums, relative."""

pytestmark = pytest.mark.usefixtures("short_frames")


@pytest.fixture
def short_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many frames per chunk, without many megabytes."""
    monkeypatch.setattr(coded_frames, "FRAME", BLOCK)


def given(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def exact_sum(size: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sum of the inputs of all ranks, in float64."""
    return torch.stack([given(r, count, dtype).double() for r in range(size)]).sum(0)


def of_hosts(hosts: tuple[int, ...]) -> Network:
    """A network of 1 Gbit/s between these hosts."""
    inside, outside = LinkCost(2e-6, 5e9), LinkCost(1e-4, 119e6)
    links = tuple(tuple(inside if a == b else outside for b in hosts) for a in hosts)
    return replace(Network.unknown(len(hosts)), links=links, hosts=hosts)


def across(strategy: str, hosts: tuple[int, ...]) -> CollectiveConfig:
    return CollectiveConfig(
        num_nodes=len(set(hosts)),
        num_devices=3,
        local_all_reduce="tree",
        global_all_reduce=strategy,
        global_reduce="star",
        global_broadcast="star",
    )


def check_sums(hosts: tuple[int, ...], config: CollectiveConfig | None) -> None:
    """Sums and means of every codec: equal, within their bound, every loss reported."""
    size, network = len(hosts), of_hosts(hosts)
    local_roots = [hosts.index(host) for host in set(hosts)]
    calls = [(codec, n) for codec in ("int8", "bf16", "onebit") for n in LENGTHS]

    def body(group: Group) -> list[tuple[Tensor, Tensor]]:
        handle_of(group).network = network
        results = []
        for codec, count in calls:
            tensor, lost = given(group.rank, count), torch.full((count,), 77.0)
            group.all_reduce(tensor, codec=codec, algorithm="hierarchy", error_out=lost)
            results.append((tensor, lost))
        return results

    with world(size, config=config) as groups:
        ranks = run_threads([lambda g=g: body(g) for g in groups])  # type: ignore[misc]
    for i, (codec, count) in enumerate(calls):
        sums, losts = zip(*(results[i] for results in ranks), strict=True)
        assert all(torch.equal(each, sums[0]) for each in sums), (codec, count)
        exact = exact_sum(size, count)
        missing = exact - sums[0].double()
        reported = torch.stack(losts).double().sum(0)
        assert (reported - missing).abs().max() < EXACT * size * exact.abs().max()
        for rank, lost in enumerate(losts):
            assert rank in local_roots or not lost.any(), "only local roots encode"
        if codec == "int8":
            # Each local root encodes each element once, in steps of 1/127 of the
            # largest value, which no sum of the largest inputs exceeds.
            largest = sum(float(given(r, count).abs().max()) for r in range(size))
            bound = len(local_roots) * largest / 254
            assert missing.abs().max() <= bound * (1 + EXACT)


@pytest.mark.parametrize("hosts", LAYOUTS)
def test_sums_are_equal_bounded_and_every_loss_is_reported_where_it_occurs(
    hosts: tuple[int, ...],
) -> None:
    check_sums(hosts, None)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", LAYOUTS)
@pytest.mark.parametrize("strategy", ["tree:3", "star", "direct", "halving"])
def test_so_are_those_of_every_algorithm_across_hosts(
    hosts: tuple[int, ...], strategy: str
) -> None:
    check_sums(hosts, across(strategy, hosts))


def test_nothing_is_lost_for_good() -> None:
    """A residual goes raw to the local root, and its loss to the next step."""
    hosts, count, steps = (0, 0, 0, 1), 6001, 4
    network = of_hosts(hosts)

    def body(group: Group) -> tuple[Tensor, Tensor]:
        handle_of(group).network = network
        applied = torch.zeros(count, dtype=torch.float64)
        owed, lost = torch.zeros(count), torch.empty(count)
        for step in range(steps):
            tensor = given(100 * step + group.rank, count)
            group.all_reduce(
                tensor,
                codec="onebit",
                algorithm="hierarchy",
                residual=owed,
                error_out=lost,
            )
            applied += tensor
            owed, lost = lost, owed
        return applied, owed

    ranks = run_world(len(hosts), body)
    exact = torch.zeros(count, dtype=torch.float64)
    for step in range(steps):
        for rank in range(len(hosts)):
            exact += given(100 * step + rank, count)
    owed = torch.stack([each for _, each in ranks]).double().sum(0)
    assert float((exact - ranks[0][0] - owed).norm()) < 1e-5 * float(exact.norm())
    assert float(owed.norm()) > 0.1 * float(exact.norm()), "a bit loses a lot"


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_means_of_every_dtype_over_unequal_hosts(transport: str) -> None:
    """ZF-3: a mean of the means of 3 + 1 ranks would count one rank three times."""
    hosts, count = (0, 0, 0, 1), 20_001
    size, network = len(hosts), of_hosts(hosts)
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

    def body(group: Group) -> list[Tensor]:
        handle_of(group).network = network
        results = []
        for dtype in dtypes:
            source = given(group.rank, count, dtype)
            kept, out = source.clone(), torch.empty_like(source)
            call: dict[str, Any] = {"codec": "int8", "algorithm": "hierarchy"}
            group.all_reduce(source, "mean", out=out, **call)
            assert torch.equal(source, kept), "it wrote its input"
            group.all_reduce(source, "mean", **call)
            assert torch.equal(source, out), "in place it is the same"
            residual = torch.zeros(count)
            group.all_reduce(kept, "mean", residual=residual, **call)
            assert torch.equal(kept, out), "with a residual of 0 it is the same"
            results.append(out)
        return results

    ranks = run_world(size, body, transport)
    for i, dtype in enumerate(dtypes):
        assert all(torch.equal(results[i], ranks[0][i]) for results in ranks)
        exact = exact_sum(size, count, dtype) / size
        off = (ranks[0][i].double() - exact).abs().max()
        largest = max(float(given(r, count).abs().max()) for r in range(size))
        halves = {torch.float16: 2**-9, torch.bfloat16: 2**-6}  # sums are kept as such
        assert off < (2 / 254 + halves.get(dtype, 0.0)) * largest


def test_an_all_gather_forwards_the_bytes_of_the_rank_that_encoded_them() -> None:
    hosts, count = (0, 1, 0, 2, 1), 8201
    size, network = len(hosts), of_hosts(hosts)

    def body(group: Group) -> list[Tensor]:
        handle_of(group).network = network
        results = []
        for codec in ("int8", "bf16", "onebit"):
            for algorithm in ("hierarchy", "ring"):
                out = torch.empty(count * size)
                mine = given(group.rank, count)
                group.all_gather(out, mine, codec=codec, algorithm=algorithm)
                results.append(out)
        return results

    for results in (ranks := run_world(size, body)):
        assert all(map(torch.equal, results, ranks[0]))
        assert all(map(torch.equal, results[::2], results[1::2])), "as a flat ring"


def test_a_sub_group_that_cuts_through_hosts_has_its_own_local_roots() -> None:
    """ZF-15: its ranks are its own, and its local roots need not be the world's."""
    hosts, members, count = (0, 0, 1, 1, 1), (4, 1, 3), 5001

    def body(group: Group) -> Tensor | None:
        handle_of(group).network = of_hosts(hosts)
        part = group.subgroup(members)
        if part is None:
            return None
        with part:
            tensor = given(part.rank, count)
            part.all_reduce(tensor, "mean", codec="int8", algorithm="hierarchy")
            return tensor

    ranks = run_world(len(hosts), body)
    results = [ranks[r] for r in members]
    assert isinstance(results[0], Tensor)
    assert all(isinstance(t, Tensor) and torch.equal(t, results[0]) for t in results)
    off = (results[0].double() - exact_sum(3, count) / 3).abs().max()
    assert off < 2 / 254 * max(float(given(r, count).abs().max()) for r in range(3))


@pytest.mark.parametrize("strategy", CODED_ALGORITHMS["all_reduce"])
def test_local_roots_encode_every_element_once_and_the_others_none(
    strategy: str,
) -> None:
    """The condition under which ``error_out`` reports the complete error."""
    for hosts in (*LAYOUTS, (0, 0, 1, 2, 2, 2, 3, 4), (0, 0, 0)):
        network, config = of_hosts(hosts), across(strategy, hosts)
        num_hosts = len(set(hosts))
        for rank in range(len(hosts)):
            key = ("all_reduce", "hierarchy", 0, 2)
            programs = Programs(rank, network, config)
            plan = CodedPlan(programs.make(key), programs.raw_peers(key))
            is_local_root = hosts.index(hosts[rank]) == rank
            for history in plan.versions.values():
                encoded = sum(v.is_encoded for v in history)
                assert encoded == (is_local_root and num_hosts > 1)
        assert hierarchy_program("all_reduce", 0, network, 0, config)


def choose(
    operation: str,
    hosts: tuple[int, ...],
    algorithm: str | None = None,
    config: CollectiveConfig | None = None,
) -> tuple[str, str]:
    """(algorithm, reason) for 64 MiB as int8."""
    name, _, reason = choose_coded_algorithm(
        operation,
        16 << 20,
        of_hosts(hosts),
        algorithm,
        raw_bytes=64 << 20,
        config=config,
    )
    return name, reason


def test_the_cost_model_offers_it_where_hosts_have_several_ranks() -> None:
    for hosts in ((0, 0, 1, 1), (0, 0, 0, 1)):
        assert choose("all_reduce", hosts)[0] == "hierarchy"
        assert choose_codec("all_reduce", 64 << 20, of_hosts(hosts)) == "int8"
    assert choose("all_reduce", (0, 1, 2, 3))[0] != "hierarchy"
    assert choose("reduce_scatter", (0, 0, 1, 1))[0] == "direct"


def test_what_it_does_not_support_is_refused_by_name() -> None:
    hosts = (0, 0, 1, 1)
    with pytest.raises(ConfigError, match="hierarchy with doubling across hosts"):
        choose("all_reduce", hosts, "hierarchy", across("doubling", hosts))
    with pytest.raises(ConfigError, match="reduce_scatter: algorithm hierarchy"):
        choose("reduce_scatter", hosts, "hierarchy")
    configured = ("hierarchy", "num_nodes is set in the configuration")
    assert choose("all_reduce", hosts, config=across("ring", hosts)) == configured
