"""A member that lacks the state gets it bit for bit, and training goes on equally."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from ringleader.checkpoint import values
from ringleader.errors import GroupAborted, LayoutMismatch, RingleaderError
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, world
from ringleader.training.state.transfer import (
    Roles,
    Transferred,
    repair_state,
    transfer_state,
)
from tests.kit.state_members import OPTIMIZERS, Member, assert_equal


def transfer(members: list[Member], roles: Roles) -> list[Transferred]:
    with world(len(members)) as groups:
        return run_threads(
            [
                lambda g=g, m=m: transfer_state(g, m.state, roles, names="abcd")  # type: ignore[misc]
                for g, m in zip(groups, members, strict=True)
            ]
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_adopted_state_is_equal_and_trains_equally(optimizer: str) -> None:
    source, adopter = Member(1, optimizer), Member(2, optimizer)
    source.train(3)
    adopter.train(1, seed=5)
    weight, ema = adopter.model.head.weight, adopter.extra["ema"]["w"]
    results = transfer([source, adopter], Roles((0,), (1,)))
    assert results[0].root == results[1].root == source.state.digest().root
    assert results[1].is_exact
    assert_equal(source, adopter)
    assert adopter.model.head.weight is weight, "parameters keep their memory"
    assert adopter.extra["ema"]["w"] is ema
    assert adopter.model.second.weight is adopter.model.first.weight
    for each in (source, adopter):
        each.train(3, seed=7)
    assert_equal(source, adopter)


def test_before_the_first_step_there_is_no_optimizer_state_to_invent() -> None:
    members = [Member(seed, "momentum") for seed in range(3)]
    members[2].train(2)
    reference = Member(0, "momentum")
    transfer(members, Roles((0,), (1, 2)))
    assert not members[2].optimizer.state, "the state of the abandoned history is gone"
    for each in (*members, reference):
        each.train(2)
    for each in members:
        assert_equal(reference, each)


def test_a_state_stays_as_it_is_until_the_other_one_is_whole() -> None:
    members = [Member(3, "adam"), Member(4, "adam")]
    for each in members:
        each.train(2)
    before = members[1].state.digest().root

    def refuse(encoded: bytes) -> None:
        assert values.decode(encoded)["extra"]["best"] == 3, "all of it has arrived"
        assert members[1].state.digest().root == before
        raise GroupAborted("a view was promised meanwhile")

    with world(2) as groups:
        source, adopter = groups
        roles = Roles((0,), (1,))

        def adopt() -> None:
            with pytest.raises(GroupAborted):
                transfer_state(adopter, members[1].state, roles, commit=refuse)

        run_threads([lambda: transfer_state(source, members[0].state, roles), adopt])
    assert members[1].state.digest().root == before
    assert members[0].state.digest().root != before


@pytest.mark.parametrize("keeps", [True, False])
def test_what_came_before_a_source_was_lost_is_not_sent_again(keeps: bool) -> None:
    members = [Member(3, "adam"), Member(4, "adam")]
    for each in members:
        for number in range(12):
            first = each.extra["best"]
            each.extra[f"large {number}"] = torch.arange(first, first + 1_000_000.0)
        each.train(2)
    if not keeps:  # a newcomer has no state of the optimizer yet
        members[1].optimizer.state.clear()
    until = 16 << 20

    def copy(group: Group, member: Member) -> Transferred | None:
        def lose(done: int) -> None:
            if done > until and group.rank == 1:
                group.abort("the source is lost")

        with suppress(RingleaderError):
            return transfer_state(
                group,
                member.state,
                Roles((0,), (1,)),
                progress=lose,
                keeps=keeps,
                is_warm=member.state.is_begun,
            )
        return None

    def try_to_copy() -> list[Transferred | None]:
        with world(2) as groups:
            return run_threads(
                [
                    lambda g=g, m=m: copy(g, m)  # type: ignore[misc]
                    for g, m in zip(groups, members, strict=True)
                ]
            )

    assert try_to_copy() == [None, None]
    until = 1 << 40
    done = try_to_copy()[1]
    assert done is not None
    assert 0 < done.copied_bytes <= done.num_bytes - (16 << 20) + (4 << 20)
    assert_equal(members[0], members[1])
    assert not members[1].state.arrived


def test_several_sources_serve_one_adopter() -> None:
    members = [Member(3, "adam") for _ in range(3)] + [Member(4, "adam")]
    for each in members[:3]:
        each.extra["large"] = torch.arange(3_000_001.0)  # three pieces
    for each in members[:3]:
        each.train(2)
    results = transfer(members, Roles((0, 1, 2), (3,)))
    assert not results[0].repaired
    assert_equal(members[0], members[3])


def test_a_warm_adopter_gets_only_what_differs() -> None:
    members = [Member(3, "adam") for _ in range(3)]
    for each in members:
        each.train(2)
    members[2].extra["best"] = "stale"
    members[2].extra["ema"]["w"] += 1
    with torch.no_grad():
        members[2].model.norm.bias.add_(1)
        members[2].model.conv.weight[0, 0, 0, 0] += 1
    roles = Roles((0, 1), (2,))
    with world(3) as groups:
        results = run_threads(
            [
                lambda g=g, m=m: transfer_state(  # type: ignore[misc]
                    g, m.state, roles, is_warm=m is members[2]
                )
                for g, m in zip(groups, members, strict=True)
            ]
        )
    assert_equal(members[0], members[2])
    assert not results[0].repaired
    assert results[0].copied_bytes == 5 * 4 + 5 * 3 * 9 * 4 + 400 * 4


def test_a_difference_is_repaired_from_the_majority() -> None:
    members = [Member(3, "adam") for _ in range(3)]
    for each in members:
        each.train(2)
    with torch.no_grad():
        members[0].model.head.weight[1, 2] += 1e-7
    members[0].extra["best"] = "wrong"
    before = members[1].state.digest().root
    with world(3) as groups:
        results = run_threads(
            [
                lambda g=g, m=m: repair_state(g, m.state)  # type: ignore[misc]
                for g, m in zip(groups, members, strict=True)
            ]
        )
    names = {repair.name for repair in results[0].repaired}
    assert names == {"model/head.weight", "values"}
    assert {repair.target for repair in results[0].repaired} == {0}
    assert {each.state.digest().root for each in members} == {before}
    assert members[0].extra["best"] == 3


def test_another_model_is_refused_by_name_on_the_newcomer_only() -> None:
    members = [Member(1, "adam"), Member(2, "adam"), Member(3, "adam", classes=4)]
    before = members[1].state.digest().root

    def run(group: Group, member: Member) -> Transferred | LayoutMismatch:
        try:
            return transfer_state(
                group, member.state, Roles((0,), (1, 2)), names=["lea", "kim", "max"]
            )
        except LayoutMismatch as exc:
            return exc

    with world(3) as groups:
        results = run_threads(
            [
                lambda g=g, m=m: run(g, m)  # type: ignore[misc]
                for g, m in zip(groups, members, strict=True)
            ]
        )
    text = str(results[2])
    assert isinstance(results[2], LayoutMismatch)
    assert "model/head.weight F32[4, 7] here is" in text
    assert "F32[3, 7] there" in text
    assert "lea" in text
    assert all(list(r.refused) == [2] for r in results[:2])  # type: ignore[union-attr]
    assert members[1].state.digest().root == before, "nothing was copied"


def test_sorted_values_do_not_depend_on_the_order_of_keys() -> None:
    one = values.encode({"b": 1, "a": {3, 1, 2}}, is_sorted=True)
    assert one == values.encode({"a": {2, 1, 3}, "b": 1}, is_sorted=True)
    assert values.decode(one) == {"a": {1, 2, 3}, "b": 1}
