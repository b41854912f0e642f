"""Training objects of one member, with everything that a state may contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.training.state.replicated_state import ReplicatedState


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


def assert_equal(one: Member, other: Member) -> None:
    mine, my_manifest = one.content()
    theirs, their_manifest = other.content()
    assert my_manifest == their_manifest, "names, shapes, dtypes and plain values"
    for entry, a, b in zip(my_manifest.tensors, mine, theirs, strict=True):
        assert torch.equal(a, b), entry.name
    assert one.state.digest().root == other.state.digest().root
