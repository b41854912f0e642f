"""Conversion of torch's option objects and overloads, and reductions by value."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    HashStore,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.torch_options import (
    options_of,
    reduction,
    single_tensor,
    timeout_of,
)
from ringleader.errors import ConfigError
from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.testing.threaded_world import run_world

KINDS: list[Any] = [
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
]
ROOTED: list[Any] = [BroadcastOptions, GatherOptions, ReduceOptions, ScatterOptions]
REDUCING: list[Any] = [
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
]


# -- pick --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_options_object_is_taken_as_it_is(kind: Any) -> None:  # noqa: ANN401
    given = kind()
    assert options_of(kind, given) is given


@pytest.mark.parametrize("kind", KINDS)
def test_no_options_are_torchs_own_defaults(kind: Any) -> None:  # noqa: ANN401
    made = options_of(kind, None)
    assert isinstance(made, kind)
    assert timeout_of(made) is None, "the group's timeout"


@pytest.mark.parametrize("kind", ROOTED)
def test_a_number_is_the_root(kind: Any) -> None:  # noqa: ANN401
    assert options_of(kind, 3).rootRank == 3
    assert options_of(kind, None, {"root": 2}).rootRank == 2


@pytest.mark.parametrize("kind", REDUCING)
@pytest.mark.parametrize("op", [ReduceOp.MAX, ReduceOp(ReduceOp.MAX)])
def test_a_reduction_is_the_reduction(kind: Any, op: Any) -> None:  # noqa: ANN401
    assert reduction(options_of(kind, op).reduceOp).name == "max"
    assert reduction(options_of(kind, None, {"op": op}).reduceOp).name == "max"


def test_root_and_reduction_come_together() -> None:
    for made in (
        options_of(ReduceOptions, 1, {"op": ReduceOp.MIN}),
        options_of(ReduceOptions, ReduceOp.MIN, {"root": 1}),
        options_of(ReduceOptions, None, {"op": ReduceOp.MIN, "root": 1}),
    ):
        assert made.rootRank == 1
        assert reduction(made.reduceOp).name == "min"


def test_keywords_add_to_an_options_object() -> None:
    given = ReduceOptions()
    given.rootRank = 4
    made = options_of(ReduceOptions, given, {"op": ReduceOp.PRODUCT})
    assert made.rootRank == 4
    assert reduction(made.reduceOp).name == "product"


def test_the_fields_of_torch_are_keywords_too() -> None:
    made: Any = options_of(BroadcastOptions, None, {"timeout": timedelta(seconds=3)})
    assert timeout_of(made) == 3


@pytest.mark.parametrize(
    ("kind", "name"),
    [(AllreduceOptions, "root"), (BroadcastOptions, "op"), (GatherOptions, "colour")],
)
def test_a_keyword_the_call_does_not_have_is_named(
    kind: Any,  # noqa: ANN401
    name: str,
) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__} has no {name}"):
        options_of(kind, None, {name: 1})


def test_a_reduction_where_none_is_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="BroadcastOptions has no op"):
        options_of(BroadcastOptions, ReduceOp.SUM)


# -- limit_s and only --------------------------------------------------------------


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [(-1, None), (0, None), (1, 0.001), (250, 0.25), (1_800_000, 1800.0)],
)
def test_an_operation_may_have_its_own_timeout(
    milliseconds: int, seconds: float | None
) -> None:
    opts: Any = AllreduceOptions()
    opts.timeout = timedelta(milliseconds=milliseconds)
    assert timeout_of(opts) == seconds


def test_the_one_tensor_is_found_in_its_list_or_without_one() -> None:
    tensor = torch.ones(2)
    assert single_tensor(tensor, "broadcast") is tensor
    assert single_tensor([tensor], "broadcast") is tensor
    assert single_tensor((tensor,), "broadcast") is tensor


@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_tensors_is_refused_with_the_call(count: int) -> None:
    with pytest.raises(ConfigError, match=f"^send: one tensor per rank, not {count}$"):
        single_tensor([torch.ones(2)] * count, "send")


# -- reductions --------------------------------------------------------------------

INPUTS = [[3, 5, 12], [6, 5, 1], [7, 2, 8]]
"""The values of rank 0, 1 and 2."""
RESULTS = {
    ReduceOp.SUM: [16, 12, 21],
    ReduceOp.AVG: [16 / 3, 4, 7],
    ReduceOp.PRODUCT: [126, 50, 96],
    ReduceOp.MIN: [3, 2, 1],
    ReduceOp.MAX: [7, 5, 12],
    ReduceOp.BAND: [3 & 6 & 7, 5 & 5 & 2, 12 & 1 & 8],
    ReduceOp.BOR: [3 | 6 | 7, 5 | 5 | 2, 12 | 1 | 8],
    ReduceOp.BXOR: [3 ^ 6 ^ 7, 5 ^ 5 ^ 2, 12 ^ 1 ^ 8],
}


def reduced(op: Any, make: Callable[[int], Tensor]) -> list[Tensor]:  # noqa: ANN401
    """Return the result of an all_reduce with torch's ``op`` on every rank."""
    found = reduction(op)

    def live(group: Group) -> Tensor:
        def body(_: list[Tensor], outs: list[Tensor], **how: Any) -> Work:  # noqa: ANN401
            return group.all_reduce(outs[0], found.name, **how)

        tensor = make(group.rank)
        found.around(body)([tensor], [tensor]).wait()
        return tensor

    return run_world(3, live)


