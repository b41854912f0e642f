"""The step simulator accepts the protocol and finds each planted bug."""

from __future__ import annotations

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
