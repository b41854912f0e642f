"""Rounds of local steps in the elastic loop: values, kills, codecs, equal members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ringleader.errors import ConfigError, InternalError
from ringleader.groups.group import Group
from ringleader.rounds.outer_step import OuterStep
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.training.data.data_state import Quantum, sample_indices
from ringleader.training.data.intervals import Interval
from ringleader.training.elastic import start_run
from ringleader.training.low_comm.method import parse
from ringleader.training.options import Options
from tests.kit import round_task
from tests.kit.elastic_task import Member, Trained, arrays, members
from tests.kit.round_task import SPEC

TIME_S = 300.0


def order(epoch: int, position: int) -> int:
    """Return the sample at a position of an epoch."""
    quantum = Quantum(0, epoch, (Interval(position, position + 1),))
    return int(sample_indices(SPEC, quantum)[0])


def everything_once() -> list[tuple[int, int]]:
    epochs = range(SPEC.epochs or 0)
    return [(epoch, i) for epoch in epochs for i in range(SPEC.num_samples)]


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def test_one_member_has_the_values_of_a_float64_run() -> None:
    """Local AdamW steps with clipping, Nesterov outside, BatchNorm, uneven rounds."""
    trained, ledger = round_task.train(None, low_comm="diloco")
    assert sorted(trained.positions) == everything_once()
    assert list(trained.digests) == list(range(1, 13))
    assert difference(trained.state, round_task.reference(ledger, order)) < 2e-3


@pytest.mark.parametrize(
    ("name", "steps", "codec"),
    [("diloco:7", 7, "int8"), ("diloco", 50, "int8"), ("sparseloco", 30, "sparseloco")],
)
def test_methods_have_names(name: str, steps: int, codec: str) -> None:
    assert (parse(name).steps, parse(name).codec) == (steps, codec)
    assert Options(low_comm=name).sent_codec == codec
    assert Options(low_comm=name, codec="none").sent_codec is None


@pytest.mark.parametrize("name", ["localsgd:5", "diloco:0", "diloco:x", "diloco:1e9"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="low_comm="):
        Options(low_comm=name)


def test_the_step_after_a_round_can_be_chosen() -> None:
    chosen = Options(low_comm="diloco", outer=(1.0, 0.5)).rounds
    assert chosen is not None
    assert chosen.outer == OuterStep(rate=1.0, momentum=0.5)
    with pytest.raises(ConfigError, match="outer= belongs to low_comm="):
        Options(outer=(1.0, 0.5))
    with pytest.raises(ConfigError, match="momentum from 0 to below 1"):
        Options(low_comm="diloco", outer=(1.0, 1.0))


def test_what_rounds_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        Options(low_comm="diloco", scaler=object())
    model = nn.Linear(7, 2).double()
    adam = torch.optim.Adam(model.parameters())
    chosen = Options(low_comm="diloco")
    with pytest.raises(ConfigError, match="needs float32 parameters; weight is"):
        start_run(model, adam, round_task.samples(), SPEC, chosen, None)


def member_body(
    group: Group, ready: Ready, world: list[Member], options: dict[str, Any]
) -> tuple[Trained, list[Any]]:
    group.close()
    ready()
    return round_task.be_member(world[group.rank], options)


def run_members(
    folder: Path, fork_server: ForkServer, kills: list[str], options: dict[str, Any]
) -> list[tuple[Trained, list[Any]]]:
    """Return what the members have that are not killed."""
    world = members(folder, kills)
    found = []
    with spawn_ranks(
        len(kills), member_body, world, options, fork_server=fork_server
    ) as ranks:
        for rank, kill in zip(ranks, kills, strict=True):
            if kill:
                with pytest.raises(InternalError, match="died without a word"):
                    rank.result(TIME_S)
            else:
                found.append(rank.result(TIME_S))
    first = found[0][0]
    for trained, _ in found:
        assert sorted(trained.positions) == everything_once()
        both = first.digests.keys() & trained.digests.keys()
        assert len(both) >= 5
        assert all(first.digests[v] == trained.digests[v] for v in both)
    return found


@pytest.mark.slow
def test_two_members_have_the_values_of_a_float64_run(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    """Differences weigh by samples, whoever computed how many."""
    options = {"low_comm": "diloco", "codec": "none"}
    both = run_members(tmp_path, fork_server, ["", ""], options)
    (trained, ledger), _ = both
    assert len(trained.nodes) == 2
    assert difference(trained.state, round_task.reference(ledger, order)) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kills"),
    [
        ("diloco", ["", "", "compute@6"]),
        ("diloco", ["", "held@3", ""]),
        ("sparseloco", ["rs:0@4", "", ""]),
    ],
)
def test_a_loss_in_mid_round_costs_its_own_steps_only(
    method: str, kills: list[str], tmp_path: Path, fork_server: ForkServer
) -> None:
    """int8 and SparseLoCo: every sample once, equal bits on all, and it learns."""
    before = round_task.loss_of(arrays(round_task.Net()))
    for trained, _ in run_members(tmp_path, fork_server, kills, {"low_comm": method}):
        assert round_task.loss_of(trained.state) < 0.6 * before