@pytest.mark.parametrize("op", RESULTS, ids=str)
def test_every_reduction_of_torch_gives_its_values(op: Any) -> None:  # noqa: ANN401
    is_mean = op == ReduceOp.AVG
    dtype = torch.float64 if is_mean else torch.int32
    for form in (op, ReduceOp(op)):
        for got in reduced(form, lambda r: torch.tensor(INPUTS[r], dtype=dtype)):
            assert got.tolist() == pytest.approx(RESULTS[op])


def test_no_reduction_of_torch_was_forgotten() -> None:
    names = set(ReduceOp.RedOpType.__members__) - {"PREMUL_SUM"}
    assert names == {op.name for op in RESULTS}


@pytest.mark.parametrize("factor", [0.5, torch.tensor([0.5], dtype=torch.float64)])
def test_inputs_are_scaled_before_they_are_summed(factor: Any) -> None:  # noqa: ANN401
    op = dist._make_nccl_premul_sum(factor)  # type: ignore[attr-defined]
    assert reduction(op).name == "sum"
    for got in reduced(op, lambda r: torch.tensor(INPUTS[r], dtype=torch.float64)):
        assert got.tolist() == [8, 6, 10.5]


def test_a_leaf_that_requires_gradients_can_be_scaled() -> None:
    op = dist._make_nccl_premul_sum(2.0)  # type: ignore[attr-defined]
    for got in reduced(op, lambda _: torch.ones(2, requires_grad=True)):
        assert got.tolist() == [6, 6]


@pytest.mark.parametrize("operation", ["reduce", "reduce_scatter"])
def test_scaling_leaves_what_is_only_read_as_it_was(operation: str) -> None:
    """NCCL does not change the input, so torch's users may rely on it."""
    op = dist._make_nccl_premul_sum(0.5)  # type: ignore[attr-defined]

    def live(group: Group) -> list[float]:
        torchs = RingleaderGroup.wrap(group, HashStore(), [0, 1])
        source = torch.full((4,), 8.0)
        if operation == "reduce":
            work: Any = torchs.reduce([source], op=op, root=0)
            work.wait()
        else:
            opts: Any = ReduceScatterOptions()
            opts.reduceOp = op
            out = torch.empty(2)
            work = torchs.reduce_scatter_single(out, source, opts)
            work.wait()
            assert out.tolist() == [8.0] * 2
        return source.tolist()

    roots, others = run_world(2, live)
    assert others == [8.0] * 4
    assert roots == [8.0] * 4


def test_scaling_before_the_sum_keeps_what_would_overflow_after_it() -> None:
    op = dist._make_nccl_premul_sum(1 / 3)  # type: ignore[attr-defined]
    for got in reduced(op, lambda _: torch.full((2,), 60_000.0).half()):
        assert all(math.isfinite(x) for x in got.tolist())
        assert got.tolist() == pytest.approx([60_000] * 2, rel=2**-9)


def test_a_plain_reduction_leaves_the_call_alone() -> None:
    def body() -> Work:
        raise AssertionError

    assert reduction(ReduceOp.SUM).around(body) is body


@pytest.mark.parametrize("op", ["sum", 99, None])
def test_what_is_no_reduction_is_named(op: object) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        reduction(op)
