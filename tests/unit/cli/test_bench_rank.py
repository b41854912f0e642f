"""BenchRank: wrong results are errors, batches are timed after a barrier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringleader.cli.bench.bench_rank import BenchRank, Buffers
from ringleader.cli.json_socket import Message
from ringleader.errors import ConfigError, RingleaderError


class Alone:
    """A library for one rank: every collective copies its input to the result."""

    def __init__(self, error: float = 0.0) -> None:
        self.error = error
        self.calls = 0
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        if algorithm == "magic":
            raise ConfigError("no algorithm 'magic'")

        def call() -> None:
            self.calls += 1
            buffers.result[...] = buffers.source
            buffers.result[-1] += self.error

        return call


def bench_rank(library: Alone, operation: str = "all_gather") -> BenchRank:
    made = BenchRank(0, 1, {"alone": library})
    made.handle({"do": "prepare", "operation": operation, "bytes": 4096})
    return made


def task(do: str, algorithm: str | None = None, iterations: int = 1) -> Message:
    return {
        "do": do,
        "engine": "alone",
        "algorithm": algorithm,
        "iterations": iterations,
    }


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "broadcast"])
def test_an_exact_answer_is_accepted(operation: str) -> None:
    assert bench_rank(Alone(), operation).handle(task("check")) == {"exact": True}


def test_one_wrong_element_is_an_error_that_says_where() -> None:
    with pytest.raises(
        RingleaderError, match=r"alone all_gather of 4096 .*element 1023"
    ):
        bench_rank(Alone(error=1.0)).handle(task("check"))


def test_an_algorithm_that_does_not_exist_is_declined_not_failed() -> None:
    answer = bench_rank(Alone()).handle(task("check", "magic"))

    assert answer == {"refused": "no algorithm 'magic'"}


def test_a_batch_starts_at_a_barrier_and_makes_every_call() -> None:
    library = Alone()

    answer = bench_rank(library).handle(task("batch", iterations=7))

    assert (library.barriers, library.calls) == (1, 7)
    assert float(str(answer["seconds"])) > 0


def test_a_task_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown task"):
        bench_rank(Alone()).handle({"do": "dance"})
