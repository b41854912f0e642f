"""The step simulator accepts the protocol and finds each planted bug."""

from __future__ import annotations

import pytest

from ringleader.simulation.steps.membership_run import simulate_with_membership
from ringleader.simulation.steps.oracle import INVARIANTS
from ringleader.simulation.steps.planted_bugs import PLANTED_BUGS
from ringleader.simulation.steps.seeded_run import simulate_steps

NUM_SEEDS = 24


def test_no_seed_violates_an_invariant() -> None:
    results = [simulate_steps(seed) for seed in range(NUM_SEEDS)]
    assert [(r.seed, r.failure) for r in results if r.failure] == []
    assert {r.size for r in results} >= set(range(2, 9))
    assert sum(r.num_delivered for r in results) > 20 * NUM_SEEDS
    for happened in ("gathers", "adopted", "forks", "crashes"):
        assert sum(getattr(r, f"num_{happened}") for r in results) > NUM_SEEDS


def test_no_seed_fails_that_once_did() -> None:
    """Of two equal histories the one that had to wait for others won."""
    assert [simulate_steps(seed).failure for seed in (27296, 94943)] == [None, None]


def test_a_seed_tells_the_same_story_every_time() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        simulate_steps(11, trace=story.append)
    assert stories[0] == stories[1]
    assert any("installs" in line for line in stories[0])


def test_the_membership_machine_below_violates_nothing() -> None:
    """In 1648 a second life of a node counted as the end of the first one."""
    results = [simulate_with_membership(seed) for seed in (0, 1, 2, 3, 1648)]
    assert [(r.seed, r.failure) for r in results if r.failure] == []
    assert sum(r.num_delivered for r in results) > 100


CAUGHT = {
    "compare_versions": 804,
    "mix_attempts": 23,
    "skip_spares": 106,
    "deliver_after_status": 0,
    "ignore_promises": 138,
    "keep_void": 2,
    "compare_lineages": 10,
    "one_buffer": 0,
    "copy_before_gather": 21,
    "publish_at_once": 324,
    "keep_all_results": 0,
    "assign_from_memory": 0,
    "commit_codec_early": 0,
    "overwrite_in_place": 0,
    "trust_the_holder": 345,
    "ignore_delivered": 6,
    "miss_void": 16,
    "drop_early_frames": 44,
    "count_forks": 1893,
    "count_the_dead": 110,
    "forget_last_promises": 114,
    "enter_half_copied": 0,
}
"""The first seed in which a bug breaks its invariant (benchmarks/step_protocol.py)."""


def test_every_invariant_has_a_planted_bug() -> None:
    assert CAUGHT.keys() == PLANTED_BUGS.keys()
    assert {PLANTED_BUGS[name].invariant for name in CAUGHT} == set(INVARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_found(bug: str) -> None:
    """By its invariant, also if no other one is checked."""
    invariant, rules = PLANTED_BUGS[bug]
    for watched in (INVARIANTS, (invariant,)):
        failure = simulate_steps(CAUGHT[bug], rules=rules, watched=watched).failure
        assert failure is not None
        assert failure.startswith(f"{invariant}:")
    assert simulate_steps(CAUGHT[bug]).failure is None
