"""A contribution whose quanta others compute as well is dropped."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ringleader.training.contribution import Contribution
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.quantum_loader import QuantumLoader
from ringleader.training.data_order import DataOrder
from ringleader.training.model_update import ModelUpdate
from ringleader.training.team import ALONE, Team

SPEC = DataSpec(num_samples=12, global_batch=12, micro_batch=3, seed=0, epochs=1)


def at_work(*quanta: int) -> tuple[Team, nn.Linear]:
    """Return a member that was given some quanta and has computed the first."""
    model = nn.Linear(2, 1)
    contribution = Contribution(ModelUpdate(model, torch.optim.SGD(model.parameters())))
    contribution.attach()
    dataset: Any = TensorDataset(torch.ones(12, 2))
    loader = QuantumLoader(dataset, SPEC, ALONE)
    loader.start()
    contribution.drop()
    team = Team(DataOrder(SPEC), contribution, loader)
    team.take(StepTable({ALONE: quanta}))
    loaded = team.next_quantum()
    assert loaded is not None
    contribution.backward(model(loaded.batch[0]).mean(), 3.0)
    contribution.end_quantum(3.0, 0.1)
    return team, model


def pending(team: Team) -> list[int]:
    return [quantum.index for quantum in team.contribution.step.pending]


def test_what_others_compute_is_dropped_whatever_the_last_plan_says() -> None:
    """The view that made it void was over before the user's thread entered it."""
    team, model = at_work(0, 1)
    team.take(StepTable({ALONE: (2,)}))
    assert pending(team) == [2]
    assert team.own_entry().quanta == ()
    assert team.own_entry().weight == 0
    assert model.weight.grad is not None
    assert model.weight.grad.count_nonzero() == 0
    team.close()


def test_what_is_still_assigned_is_kept() -> None:
    team, model = at_work(0, 1)
    team.take(StepTable({ALONE: (0, 2)}))
    assert pending(team) == [2]
    assert team.own_entry().quanta == (0,)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 3.0]]
    team.close()
