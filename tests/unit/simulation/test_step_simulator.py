"""The step simulator accepts the protocol and finds each planted bug."""

from __future__ import annotations

import pytest

from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seeded_run import simulate_steps

NUM_SEEDS = 24


def test_no_seed_violates_an_invariant() -> None:
    results = [simulate_steps(seed) for seed in range(NUM_SEEDS)]
    assert [(r.seed, r.failure) for r in results if r.failure] == []
    assert {r.size for r in results} >= set(range(2, 9))
    assert sum(r.num_delivered for r in results) > 30 * NUM_SEEDS
    for happened in ("gathers", "adopted", "forks", "crashes"):
        assert sum(getattr(r, f"num_{happened}") for r in results) > NUM_SEEDS


def test_a_seed_tells_the_same_story_every_time() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        simulate_steps(11, trace=story.append)
    assert stories[0] == stories[1]
    assert any("installs" in line for line in stories[0])


def test_the_membership_machine_below_violates_nothing() -> None:
    results = [simulate_with_membership(seed) for seed in range(4)]
    assert [(r.seed, r.failure) for r in results if r.failure] == []
    assert sum(r.num_delivered for r in results) > 100


CAUGHT = {
    "compare_versions": (426, "I1"),
    "mix_attempts": (4, "I2"),
    "compare_lineages": (0, ""),
    "deliver_after_status": (0, "I4"),
    "ignore_promises": (107, "I10"),
    "keep_void": (1, "I6"),
    "trust_the_holder": (25, "I7"),
    "one_buffer": (0, "I8"),
    "copy_before_gather": (41, "I9"),
    "publish_at_once": (65, "I10"),
    "keep_all_results": (0, "I11"),
    "assign_from_memory": (0, "I12"),
    "commit_codec_early": (0, "I13"),
    "ignore_delivered": (0, "I6"),
    "drop_early_frames": (100, "I7"),
    "forget_last_promises": (87, "I5"),
}
"""The first seed that finds each bug, of benchmarks/step_protocol.py."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_found(bug: str) -> None:
    seed, invariant = CAUGHT[bug]
    failure = simulate_steps(seed, rules=PLANTED_BUGS[bug]).failure
    assert failure is not None
    assert failure.startswith(invariant)
    assert simulate_steps(seed).failure is None
