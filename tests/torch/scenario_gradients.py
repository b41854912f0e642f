"""Collectives that gradients flow through, the functional ones and torch's older ones.

Each is described by what it does in one process, with a list in place of ranks; then
autograd says what the gradient of the sum of all ranks' losses is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional
from torch import Tensor

from tests.kit.reference import backward, check, tensor
from tests.torch.scenario_collectives import ROWS, WIDTH, given, now, world

dist_nn: Any = torch.distributed.nn.functional

Model = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""In one process: what each rank gets out, of what each rank puts in."""


def check_gradient(
    what: str, rank: int, mine: Tensor, out: Tensor, model: Model, size: int
) -> None:
    """The output, and the gradient of the sum of all ranks' weighed outputs."""
    inputs = [given(r, size).requires_grad_() for r in range(size)]
    outputs = model(inputs)
    weights = [tensor(*o.shape, seed=90 + r) for r, o in enumerate(outputs)]
    check(now(out), outputs[rank], what=what)
    backward((now(out) * weights[rank].float()).sum())
    terms = [(o * w).sum() for o, w in zip(outputs, weights, strict=True)]
    backward(sum(terms, torch.zeros(())))
    wanted = inputs[rank].grad
    assert mine.grad is not None, what
    check(
        mine.grad,
        torch.zeros_like(inputs[rank]) if wanted is None else wanted,
        what=f"gradient of {what}",
    )


def summed(xs: Sequence[Tensor]) -> Tensor:
    return sum(xs, torch.zeros(()))


def functional_gradients(rank: int, size: int) -> None:
    group = world()
    cases: dict[str, tuple[Callable[[Tensor], Tensor], Model]] = {
        "all_gather": (
            lambda x: funcol.all_gather_tensor_autograd(x, 0, group),
            lambda xs: [torch.cat(list(xs))] * size,
        ),
        "all_gather of columns": (
            lambda x: funcol.all_gather_tensor_autograd(x, 1, group),
            lambda xs: [torch.cat(list(xs), 1)] * size,
        ),
        "reduce_scatter": (
            lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group),
            lambda xs: summed(xs).chunk(size),
        ),
        "all_to_all": (
            lambda x: funcol.all_to_all_single_autograd(
                x, [ROWS] * size, [ROWS] * size, group
            ),
            lambda xs: [torch.cat([x.chunk(size)[r] for x in xs]) for r in range(size)],
        ),
        "all_reduce": (
            lambda x: funcol.all_reduce(x, "sum", group),
            lambda xs: [summed(xs)] * size,
        ),
    }
    for what, (collective, model) in cases.items():
        mine = given(rank, size).float().requires_grad_()
        check_gradient(what, rank, mine, collective(mine), model, size)


def empties(size: int, rows: int) -> list[Tensor]:
    return [torch.empty(rows, WIDTH) for _ in range(size)]


def distributed_nn_functional(rank: int, size: int) -> None:
    last = size - 1
    cases: dict[str, tuple[Callable[[Tensor], Tensor], Model]] = {
        "all_reduce": (dist_nn.all_reduce, lambda xs: [summed(xs)] * size),
        "all_gather": (
            lambda x: torch.cat(dist_nn.all_gather(x)),
            lambda xs: [torch.cat(list(xs))] * size,
        ),
        "broadcast": (
            lambda x: dist_nn.broadcast(x, last),
            lambda xs: [xs[last]] * size,
        ),
        "reduce_scatter": (
            lambda x: dist_nn.reduce_scatter(
                torch.empty(ROWS, WIDTH), list(x.chunk(size))
            ),
            lambda xs: summed(xs).chunk(size),
        ),
        "all_to_all": (
            lambda x: torch.cat(
                dist_nn.all_to_all(empties(size, ROWS), list(x.chunk(size)))
            ),
            lambda xs: [torch.cat([x.chunk(size)[r] for x in xs]) for r in range(size)],
        ),
        "all_to_all_single": (
            lambda x: dist_nn.all_to_all_single(torch.empty(ROWS * size, WIDTH), x),
            lambda xs: [torch.cat([x.chunk(size)[r] for x in xs]) for r in range(size)],
        ),
        "scatter": (
            lambda x: dist_nn.scatter(list(x.chunk(size)), src=last),
            lambda xs: xs[last].chunk(size),
        ),
        "gather": (
            lambda x: rooted(torch.cat(dist_nn.gather(x, dst=last)), rank == last),
            lambda xs: [rooted(torch.cat(list(xs)), r == last) for r in range(size)],
        ),
        "reduce": (
            lambda x: rooted(dist_nn.reduce(x, last), rank == last),
            lambda xs: [rooted(summed(xs), r == last) for r in range(size)],
        ),
    }
    for what, (collective, model) in cases.items():
        mine = given(rank, size).float().requires_grad_()
        check_gradient(what, rank, mine, collective(mine), model, size)


def rooted(value: Tensor, is_root: bool) -> Tensor:
    """Only the root looks at the result; the others' part in the loss is nothing."""
    return value if is_root else value * 0
