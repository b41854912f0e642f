"""The same computation in one process and in float64, to compare scenarios with.

Data and models are functions of small numbers, so every process can make all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

STEPS = 4
FLOAT32 = 1e-5
"""Relative error of a few float32 steps beside float64; wrong values are far off."""

Loss = Callable[[nn.Module, int, int], "Tensor | float"]
"""loss(model, rank, step): what that rank contributes."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def tensor(*shape: int, seed: int) -> Tensor:
    """Normal float64 numbers; the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def net(*widths: int, seed: int = 1) -> nn.Sequential:
    """Linear layers and tanh; the default widths divide by neither 2 nor 3."""
    sizes = widths or (8, 11, 7, 5)
    layers: list[nn.Module] = []
    for i, (wide, narrow) in enumerate(pairwise(sizes)):
        linear = nn.Linear(wide, narrow, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(tensor(narrow, wide, seed=seed + 2 * i) / wide**0.5)
            linear.bias.copy_(tensor(narrow, seed=seed + 2 * i + 1) / 10)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def single(model: nn.Module) -> nn.Module:
    """A float32 copy: what the distributed run starts from."""
    return copy.deepcopy(model).float()


def batch(rank: int, step: int, like: Tensor, rows: int = 4) -> tuple[Tensor, Tensor]:
    """The input and the target of one rank in one step, in the type of ``like``."""
    seed = 1000 + 50 * step + rank
    return (
        tensor(rows, 8, seed=seed).to(like.dtype),
        tensor(rows, 5, seed=seed + 500_000).to(like.dtype),
    )


def mse(model: nn.Module, rank: int, step: int) -> Tensor:
    """The loss of most scenarios."""
    x, y = batch(rank, step, next(model.parameters()))
    return F.mse_loss(model(x), y)


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    # A large eps: the sign of a gradient near zero must not decide a whole step.
    return torch.optim.Adam(parameters, lr=0.05, eps=1e-2)


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor | float],
    optimizer: torch.optim.Optimizer,
    steps: int = STEPS,
) -> None:
    """``steps`` steps of ``loss(model, step)``."""
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(model, step)
        assert isinstance(value, Tensor)
        backward(value)
        optimizer.step()


def train_rank(
    model: nn.Module, loss: Loss, rank: int, make: MakeOptimizer = sgd
) -> None:
    """Run the steps of one rank of a distributed run."""
    train(model, lambda m, step: loss(m, rank, step), make(model.parameters()))


def train_alone(
    model: nn.Module,
    loss: Loss,
    size: int,
    make: MakeOptimizer = sgd,
    steps: int = STEPS,
) -> dict[str, Tensor]:
    """Compute the result that ``size`` ranks which average gradients must reach."""
    alone = copy.deepcopy(model)

    def mean(m: nn.Module, step: int) -> Tensor | float:
        return sum(loss(m, rank, step) for rank in range(size)) / size

    train(alone, mean, make(alone.parameters()), steps)
    return dict(alone.state_dict())


def check_state(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    rel: float = FLOAT32,
) -> None:
    """Same names, same shapes, values within ``rel`` of the reference."""
    assert actual.keys() == expected.keys(), (list(actual), list(expected))
    for name, value in actual.items():
        check(value, expected[name], rel=rel, what=name)


def check(
    actual: Tensor, expected: Tensor, *, rel: float = FLOAT32, what: str = "value"
) -> None:
    """``actual`` is what float64 says, up to ``rel`` of the largest value."""
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert not actual.is_meta, what
    if actual.numel() == 0:
        return
    error = float((actual.detach().double() - expected.detach()).abs().max())
    limit = rel * max(1.0, float(expected.detach().abs().max()))
    assert error <= limit, f"{what}: off by {error}, more than {limit}"


def check_all(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    *,
    rel: float = FLOAT32,
    what: str = "value",
) -> None:
    assert len(actual) == len(expected), (what, len(actual), len(expected))
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        check(one, other, rel=rel, what=f"{what}[{i}]")
