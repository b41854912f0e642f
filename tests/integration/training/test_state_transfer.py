"""A member that lacks the state gets it bit for bit, and training goes on equally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.checkpoint import values
from ringleader.errors import LayoutMismatch
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import run_threads, world
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.transfer import (
    Roles,
    Transferred,
    repair_state,
    transfer_state,
)


class Net(nn.Module):
    """Tied and frozen parameters, BatchNorm, channels_last, an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.first = nn.Linear(5, 5, bias=False)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(5, 7)
        self.frozen.requires_grad_(requires_grad=False)
        self.head = nn.Linear(7, 3)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).mean((2, 3))
        self.seen += len(x)
        return self.head(self.frozen(self.second(self.first(x))))  # type: ignore[no-any-return]

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Signs(Optimizer):
    """A custom optimizer: tensors, numbers and a list in its state."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "is_fast": True})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["norms"] = [*state.get("norms", []), float(p.grad.norm())]
                old = state.get("mean", torch.zeros_like(p))
                state["mean"] = 0.5 * old + 0.5 * p.grad
                p.data.sub_(group["lr"] * state["mean"].sign() / state["count"])


class OwnState(torch.optim.SGD):
    """An optimizer whose ``state_dict`` is its own."""

    turns = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        self.turns += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.turns = state_dict["turns"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "turns"})


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
    "custom": lambda p: Signs(p, 0.01),
    "own": lambda p: OwnState(p, 0.1, momentum=0.5),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
}


class Member:
    """The training objects of one member."""

    def __init__(self, seed: int, optimizer: str, classes: int = 3) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        if classes != 3:
            self.model.head = nn.Linear(7, classes)
        if optimizer != "lbfgs":  # which takes contiguous gradients only
            last = torch.channels_last
            weight = self.model.conv.weight
            weight.data = weight.data.contiguous(memory_format=last)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[optimizer](trained)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 3])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=float(2**seed))
        self.extra: dict[str, Any] = {"best": seed, "ema": {"w": torch.rand(40, 10)}}
        others: dict[str, Any] = {"scheduler": self.scheduler, "scaler": self.scaler}
        self.state = ReplicatedState(self.model, self.optimizer, others, self.extra)

    def train(self, steps: int, seed: int = 9) -> None:
        random = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            x = torch.rand(4, 3, 6, 6, generator=random)

            def closure(x: Tensor = x) -> Tensor:
                self.optimizer.zero_grad()
                loss: Tensor = self.model(x).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            closure()
            self.optimizer.step(closure)  # type: ignore[arg-type]
            self.scheduler.step()

    def content(self) -> tuple[list[Tensor], Any]:
        found, tensors = self.state.snapshot()
        return [t.detach().clone() for t in tensors.values()], found


def transfer(members: list[Member], roles: Roles) -> list[Transferred]:
    with world(len(members)) as groups:
        return run_threads(
            [
                lambda g=g, m=m: transfer_state(g, m.state, roles, names="abcd")  # type: ignore[misc]
                for g, m in zip(groups, members, strict=True)
            ]
        )


def assert_equal(one: Member, other: Member) -> None:
    mine, my_manifest = one.content()
    theirs, their_manifest = other.content()
    assert my_manifest == their_manifest, "names, shapes, dtypes and plain values"
    for entry, a, b in zip(my_manifest.tensors, mine, theirs, strict=True):
        assert torch.equal(a, b), entry.name
    assert one.state.digest().root == other.state.digest().root


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


def test_several_sources_serve_one_adopter() -> None:
    members = [Member(3, "adam") for _ in range(3)] + [Member(4, "adam")]
    for each in members[:3]:
        each.extra["large"] = torch.arange(3_000_001.0)  # three pieces
    for each in members[:3]:
        each.train(2)
    results = transfer(members, Roles((0, 1, 2), (3,)))
    assert not results[0].repaired
    assert_equal(members[0], members[3])


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
