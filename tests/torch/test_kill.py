"""A rank is killed or fails in the middle: the others say who, and end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.scenario_worlds import (
    BACKEND,
    ScenarioCall,
    ScenarioServer,
    backend,
    one_shot,
)

pytestmark = pytest.mark.skipif(
    backend() != BACKEND, reason="other backends do not say who was lost"
)

TIMEOUT_S = 90.0
"""Timeout of the group; a death is noticed far earlier, when its sockets close."""
START_S = 120.0
EXIT_S = 60.0
LOST_WITHIN_S = 30.0
"""For the interpreter to end, with all that torch has loaded, on a busy machine."""


@pytest.mark.parametrize(
    ("what", "victim"),
    [
        ("train_ddp", 0),
        ("train_ddp_in_shared_buckets", 1),
        ("train_ddp_with_a_hook_that_reduces_twice", 0),
        ("train_fsdp2", 1),
        ("train_pipeline", 0),
        ("train_pipeline", 1),
        ("reduce_ahead", 0),
    ],
)
def test_survivors_name_the_killed_rank_and_end(
    scenario_server: ScenarioServer, what: str, victim: int
) -> None:
    call = ScenarioCall(
        module="tests.torch.scenario_faults", name=what, wants_ready=True
    )
    with one_shot(scenario_server, 3, call, TIMEOUT_S) as ranks:
        for rank in ranks:
            report = rank.report(START_S)
            assert report.kind == "ready", report.trace
        killed_at_s = ranks[victim].kill()
        survivors = [rank for rank in ranks if rank.rank != victim]
        for rank in survivors:
            report = rank.report(TIMEOUT_S + 10)
            assert report.kind == "failed", "it ended as if nothing had happened"
            assert f"rank {victim}" in report.text, report.trace
            assert report.at_s - killed_at_s < LOST_WITHIN_S, report.trace
        for rank in survivors:
            assert rank.has_ended(EXIT_S), f"hangs at exit:\n{rank.written()}"
            assert scenario_server.reap(rank) == 1, rank.written()


def test_an_exception_on_one_rank_reaches_who_waits_for_its_message(
    scenario_server: ScenarioServer,
) -> None:
    """A defect that a review found: the others heard nothing, and it did not end."""
    call = ScenarioCall(
        module="tests.torch.scenario_faults",
        name="raise_in_the_middle",
        wants_ready=True,
    )
    with one_shot(scenario_server, 2, call, TIMEOUT_S) as ranks:
        for rank in ranks:
            report = rank.report(START_S)
            assert report.kind == "ready", report.trace
        for rank, words in zip(
            ranks, ("no luck", "ended with ValueError"), strict=True
        ):
            report = rank.report(TIMEOUT_S)
            assert report.kind == "failed"
            assert words in report.text, report.trace
        for rank in ranks:
            assert rank.has_ended(EXIT_S), f"hangs at exit:\n{rank.written()}"
            assert scenario_server.reap(rank) == 1, rank.written()


@pytest.mark.slow
def test_data_of_a_killed_machine_comes_from_another(
    scenario_server: ScenarioServer, tmp_path: Path
) -> None:
    """The others name who was killed; then only what had not arrived is sent."""

    def call(name: str) -> ScenarioCall:
        return ScenarioCall(
            module="tests.torch.scenario_data",
            name=name,
            args=(str(tmp_path),),
            wants_ready=True,
        )

    for name in ("fetch_until_killed", "ask_until_killed"):
        with one_shot(scenario_server, 2, call(name), TIMEOUT_S) as ranks:
            for rank in ranks:
                report = rank.report(START_S)
                assert report.kind == "ready", report.trace
            killed_at_s = ranks[1].kill()
            report = ranks[0].report(TIMEOUT_S + 10)
            assert report.kind == "failed"
            assert "rank 1" in report.text, report.trace
            assert report.at_s - killed_at_s < LOST_WITHIN_S, report.trace
            assert ranks[0].has_ended(EXIT_S), f"hangs:\n{ranks[0].written()}"
    shutil.rmtree(tmp_path / "machine1" / "data")
    with one_shot(scenario_server, 3, call("fetch_the_rest"), TIMEOUT_S) as ranks:
        for rank in ranks:
            assert rank.report(START_S).kind == "ready"
        for rank in ranks:
            report = rank.report(START_S)
            assert report.kind == "done", report.trace
