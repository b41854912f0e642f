"""Ranks that make different calls all get an error with both calls in it.

Never numbers, never a crash: a future that fails in the wrong way looks fulfilled to
DDP's C++, which then reads a tensor that is not there.
"""

from __future__ import annotations

import pytest

from tests.kit.scenario_worlds import (
    BACKEND,
    ScenarioCall,
    ScenarioServer,
    backend,
    one_shot,
)

pytestmark = pytest.mark.skipif(
    backend() != BACKEND, reason="other backends do not compare calls"
)

TIMEOUT_S = 90.0
WITHIN_S = 45.0
"""A mismatch is seen when the calls meet, not when time is up."""
EXIT_S = 60.0

SMALL = {
    "size": ("all_reduce(10 x", "all_reduce(11 x"),
    "operation": ("all_reduce(10 x", "broadcast(10 x"),
}
DDP = {
    "size": ("all_reduce(", "all_reduce(1 x"),
    "operation": ("all_reduce(", "broadcast("),
}
HOOK = {"size": ("all_reduce(", "all_reduce("), "operation": DDP["operation"]}
CASES = {
    "mismatch_by_wait": SMALL,
    "mismatch_by_future": SMALL,
    "mismatch_by_callback": SMALL,
    "mismatch_in_a_later_call": SMALL,
    "mismatch_by_ddp": DDP,
    "mismatch_by_ddp_hook": HOOK,
}
"""Which way the error takes, and what has to be in its text."""


@pytest.mark.parametrize(
    ("name", "what", "size"),
    [(name, "operation", 2) for name in CASES]
    + [("mismatch_by_wait", "size", 3), ("mismatch_by_ddp", "size", 3)],
)
def test_every_rank_learns_of_both_calls(
    scenario_server: ScenarioServer, name: str, what: str, size: int
) -> None:
    call = ScenarioCall(module="tests.torch.scenario_faults", name=name, args=(what,))
    with one_shot(scenario_server, size, call, TIMEOUT_S) as ranks:
        for rank in ranks:
            report = rank.report(WITHIN_S)
            assert report.kind == "failed", "different calls, and yet a result"
            for words in CASES[name][what]:
                assert words in report.text, report.trace
        for rank in ranks:
            assert rank.has_ended(EXIT_S), f"hangs at exit:\n{rank.written()}"
            assert scenario_server.reap(rank) == 1, rank.written()
