"""Members whose states differ in a run are found, named and made equal again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.groups.group import Group
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training.state.state_agreement import StateAgreement
from tests.kit import elastic_task
from tests.kit.elastic_task import Member, Trained, difference, members

TIME_S = 120.0
FLIPPED_BIT = 1 << 8
"""Of a float64: it changes the run by less than the tolerance of these tests."""


Flips = dict[int, Callable[[elastic_task.Net, Optimizer], Tensor]]
"""Version -> what is wrong from then on."""

Seen = tuple[Trained, dict[int, str], list[str]]
"""The end, the digest of the parameters after each step, and what was logged."""


class Texts(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


def train(me: Member, name: str, flips: Flips, *, is_fused: bool) -> Seen:
    """Train as one member, whose memory fails after the steps ``flips``."""
    model, optimizer, scheduler = elastic_task.parts()
    if is_fused:
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
    elastic_task.parts = lambda: (model, optimizer, scheduler)
    aligned: dict[int, str] = {}
    texts: list[str] = []
    logging.getLogger("ringleader.training").addHandler(Texts(texts))
    align = StateAgreement.align

    def watched(self: StateAgreement, group: Group, version: int) -> None:
        align(self, group, version)
        aligned[version] = elastic_task.digest(model)
        if version in flips:
            flips[version](model, optimizer).view(torch.int64)[2, 3] ^= FLIPPED_BIT

    StateAgreement.align = watched  # type: ignore[method-assign]
    return elastic_task.train(replace(me.config(), name=name)), aligned, texts


def flipping_member(group: Group, ready: Ready, world: list[Member]) -> Seen:
    """Rank 1 has a wrong parameter after step 5, rank 2 a wrong moment after step 9."""
    group.close()
    ready()
    flips: list[Flips] = [
        {},
        {5: lambda model, _: model.last.weight.data},
        {9: lambda model, optimizer: optimizer.state[model.first.weight]["exp_avg_sq"]},
    ]
    return train(world[group.rank], f"m{group.rank}", flips[group.rank], is_fused=False)


@pytest.mark.slow
def test_a_flipped_bit_is_found_named_and_repaired(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "", ""])
    with spawn_ranks(3, flipping_member, world, fork_server=fork_server) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for trained, _, texts in results:
        assert difference(trained.state, elastic_task.reference()) < 1e-9
        of_m1, of_m2 = sorted(
            (text for text in texts if "differed" in text),
            key=lambda text: "on m2 differed" in text,
        )
        assert of_m1.startswith(
            "ringleader: step 17: model/last.weight on m1 differed from most"
        )
        assert "on m2 differed" in of_m2
        assert "first.weight" in of_m2, "and what followed from it"
    good, first, second = (aligned for _, aligned, _ in results)
    differed = [version for version in good if first[version] != good[version]]
    assert differed == list(range(6, 17)), "the slice of step 16 is told in step 17"
    assert good[18] == first[18] == second[18]


def unlike_member(group: Group, ready: Ready, world: list[Member]) -> Seen:
    """Rank 1 has an optimizer that computes other bits."""
    group.close()
    ready()
    rank = group.rank
    return train(world[rank], f"m{rank}", {}, is_fused=rank == 1)


@pytest.mark.slow
def test_machines_that_compute_other_bits_are_aligned_in_turns(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    world = members(tmp_path, ["", "", ""])
    with spawn_ranks(3, unlike_member, world, fork_server=fork_server) as ranks:
        results = [rank.result(TIME_S) for rank in ranks]
    for trained, _, texts in results:
        assert difference(trained.state, elastic_task.reference()) < 1e-9
        assert not [text for text in texts if "differed" in text]
    plain, fused, _ = (aligned for _, aligned, _ in results)
    equal = [version for version in plain if plain[version] == fused[version]]
    assert set(equal) >= {4, 8, 12, 16}
    assert len(equal) < 18, "their bits do differ"
