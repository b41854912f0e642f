"""all_reduce of a dict of tensors, as gradients by name are."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups.group import Group
from ringleader.groups.named_tensors import PACKED_BYTES
from ringleader.testing.threaded_world import run_world

Tensors = dict[str, Tensor]
LARGE = PACKED_BYTES // 4 + 7
"""Of float32: it travels by itself."""
STEPS = 3


def given(rank: int, step: int) -> Tensors:
    """Several dtypes and shapes, strided, empty and scalar; their sums are exact."""
    turn = torch.arange(LARGE) % 11 + 10 * rank + step
    return {
        "large": turn.float(),
        "small": turn[:30].float().view(5, 6),
        "strided": turn[:12].float().view(3, 4).t().contiguous().t(),
        "half": turn[:7].to(torch.bfloat16),
        "integers": turn[:9].clone(),
        "scalar": turn[0].float(),
        "nothing": torch.empty(0),
    }


def reference(size: int, step: int, name: str, op: str) -> Tensor:
    stack = torch.stack([given(rank, step)[name].double() for rank in range(size)])
    if op == "mean" and name == "integers":
        return stack.mean(0).trunc()
    return {"sum": stack.sum(0), "mean": stack.mean(0), "max": stack.amax(0)}[op]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_gets_the_exact_result_under_each_name(
    size: int, is_async: bool
) -> None:
    """ZF-4: every rank has another order of names in every step."""

    def live(group: Group) -> list[tuple[str, Tensors]]:
        seen, order = [], random.Random(group.rank)
        for step in range(STEPS):
            op = ("sum", "mean", "max")[step]
            plain = given(group.rank, step)
            tensors = {n: plain[n] for n in order.sample([*plain], len(plain))}
            group.all_reduce(tensors, op, async_op=is_async).wait()
            seen.append((op, tensors))
        return seen

    for rank in run_world(size, live):
        for step, (op, tensors) in enumerate(rank):
            for name, got in tensors.items():
                wanted = reference(size, step, name, op)
                error = 0.01 * wanted.abs() if name == "half" else 1e-5
                assert got.shape == wanted.shape
                assert ((got.double() - wanted).abs() <= error).all(), (step, name)


@pytest.mark.parametrize(
    "other", [{"b": torch.ones(4)}, {"a": torch.ones(2, 2)}, {"a": torch.arange(4)}]
)
def test_ranks_with_other_tensors_are_told_and_nothing_is_summed(
    other: Tensors,
) -> None:
    """ZF-13: as many bytes of another tensor would be summed without an error."""

    def live(group: Group) -> None:
        tensors = other if group.rank else {"a": torch.ones(4)}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        with pytest.raises(CallMismatch, match="other names, shapes or dtypes"):
            group.all_reduce(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[name])

    run_world(2, live)


def test_what_cannot_be_summed_is_refused_before_anything_is_sent() -> None:
    def live(group: Group) -> None:
        for tensors in (
            {"a": [1.0]},
            {"a": torch.ones(1, device="meta")},
            {"a": torch.ones(1).expand(3)},
        ):
            with pytest.raises(ConfigError, match="all_reduce of 'a'"):
                group.all_reduce(tensors)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="compressor"):
            group.all_reduce({"a": torch.ones(1)}, codec="int8")
        fine = {"a": torch.ones(1)}
        group.all_reduce(fine)  # the group goes on
        assert fine["a"].item() == 2

    run_world(2, live)
