"""States that differ are found: by digests in the sideband, or re-aligned in turns."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from ringleader.testing.threaded_world import run_threads, world
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.scrub import Drift, scrub
from ringleader.training.state.state_watch import EVERY, differing, slice_digest


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


def test_the_majority_is_right() -> None:
    assert differing({0: 7, 1: 5, 2: 5, 3: 0}) == [0]
    assert differing({0: 7, 1: 5}) == [1]
    assert differing({0: 0, 1: 0}) == []
    assert differing({0: 9, 1: 9}) == []


def test_scrubbing_aligns_every_byte_and_reports_drift(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = [member() for _ in range(3)]
    with torch.no_grad():
        states[1].model[0].weight.mul_(1 + 1e-6)  # type: ignore[index]
        states[2].model[2].bias[1] += 0.5  # type: ignore[index]

    def turns(rank: int) -> list[Drift]:
        return [scrub(groups[rank], states[rank], version) for version in range(12)]

    with world(3) as groups, caplog.at_level(logging.ERROR):
        drifts = run_threads([lambda r=r: turns(r) for r in range(3)])  # type: ignore[misc]
    assert len({state.digest().root for state in states}) == 1
    small = [drift.relative for each in drifts[:2] for drift in each if drift.relative]
    assert small
    assert max(small) < 1e-5
    large = max(drifts[2], key=lambda drift: drift.relative)
    assert large.name == "model/2.bias"
    assert large.relative > 1e-3
    assert "model/2.bias differed from that of rank" in caplog.text
