"""The pure parts of ``ringleader bench``: plan, values, statistics, tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from ringleader.cli.bench import bench_plan, check_pattern
from ringleader.cli.bench.bench_plan import (
    OPERATIONS,
    BenchCell,
    BenchPlan,
    Competitor,
    competitors,
)
from ringleader.cli.bench.bench_rank import allocate
from ringleader.cli.bench.measurement import Measurement, Results, check_auto
from ringleader.cli.bench.table import (
    auto_table,
    draw,
    markdown,
    result_tables,
    size_text,
    time_text,
)
from ringleader.errors import ConfigError

SHM, GLOO, MPI = Competitor("shm"), Competitor("gloo"), Competitor("mpi")
CELL = BenchCell("all_reduce", 65536)


def measured(
    competitor: Competitor, *rounds_s: float, cell: BenchCell = CELL
) -> Measurement:
    return Measurement(2, cell, competitor, 10, rounds_s)


def make_plan(
    *,
    ranks: tuple[int, ...] = (2, 4),
    sizes: tuple[int, ...] = (4, 1024),
    operations: tuple[str, ...] = OPERATIONS,
    competitor: tuple[Competitor, ...] = (SHM, GLOO),
    rounds: int = 5,
) -> BenchPlan:
    return BenchPlan(
        ranks=ranks,
        sizes_bytes=sizes,
        operations=operations,
        competitors=competitor,
        rounds=rounds,
    )


def test_a_call_takes_the_median_of_its_rounds() -> None:
    found = measured(SHM, 1.0, 50.0, 2.0)

    assert found.call_s == 2.0
    flat = json.loads(json.dumps(found.to_json()))
    assert (flat["median_s"], flat["min_s"], flat["max_s"]) == (2.0, 1.0, 50.0)
    assert (flat["engine"], flat["bytes"], flat["ranks"]) == ("shm", 65536, 2)


def test_a_ratio_above_one_means_that_we_are_faster() -> None:
    results = Results([measured(SHM, 2e-5), measured(GLOO, 8e-5)])

    assert results.ratio(2, CELL, SHM, GLOO) == pytest.approx(4.0)
    assert results.ratio(2, CELL, SHM, MPI) is None
    assert results.ratio(4, CELL, SHM, GLOO) is None


def test_a_table_shows_times_ratios_and_what_is_missing() -> None:
    small = BenchCell("all_reduce", 4)
    results = Results(
        [
            measured(SHM, 5e-6, cell=small),
            measured(GLOO, 250e-6, cell=small),
            measured(MPI, 2e-6, cell=small),
            measured(SHM, 2e-5),
            measured(GLOO, 1e-3),
        ]
    )

    [content] = result_tables(results)

    assert content.title == "all_reduce, 2 ranks"
    assert content.headers[-2:] == ("shm xGloo", "shm xMPI")
    texts = [[field.text for field in row] for row in content.rows]
    assert texts == [
        ["4 B", "5 us", "250 us", "2 us", "50.0", "0.40"],
        ["64 KiB", "20 us", "1 ms", "-", "50.0", "-"],
    ]
    assert [field.is_good for field in content.rows[0][-2:]] == [True, False]


def test_markdown_and_terminal_show_the_same_fields() -> None:
    results = Results([measured(SHM, 4e-5), measured(GLOO, 2e-5)])
    [content] = result_tables(results)
    terminal = StringIO()
    Console(width=120, file=terminal).print(draw(content))

    page = markdown(content)

    assert "| 64 KiB | 40 us | 20 us | **0.50** |" in page
    for text in ("64 KiB", "40 us", "20 us", "0.50"):
        assert text in terminal.getvalue()


def test_auto_is_held_against_the_best_fixed_algorithm() -> None:
    ring, tree = Competitor("shm", "ring"), Competitor("shm", "tree")
    tcp_ring = Competitor("tcp", "ring")
    results = Results(
        [
            measured(SHM, 1.2e-4),
            measured(ring, 1.0e-4),
            measured(tree, 2.0e-4),
            measured(tcp_ring, 0.1e-4),  # another transport does not count
        ]
    )

    [check] = check_auto(results)

    assert check.best == "ring"
    assert check.loss == pytest.approx(1.2)
    content = auto_table([check])
    assert content.title.endswith("in 0 of 1")
    assert content.rows[0][-1].is_good is False


def test_fixed_algorithms_have_a_table_of_their_own() -> None:
    ring = Competitor("shm", "ring")
    results = Results([measured(SHM, 1e-4), measured(ring, 2e-4), measured(GLOO, 3e-4)])

    pairs, algorithms = result_tables(results)

    assert pairs.headers == ("size", "shm", "Gloo", "shm xGloo")
    assert algorithms.headers == ("size", "auto", "ring")
    assert [field.text for field in algorithms.rows[0]] == [
        "64 KiB",
        "100 us",
        "200 us",
    ]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(4, "4 B"), (65536, "64 KiB"), (1 << 28, "256 MiB"), (25_000_000, "25 MB")],
)
def test_sizes_are_named_as_they_were_meant(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_what_was_not_measured_is_a_dash() -> None:
    assert time_text(None) == "-"
    assert time_text(5.04e-6) == "5.04 us"


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_rank_finds_what_the_definition_of_the_operation_says(
    operation: str, size: int
) -> None:
    """Compare the expected values with the operations written in numpy."""
    cell = BenchCell(operation, 1200)
    held = [allocate(cell, size) for _ in range(size)]
    for rank, buffers in enumerate(held):
        check_pattern.write(
            buffers.source, check_pattern.source_parts(operation, rank, size)
        )
    inputs = [buffers.source.copy() for buffers in held]
    for rank, buffers in enumerate(held):
        buffers.result[:] = outcome(operation, inputs, rank)

    for rank, buffers in enumerate(held):
        expected = check_pattern.result_parts(operation, rank, size)
        assert check_pattern.first_wrong(buffers.result, expected) is None
        buffers.result[-1] += 1
        assert "element" in str(check_pattern.first_wrong(buffers.result, expected))


def outcome(
    operation: str, inputs: list[check_pattern.Array], rank: int
) -> check_pattern.Array:
    size = len(inputs)
    total: check_pattern.Array = np.sum(inputs, axis=0, dtype=np.float32)
    match operation:
        case "all_reduce":
            return total
        case "broadcast":
            return inputs[0]
        case "all_gather":
            return np.concatenate(inputs)
        case "reduce_scatter":
            return np.split(total, size)[rank]
        case _:
            return np.concatenate([np.split(given, size)[rank] for given in inputs])


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_even_the_smallest_size_gives_every_rank_an_element(
    operation: str, ranks: int
) -> None:
    cell = BenchCell(operation, 4)

    buffers = allocate(cell, ranks)

    assert buffers.source.size >= 1
    assert buffers.result.size >= 1
    assert bench_plan.total_items(cell, ranks) in (1, ranks)
    assert buffers.result.ctypes.data % 64 == 0


def test_a_batch_is_filled_but_never_empty_and_never_endless() -> None:
    assert bench_plan.iterations(1e-3, 0.05) == 50
    assert bench_plan.iterations(0.03, 0.05) == 3
    assert bench_plan.iterations(2.0, 0.05) == 1
    assert bench_plan.iterations(0.0, 0.05) == 20_000


def test_the_order_of_turns_reverses() -> None:
    assert bench_plan.turn_order((SHM, GLOO), 0) == (SHM, GLOO)
    assert bench_plan.turn_order((SHM, GLOO), 1) == (GLOO, SHM)


def test_fixed_algorithms_run_only_where_they_exist() -> None:
    competitor = competitors(("shm", "tcp"), ("gloo",), ("ring", "shm", "exchange"))
    titles = [
        c.title for c in make_plan(competitor=competitor).competitors_for("broadcast")
    ]

    assert titles == [
        "Ringleader shm",
        "Ringleader shm ring",
        "Ringleader shm shm",
        "Ringleader tcp",
        "Ringleader tcp ring",
        "Gloo",
    ]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: make_plan(ranks=(1,)), "ranks"),
        (lambda: make_plan(sizes=(3,)), "sizes"),
        (lambda: make_plan(operations=("all_reduce", "sort")), "sort"),
        (lambda: make_plan(competitor=()), "nothing to measure"),
        (lambda: make_plan(competitor=(Competitor("nccl"),)), "nccl"),
        (lambda: make_plan(competitor=(Competitor("shm", "magic"),)), "magic"),
        (lambda: make_plan(rounds=0), "rounds"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    wrong: Callable[[], BenchPlan], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        wrong()
