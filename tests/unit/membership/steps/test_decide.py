"""decide: which update a new view applies, after each kind of failure."""

from __future__ import annotations

import pytest

from ringleader.errors import InternalError
from ringleader.membership.steps.plan import Gather, Reduce
from tests.kit.step_world import StepWorld


def who(world: StepWorld, names: str) -> frozenset[object]:
    return frozenset(world.at[n].me for n in names)


def test_the_first_member_is_the_source_of_a_new_run() -> None:
    world = StepWorld("abc")
    plan = world.change("abc")
    assert plan.adopt == who(world, "bc")
    assert plan.sources == (world.at["a"].me,)
    assert (plan.version, plan.action, plan.is_fork) == (0, Reduce(), False)
    world.carry_out("abc")
    world.step("abc")
    assert len(set(world.chains("abc").values())) == 1


def test_a_death_before_any_bucket_is_final_reduces_again() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.begin("abc")
    plan = world.change("bc")
    assert plan.action == Reduce()
    assert not plan.adopt
    assert not plan.is_fork
    world.step("bc")
    assert world.at["b"].version == 2


def test_buckets_of_survivors_that_complete_each_other_are_gathered() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.begin("abc")
    world.fill("b", (0, 2))
    world.fill("c", (1,))
    plan = world.change("bc")
    assert isinstance(plan.action, Gather)
    b, c = world.at["b"].me, world.at["c"].me
    assert plan.action.holders == (b, c, b)
    assert (plan.version, plan.quanta) == (2, {})
    world.carry_out("bc")
    world.step("bc")
    assert world.at["b"].chain == world.at["c"].chain


def test_what_one_member_delivered_all_others_get() -> None:
    world = StepWorld("abc")
    world.start("abc")
    world.begin("abc")
    world.fill("c")
    world.deliver("c")
    plan = world.change("abc")
    assert isinstance(plan.action, Gather)
    assert (plan.version, plan.sources) == (2, (world.at["c"].me,))
    world.carry_out("abc")
    assert len(set(world.chains("abc").values())) == 1


def test_buckets_of_two_attempts_are_never_mixed() -> None:
    world = StepWorld("abcd")
    world.start("abcd")
    world.begin("abcd")
    world.fill("d", (0, 1))
    world.change("abc")  # d is suspected and keeps its buckets
    world.begin("abc")
    world.fill("b", (2,))
    plan = world.change("bcd")
    assert plan.action == Reduce()
    assert not plan.adopt


def test_a_laggard_adopts_if_nobody_holds_the_result_it_lacks() -> None:
    world = StepWorld("abc")
    world.start("abc", num_steps=2)
    world.begin("abc")
    world.fill("a")
    world.deliver("a")
    newcomer = StepWorld("n").at["n"]
    world.at["n"] = newcomer
    plan = world.change("abn")  # n adopts from a, b gathers; then a dies
    assert isinstance(plan.action, Gather)
    assert newcomer.begin_adopt(newcomer.plan_view.id)
    assert newcomer.adopt(newcomer.plan_view.id, 300)
    plan = world.change("bn")
    assert plan.adopt == who(world, "b")
    assert (plan.version, plan.sources) == (3, (newcomer.me,))


def test_a_second_computation_of_the_same_quanta_is_void() -> None:
    world = StepWorld("abc")
    world.start("abc")
    for name, quanta in (("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5))):
        world.at[name].assign(quanta)
    plan = world.change("ab")  # c is falsely suspected
    assert plan.quanta == {world.at["a"].me: (0, 1), world.at["b"].me: (2, 3)}
    world.at["a"].assign((0, 1, 4))
    world.at["b"].assign((2, 3, 5))
    plan = world.change("abc")
    assert plan.void == who(world, "c")
    assert plan.quanta == {world.at["a"].me: (0, 1, 4), world.at["b"].me: (2, 3, 5)}
    assert world.at["c"].quanta == ()


def test_a_frozen_member_delivers_nothing() -> None:
    world = StepWorld("ab")
    world.start("ab")
    world.begin("ab")
    attempt = world.at["a"].next_attempt
    world.fill("a")
    view_id = world.at["a"].view.id
    world.propose("ab")
    assert not world.at["a"].deliver(view_id, 100)
    assert not world.at["b"].bucket_done(attempt, 0)
    assert not world.at["b"].begin(attempt, 3)


def test_a_late_bucket_of_another_attempt_is_refused() -> None:
    world = StepWorld("ab")
    world.start("ab")
    world.begin("ab")
    old = world.at["a"].next_attempt
    world.change("ab")
    assert not world.at["a"].bucket_done(old, 0)
    world.begin("ab")
    assert not world.at["a"].bucket_done(old, 0)
    with pytest.raises(InternalError, match="nothing complete"):
        world.at["a"].deliver(world.at["a"].view.id, 100)


def test_a_thread_that_two_view_changes_overtook_changes_nothing() -> None:
    world = StepWorld("abc")
    world.start("ab")
    world.begin("ab")
    world.fill("a")
    first = world.at["a"].plan_view.id
    plan = world.change("abc")  # freeze and install while a thread of a sleeps
    assert isinstance(plan.action, Gather)
    assert not world.at["a"].deliver(first, 100)
    copied = world.at["c"].plan_view.id
    assert world.at["c"].begin_adopt(copied)
    world.change("abc")
    assert not world.at["c"].adopt(copied, 200), "that was the state of another plan"
    assert not world.at["c"].begin_adopt(copied)
    assert world.at["c"].must_adopt


def test_a_payload_of_an_older_view_pauses() -> None:
    world = StepWorld("ab")
    world.start("ab")
    old = world.propose("ab")
    view = world.propose("ab")
    stale = type(view)(view.id, view.members, (view.payloads[0], old.payloads[1]))
    plan = world.install(stale, "ab")
    assert plan.is_paused
    assert "old status" in plan.pause_reason
    assert not world.at["a"].is_ready
    assert not world.change("ab").is_paused


def test_a_history_read_from_disk_beats_an_empty_one() -> None:
    world = StepWorld("ab")
    old = StepWorld("c")
    old.start("c", num_steps=3)
    disk = old.at["c"]
    assert disk.last is not None
    world.at["b"].restore(3, disk.chain, disk.chain_before, disk.last, disk.samples)
    plan = world.change("ab")
    assert plan.adopt == who(world, "a")
    assert (plan.version, plan.samples) == (3, 300)


def test_a_torn_state_is_no_source() -> None:
    world = StepWorld("abc")
    world.start("ab")
    world.change("abc")
    assert world.at["c"].begin_adopt(world.at["c"].plan_view.id)
    plan = world.change("c")
    assert plan.is_paused
    assert plan.lacks_state


def test_a_member_that_still_gathers_does_not_speak_for_the_new_view() -> None:
    """It would take everybody back to the version that it has itself."""
    world = StepWorld("abc")
    world.start("abc", num_steps=2)
    world.change("ab")
    world.step("ab")
    world.install(world.propose("ca"), "c")  # c is to gather version 3 from a
    plan = world.change("cb")
    assert plan.version == 3
    assert world.at["b"].me not in plan.adopt
