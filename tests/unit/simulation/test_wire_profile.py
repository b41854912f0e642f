"""Profiles of networks: no faster than their wire, slower with more bytes and nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.collectives.algorithm_selection import (
    INT8_SHARE,
    choose_algorithm,
    choose_coded_algorithm,
)
from ringleader.errors import ConfigError
from ringleader.simulation.collectives.network_model import NetworkModel
from ringleader.simulation.collectives.simulator import predict
from ringleader.simulation.collectives.wire_profile import (
    PROFILES,
    Medium,
    ScaleRow,
    find_profile,
    predict_row,
)

SIZES = (1_000, 1_000_000, 1_000_000_000)
NODES = (2, 3, 4, 8, 32, 256)
WIRED = [name for name, wire in PROFILES.items() if wire.medium is not Medium.AIR]


def row(name: str, num_bytes: int, nodes: int, step_s: float | None = None) -> ScaleRow:
    wire = PROFILES[name]
    return predict_row(wire, num_bytes, wire.network(nodes), step_s)


@pytest.mark.parametrize("name", PROFILES)
def test_nothing_is_faster_than_the_wire(name: str) -> None:
    for nodes in NODES:
        for num_bytes in SIZES:
            found = row(name, num_bytes, nodes)
            assert 0 < found.wire_share <= 1
            assert found.time_s >= PROFILES[name].latency_s


@pytest.mark.parametrize("name", PROFILES)
def test_more_bytes_take_longer(name: str) -> None:
    for nodes in NODES:
        times = [row(name, num_bytes, nodes).time_s for num_bytes in SIZES]
        assert times == sorted(times)
        assert times[0] < times[-1]


@pytest.mark.parametrize("name", PROFILES)
def test_more_nodes_take_longer_and_use_less_of_the_wire(name: str) -> None:
    found = [row(name, 100_000_000, nodes, step_s=1.0) for nodes in NODES]
    times = [each.time_s for each in found]
    assert times == sorted(times)
    efficiencies = [each.efficiency or 0.0 for each in found]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert all(
        0 < e < (each.rounds_efficiency or 0)
        for e, each in zip(efficiencies, found, strict=True)
    )


def test_faster_networks_take_less_time() -> None:
    order = ("wifi6", "1gbe", "2.5gbe", "10gbe", "25gbe")
    for nodes in NODES:
        times = [row(name, 100_000_000, nodes).time_s for name in order]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", WIRED)
@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 8, 16])
def test_the_algorithm_is_the_one_that_a_group_chooses(name: str, nodes: int) -> None:
    wire = PROFILES[name]
    network = wire.network(nodes)
    for num_bytes in (100, 50_000, 10_000_000):
        found = predict_row(wire, num_bytes, network)
        chosen, _, _ = choose_algorithm("all_reduce", num_bytes, network)
        coded, _, _ = choose_coded_algorithm(
            "all_reduce",
            round(num_bytes * INT8_SHARE),
            network,
            raw_bytes=num_bytes,
        )
        if wire.medium is Medium.RING and nodes > 3:
            chosen = coded = "ring"
        assert (found.algorithm, found.int8_algorithm) == (chosen, coded)


def test_one_channel_carries_what_all_nodes_send() -> None:
    wire = PROFILES["wifi6"]
    two, eight = (row("wifi6", 10_000_000, nodes) for nodes in (2, 8))
    # Every node but one sends the tensor and gets the sum: 2 (n - 1) tensors.
    assert eight.time_s / two.time_s == pytest.approx(7, rel=0.05)
    assert two.time_s >= 2 * 10_000_000 / wire.bytes_per_s


def test_a_slow_core_limits_a_fast_wire() -> None:
    wire = PROFILES["25gbe"]
    slow = replace(wire.network(4), copy_bandwidth=1e9)
    found = predict_row(wire, 100_000_000, slow)
    # 3 times half the tensor out and as much in, at 1 GB/s.
    assert found.time_s > 0.3
    assert found.wire_share < 0.25


@pytest.mark.parametrize("nodes", [4, 64, 256])
def test_the_replay_of_a_ring_is_a_little_faster(nodes: int) -> None:
    wire = PROFILES["1gbe"]
    model = NetworkModel.uniform(
        nodes, latency_s=wire.latency_s + 30e-6, bytes_per_s=wire.bytes_per_s
    )
    replayed = predict("all_reduce", "ring", 100_000_000, model)
    found = row("1gbe", 100_000_000, nodes)
    assert found.algorithm == "ring"
    # The replay hides latency behind the bytes of the next chunk, the cost model adds.
    assert replayed.time_s <= 1.01 * found.time_s <= 1.2 * replayed.time_s


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    assert find_profile(" 10GbE ") is PROFILES["10gbe"]
    with pytest.raises(ConfigError, match="unknown profile '5gbe'; use one of wifi6"):
        find_profile("5gbe")
