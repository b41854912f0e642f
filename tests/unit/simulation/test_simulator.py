"""The collective simulator agrees with formulas, and its methods with each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from ringleader.collectives.algorithm import OPERATIONS, algorithms, program
from ringleader.collectives.schedule import Program, copy, send
from ringleader.collectives.schedule_checker import ScheduleError
from ringleader.errors import ConfigError
from ringleader.simulation.collectives.network_model import (
    LinkModel,
    NetworkModel,
    NodeSpeed,
    islands,
    one_slow_link,
)
from ringleader.simulation.collectives.program_shape import common_shape
from ringleader.simulation.collectives.simulator import predict, simulate, skip_reason

LATENCY_S = 0.5e-3
RATE = 125e6
BYTES = 25_000_000
WHOLE_S = BYTES / RATE
"""Time of the whole tensor on one link."""


def switch(
    size: int, *, card: float | None = None, reduce: float = math.inf
) -> NetworkModel:
    return NetworkModel.uniform(
        size,
        latency_s=LATENCY_S,
        bytes_per_s=RATE,
        nic_bytes_per_s=card,
        reduce_bytes_per_s=reduce,
    )


def programs_of(operation: str, name: str, size: int) -> list[Program]:
    return [program(operation, name, rank, size) for rank in range(size)]


def unsegmented(
    operation: str, name: str, network: NetworkModel, chunk_bytes: int
) -> float:
    """Time if a chunk is stored before it is forwarded: textbook formulas apply."""
    programs = programs_of(operation, name, network.size)
    return simulate(programs, chunk_bytes, network, segment_bytes=chunk_bytes).time_s


@pytest.mark.parametrize("size", [2, 3, 8, 20])
def test_a_ring_takes_what_the_textbook_says(size: int) -> None:
    time_s = unsegmented("all_reduce", "ring", switch(size), BYTES // size)
    steps = 2 * (size - 1)
    assert time_s == pytest.approx(steps * (LATENCY_S + WHOLE_S / size), rel=1e-6)


def test_a_ring_that_cuts_through_hides_all_latencies_but_one() -> None:
    time_s = predict("all_reduce", "ring", BYTES, switch(8)).time_s
    assert time_s == pytest.approx(2 * 7 / 8 * WHOLE_S + LATENCY_S, rel=0.01)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_doubling_takes_log_n_steps_of_the_whole_tensor(steps: int) -> None:
    time_s = unsegmented("all_reduce", "doubling", switch(1 << steps), BYTES)
    assert time_s == pytest.approx(steps * (LATENCY_S + WHOLE_S), rel=1e-6)


def test_a_tree_broadcast_pays_both_children_at_every_level() -> None:
    time_s = unsegmented("broadcast", "tree", switch(7), BYTES)
    assert time_s == pytest.approx(2 * (LATENCY_S + 2 * WHOLE_S), rel=1e-6)


def test_the_middle_of_a_star_has_one_card_for_all_its_wires() -> None:
    shared = predict("broadcast", "star", BYTES, switch(9)).time_s
    assert shared == pytest.approx(8 * WHOLE_S + LATENCY_S, rel=0.01)
    gathered = predict("reduce", "star", BYTES, switch(9)).time_s
    assert gathered == pytest.approx(8 * WHOLE_S + LATENCY_S, rel=0.01)


def test_without_a_card_limit_the_wires_of_a_star_work_at_once() -> None:
    network = switch(9, card=math.inf)
    time_s = predict("broadcast", "star", BYTES, network).time_s
    assert time_s == pytest.approx(WHOLE_S + LATENCY_S, rel=0.01)


def test_an_exchange_is_one_step_of_everything() -> None:
    time_s = predict("all_reduce", "exchange", BYTES, switch(4)).time_s
    assert time_s == pytest.approx(3 * WHOLE_S + LATENCY_S, rel=0.01)


def test_halving_moves_as_many_bytes_as_a_ring_in_fewer_steps() -> None:
    tiny = 4096
    network = switch(64)
    ring = predict("all_reduce", "ring", tiny, network)
    halving = predict("all_reduce", "halving", tiny, network)
    assert ring.bytes_sent == halving.bytes_sent
    assert ring.time_s == pytest.approx(2 * 63 * LATENCY_S, rel=0.02)
    assert halving.time_s == pytest.approx(2 * 6 * LATENCY_S, rel=0.05)


def test_adding_up_takes_its_time() -> None:
    network = switch(2, reduce=1e9)
    time_s = unsegmented("all_reduce", "exchange", network, BYTES)
    assert time_s == pytest.approx(LATENCY_S + WHOLE_S + BYTES / 1e9, rel=1e-6)


def test_one_slow_link_sets_the_pace_of_the_ring() -> None:
    network = one_slow_link(switch(8), LinkModel(LATENCY_S, RATE / 10))
    time_s = predict("all_reduce", "ring", BYTES, network).time_s
    assert time_s == pytest.approx(10 * 2 * 7 / 8 * WHOLE_S, rel=0.05)


def test_a_slow_link_that_is_not_used_changes_nothing() -> None:
    network = one_slow_link(switch(8), LinkModel(LATENCY_S, RATE / 10), pair=(2, 6))
    even = predict("all_reduce", "ring", BYTES, switch(8))
    assert predict("all_reduce", "ring", BYTES, network) == even


def test_all_that_crosses_between_islands_shares_the_trunk() -> None:
    network = islands(switch(4), 2, LinkModel(5e-3, RATE / 5))
    time_s = predict("all_reduce", "exchange", BYTES, network).time_s
    assert time_s == pytest.approx(4 * 5 * WHOLE_S + 5e-3, rel=0.02)


def test_a_slow_card_slows_down_everything_of_its_node() -> None:
    nodes = (NodeSpeed(RATE / 4, RATE, math.inf), *switch(4).nodes[1:])
    network = NetworkModel(nodes=nodes, link=LinkModel(LATENCY_S, RATE))
    time_s = predict("broadcast", "star", BYTES, network).time_s
    assert time_s == pytest.approx(3 * 4 * WHOLE_S, rel=0.01)


def test_bytes_are_counted_where_they_are_sent() -> None:
    star = predict("broadcast", "star", 1000, switch(4))
    assert star.bytes_sent == (3000, 0, 0, 0)
    ring = predict("all_reduce", "ring", 1000, switch(4))
    assert ring.bytes_sent == (1500,) * 4


def test_a_rank_alone_takes_no_time() -> None:
    result = predict("all_reduce", "ring", BYTES, switch(1))
    assert (result.time_s, result.bytes_sent) == (0.0, (0,))


def test_no_bytes_take_the_latency() -> None:
    time_s = predict("all_reduce", "star", 0, switch(4)).time_s
    assert time_s == pytest.approx(2 * LATENCY_S)


@pytest.mark.parametrize("name", algorithms("all_reduce"))
def test_the_same_question_has_the_same_answer(name: str) -> None:
    network = islands(switch(9, reduce=1e9), 2, LinkModel(5e-3, RATE / 5))
    first, second = (predict("all_reduce", name, 10**6, network) for _ in range(2))
    assert first == second


def networks(size: int) -> list[NetworkModel]:
    even = switch(size, reduce=5e8)
    wide = switch(size, card=2.5 * RATE, reduce=5e8)
    slow = LinkModel(2 * LATENCY_S, RATE / 10)
    uneven = [one_slow_link(n, slow) for n in (even, wide)]
    uneven += [islands(n, 2, slow) for n in (even, wide)]
    return [even, wide, switch(size, card=math.inf), *uneven]


SYMMETRIC = [
    (operation, name)
    for operation in OPERATIONS
    for name in algorithms(operation)
    if common_shape(programs_of(operation, name, 6)) is not None
]


def test_the_expected_schedules_are_the_same_for_all_ranks() -> None:
    assert set(SYMMETRIC) == {
        ("all_reduce", "ring"),
        ("all_reduce", "halving"),
        ("reduce_scatter", "ring"),
        ("reduce_scatter", "halving"),
        ("all_gather", "direct"),
        ("all_gather", "ring"),
        ("all_gather", "doubling"),
        ("all_to_all", "direct"),
    }


@pytest.mark.parametrize("size", [2, 3, 6, 9])
@pytest.mark.parametrize(("operation", "name"), SYMMETRIC)
def test_shortcuts_equal_the_replay_of_all_ranks(
    operation: str, name: str, size: int
) -> None:
    programs = programs_of(operation, name, size)
    for network in networks(size):
        quick = simulate(programs, 200_000, network)
        slow = simulate(programs, 200_000, network, is_shortcut_allowed=False)
        assert quick == slow


def test_a_sample_of_the_programs_predicts_what_all_of_them_do() -> None:
    size = 66
    network = one_slow_link(switch(size), LinkModel(1e-3, RATE / 10))
    programs = programs_of("all_reduce", "ring", size)
    every = simulate(programs, 7000, network, is_shortcut_allowed=False)
    assert predict("all_reduce", "ring", 7000 * size, network) == every


def test_a_thousand_nodes_are_no_trouble() -> None:
    network = switch(1024, reduce=3e9)
    ring = predict("all_reduce", "ring", BYTES, network).time_s
    assert ring == pytest.approx(2 * 1023 * (LATENCY_S + WHOLE_S / 1024), rel=0.05)
    halving = predict("all_reduce", "halving", BYTES, network).time_s
    assert 2 * 1023 / 1024 * WHOLE_S < halving < ring


def test_meshes_of_a_thousand_nodes_are_refused_with_a_reason() -> None:
    assert skip_reason("direct", 64) is None
    assert "1,047,552 streams" in str(skip_reason("exchange", 1024))
    assert skip_reason("ring", 1024) is None


def test_too_many_messages_are_refused_before_they_are_replayed() -> None:
    network = one_slow_link(switch(1024), LinkModel(LATENCY_S, RATE / 10))
    with pytest.raises(ConfigError, match="the limit of the simulator"):
        predict("all_reduce", "halving", BYTES, network)


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    programs = [[copy(1, 0), send(1, 0)], [copy(0, 0), send(0, 0)]]
    with pytest.raises(ScheduleError, match="never complete"):
        simulate(programs, 100, switch(2))


def test_what_nobody_receives_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="never received"):
        simulate([[send(1, 0)], []], 100, switch(2))


def test_programs_and_nodes_must_be_as_many() -> None:
    with pytest.raises(ConfigError, match="2 programs for a network of 3"):
        simulate([[], []], 100, switch(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: switch(0),
        lambda: NetworkModel.uniform(2, latency_s=-1, bytes_per_s=RATE),
        lambda: NetworkModel.uniform(2, latency_s=0, bytes_per_s=0),
        lambda: switch(2, card=0),
        lambda: one_slow_link(switch(2), LinkModel(0, 1), pair=(1, 1)),
        lambda: one_slow_link(switch(2), LinkModel(0, 1), pair=(0, 2)),
        lambda: islands(switch(2), 3, LinkModel(0, 1)),
        lambda: NetworkModel(
            nodes=(NodeSpeed(),), link=LinkModel(0, 1), trunk=LinkModel(0, 1)
        ),
    ],
)
def test_a_network_that_makes_no_sense_is_refused(
    make: Callable[[], NetworkModel],
) -> None:
    with pytest.raises(ConfigError, match="network"):
        make()
