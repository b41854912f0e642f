"""States that differ are found: by digests in the sideband, or re-aligned in turns."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from ringleader.testing.threaded_world import run_threads, world
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.scrub import Drift, scrub
from ringleader.training.state.state_agreement import StateAgreement, reports
from ringleader.training.state.state_watch import (
    DOUBT,
    EVERY,
    NOTHING,
    is_difference,
    slice_digest,
)
from ringleader.training.state.verdict import Repair

NAMES = ["ada", "bob", "ida"]


def member() -> ReplicatedState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 301), nn.BatchNorm1d(301), nn.Linear(301, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 100)).sum().backward()
    optimizer.step()
    return ReplicatedState(model, optimizer)


def test_one_changed_bit_is_found_within_one_round_of_slices() -> None:
    one, other = member(), member()
    versions = range(0, EVERY * 64, EVERY)
    assert slice_digest(one, EVERY + 1) == 0
    assert [slice_digest(one, v) for v in versions] == [
        slice_digest(other, v) for v in versions
    ]
    moments = other.optimizer.state[other.model[2].weight]["exp_avg_sq"]  # type: ignore[index]
    moments.view(torch.int32)[2, 300] ^= 1
    found = [v for v in versions if slice_digest(one, v) != slice_digest(other, v)]
    assert found
    values_differ = member()
    values_differ.optimizer.param_groups[0]["lr"] = 0.5
    assert slice_digest(one, 0) != slice_digest(values_differ, 0), "at once"


def test_members_that_hashed_nothing_do_not_count() -> None:
    assert is_difference([7, 5, 5, NOTHING])
    assert is_difference([NOTHING, DOUBT]), "one that knows of a difference is enough"
    assert not is_difference([9, 9, NOTHING])
    assert not is_difference([NOTHING, NOTHING])


def test_scrubbing_aligns_every_byte_and_reports_drift(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = [member() for _ in range(3)]
    with torch.no_grad():
        states[1].model[0].weight.mul_(1 + 1e-6)  # type: ignore[index]
        states[2].model[2].bias[1] += 0.5  # type: ignore[index]

    def turns(rank: int) -> list[Drift]:
        return [scrub(groups[rank], states[rank], turn, NAMES) for turn in range(12)]

    with world(3) as groups, caplog.at_level(logging.ERROR):
        drifts = run_threads([lambda r=r: turns(r) for r in range(3)])  # type: ignore[misc]
    assert len({state.digest().root for state in states}) == 1
    small = [drift.relative for each in drifts[:2] for drift in each if drift.relative]
    assert small
    assert max(small) < 1e-5
    large = max(drifts[2], key=lambda drift: drift.relative)
    assert large.name == "model/2.bias"
    assert large.relative > 1e-3
    assert "model/2.bias differed from that on " in caplog.text


def test_what_user_code_may_change_on_one_machine_is_not_compared() -> None:
    one, other = member(), member()
    one.extra, other.extra = {"best": 1}, {"best": 2}
    for each in (one, other):
        each.model.register_buffer("counted", torch.zeros(3))
    other.model.get_buffer("counted").add_(1)
    assert one.digest().root != other.digest().root
    parts = [each.without_local() for each in (one, other)]
    assert len({part.digest().root for part in parts}) == 1
    other.model.get_buffer("1.running_mean").add_(1)
    assert len({part.digest().root for part in parts}) == 2


def test_a_difference_stays_in_doubt_until_it_is_repaired() -> None:
    """Also if the group breaks in between: the next step tells it again."""
    states = [member() for _ in range(3)]
    agreements = [StateAgreement(state, every=1) for state in states]
    with torch.no_grad():
        states[2].model[0].weight[3, 4] += 1e-6  # type: ignore[index]
    with world(3) as groups:
        for each in agreements:
            each.enter(NAMES, is_exact=True)

        def align(version: int) -> list[int]:
            run_threads(
                [
                    lambda a=a, g=g: a.align(g, version)  # type: ignore[misc]
                    for a, g in zip(agreements, groups, strict=True)
                ]
            )
            return [a.to_tell(version) for a in agreements]

        told = align(0)
        assert len(set(told)) == 2
        agreements[1].note(told)  # a result that was gathered in another view
        assert agreements[1].to_tell(0) == DOUBT
        told = [a.to_tell(0) for a in agreements]
        for each in agreements:
            each.note(told)
        told = align(1)
    assert len(set(told)) == 1
    assert DOUBT not in told
    assert len({state.digest().root for state in states}) == 1


def test_the_sentence_about_a_repair_names_the_machine() -> None:
    found = [Repair("model/a", 0, 2), Repair("model/b", 1, 2)]
    assert reports(found, NAMES) == [
        "model/a and 1 more on ida differed from most machines, and was copied from "
        "ada; if it happens again, check the memory of ida"
    ]
    (text,) = reports([Repair("model/a", 0, 1)], NAMES[:2])
    assert "of two machines nobody can tell which one is right" in text
