"""Lineages: an island keeps the name only if no other one can have it."""

from __future__ import annotations

from ringleader.membership.steps.decide import Partition
from tests.kit.step_world import StepWorld, member


def test_a_majority_keeps_the_name_and_a_minority_forks() -> None:
    world = StepWorld("abc")
    world.start("abc")
    name = world.at["a"].lineage
    assert world.change("bc").lineage == name
    fork = world.change("a")
    assert fork.is_fork
    assert fork.lineage not in ("", name)


def test_at_half_the_leader_decides() -> None:
    world = StepWorld("abcd")
    world.start("abcd")
    assert not world.change("ac").is_fork
    assert world.change("bd").is_fork


def test_a_minority_pauses_if_only_one_part_may_train() -> None:
    world = StepWorld("abc", partition="majority")
    world.start("abc")
    assert world.change("c").is_paused
    assert not world.change("ab").is_paused
    world.step("ab")
    plan = world.change("abc")  # heals: one result behind
    assert (plan.is_paused, plan.adopt) == (False, frozenset())
    world.carry_out("abc")
    world.step("abc")


def test_an_interrupted_view_counts_as_possibly_installed() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.install(world.propose("cb"), "c")  # b never gets the commit
    plan = world.change("ab")  # 2 of 3 of the old view, 1 of 2 of the view led by c
    assert plan.is_fork


def test_a_view_that_a_member_never_promised_does_not_count() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.propose("cb", heard_by="c")
    world.propose("ca", heard_by="ca")
    world.propose("cb", heard_by="b")
    assert world.change("ab").is_fork  # a and c may have installed the second one
    world = StepWorld("abcd")
    world.start("abcd")
    world.propose("dab", heard_by="ab")
    world.propose("dbc", heard_by="b")
    assert world.at["c"].status is not None
    assert not world.change("abc").is_fork


def test_two_nodes_keep_the_name_when_the_death_of_the_leader_is_proven() -> None:
    world = StepWorld("ab")
    world.start("ab")
    assert world.plan(world.propose("b")).is_fork
    world.at["b"].note_ended(member("a"), world.at["a"].view.id)
    assert not world.change("b").is_fork


def test_a_death_after_another_promise_proves_nothing() -> None:
    world = StepWorld("abz")
    world.start("ab")
    world.change("az")  # a goes on with a newcomer, then dies
    world.at["b"].note_ended(member("a"), world.at["a"].view.id)
    assert world.change("b").is_fork


def test_a_member_that_went_on_in_a_fork_has_forgotten_its_promises() -> None:
    world = StepWorld("fxy")
    world.start("xfy")
    world.install(world.propose("yf"), "y")  # y keeps the lineage; f never installs
    assert world.change("f").is_fork  # and f goes on alone, under another name
    assert not world.change("y").is_fork
    plan = world.change("xf")  # 2 of 3 of the view that x knows
    assert plan.is_fork


def test_most_samples_win_when_islands_meet() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.change("ab")
    world.step("ab")
    world.change("c")
    for _ in range(3):
        world.step("c")
    plan = world.change("abc")
    assert plan.adopt == {world.at["a"].me, world.at["b"].me}
    assert plan.version == 4


def test_a_fork_that_delivered_nothing_copies_nothing_when_it_returns() -> None:
    world = StepWorld("abc")
    world.start("abc")
    name = world.at["a"].lineage
    world.change("ab")
    world.change("c")
    plan = world.change("abc")
    assert (plan.lineage, plan.adopt) == (name, frozenset())


def test_a_member_that_is_here_has_not_ended() -> None:
    world = StepWorld("ab")
    world.start("ab")
    for name in "ab":
        world.at["b"].note_ended(member(name), world.at["b"].view.id)
    assert not world.change("ab").is_fork


def checkpoint_beside_minority(num_steps_since: int) -> StepWorld:
    """b has read a checkpoint; c was left behind by a, some steps after it."""
    world = StepWorld("acb", "majority")
    world.start("ac")
    saved = world.at["c"]
    assert saved.last is not None
    where = (saved.version, saved.chain, saved.chain_before, saved.last)
    world.at["b"].restore(*where, saved.samples)
    for _ in range(num_steps_since):
        world.step("ac")
    world.change("a")
    assert world.change("c").is_paused, "a may go on"
    return world


def test_of_equal_histories_one_that_may_go_on_wins() -> None:
    """Both have the same state, so to wait for machines that died would gain nothing.

    Found by seeds 27296 and 94943 of the simulator.
    """
    for names in ("bc", "cb"):
        plan = checkpoint_beside_minority(0).change(names)
        assert (plan.pause_reason, plan.adopt, plan.version) == ("", frozenset(), 1)


def test_a_history_that_must_pause_does_not_give_up_its_work() -> None:
    plan = checkpoint_beside_minority(1).change("bc")
    assert plan.is_paused
    assert plan.version == 2


def two_histories(partition: Partition) -> StepWorld:
    """d has the longer history; a promised a view of it, and went on in its own."""
    world = StepWorld("ad", partition)
    world.start("d", 2)
    world.start("a")
    world.install(world.propose("ad"), "ad")  # a is about to take the state of d
    assert not world.change("a").is_paused
    return world


def test_a_vote_for_another_history_is_remembered_where_it_would_stop_the_run() -> None:
    """Both members are here, so nobody else can continue the history of d."""
    world = two_histories("majority")
    name = world.at["d"].lineage
    plan = world.change("ad")
    assert (plan.lineage, plan.pause_reason) == (name, "")


def test_a_vote_for_another_history_is_forgotten_where_that_costs_a_name() -> None:
    world = two_histories("continue")
    plan = world.change("ad")
    assert (plan.is_fork, plan.is_paused) == (True, False)


def test_a_member_tells_that_a_view_has_paused() -> None:
    world = StepWorld("abc", "majority")
    world.start("abc")
    view = world.propose("bc")
    assert not world.install(view, "b").is_paused
    assert world.install(world.propose("c"), "c").is_paused  # it missed the view of b
    view = world.propose("ac")
    assert world.install(view, "a").is_paused  # c promised what b may have formed
    assert view.id in world.plan(world.propose("abc")).ruled_out


def test_what_a_member_does_not_remember_it_has_not_promised() -> None:
    world = StepWorld("abc", "majority")
    world.start("abc")
    view = world.propose("abc", heard_by="a")  # nobody else hears of it
    world.change("bc")
    assert not world.plan(world.propose("abc")).is_paused
    assert view.id in world.plan(world.propose("abc")).ruled_out
