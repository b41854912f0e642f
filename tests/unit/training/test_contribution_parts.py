"""Buckets, flat buffers, sideband, norm and seeds of an elastic step."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from ringleader.errors import ConfigError, ProtocolError
from ringleader.groups.work import Work
from ringleader.ids import NodeId
from ringleader.membership.member import NO_VIEW
from ringleader.membership.steps.attempt import Attempt
from ringleader.training.bucket_plan import Bucket, Leaf, plan_buckets
from ringleader.training.contribution import Contribution
from ringleader.training.data.balance import Flag, Report
from ringleader.training.flat_buffers import FlatBuffers
from ringleader.training.gradient_norm import (
    PIECE,
    clip_factor,
    gradient_norm,
    squared_norm,
)
from ringleader.training.model_update import ModelUpdate, trained_parameters
from ringleader.training.quantum_seed import quantum_seed, seed_generators
from ringleader.training.reduction import Reduction
from ringleader.training.residuals import Residuals
from ringleader.training.sideband import Entry, EntryLayout, bitmap, members_of


def test_buckets_follow_backward_and_the_first_one_is_small() -> None:
    leaves = [Leaf("a", 10, 4), Leaf("a", 20, 4), Leaf("b", 5, 8), Leaf("a", 3, 4)]
    assert plan_buckets(leaves, first=8, limit=100) == [
        Bucket("a", 0, 3, (3,)),
        Bucket("a", 3, 33, (1, 0)),
        Bucket("b", 0, 5, (2,)),
    ]
    one = plan_buckets(leaves, first=10**6, limit=10**6)
    assert [bucket.leaves for bucket in one] == [(3, 1, 0), (2,)]


def test_gradients_are_views_that_backward_fills() -> None:
    conv = nn.Conv2d(3, 4, 3)
    conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last)
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(16, 3).double())
    buffers = FlatBuffers(list(model.parameters()))
    buffers.allocate()
    assert conv.weight.grad is not None
    assert conv.weight.grad.stride() == conv.weight.stride()
    conv(torch.randn(2, 3, 4, 4)).sum().backward()
    flat = buffers.contribution["torch.float32@cpu"]
    assert flat.count_nonzero() == conv.weight.numel() + 4
    assert buffers.contribution["torch.float64@cpu"].count_nonzero() == 0
    for p, view in zip(buffers.parameters, buffers.views, strict=True):
        assert p.grad is view
    model.zero_grad(set_to_none=True)
    buffers.attach()
    assert conv.weight.grad is buffers.views[0]


def test_results_of_consecutive_versions_are_in_different_memory() -> None:
    buffers = FlatBuffers(list(nn.Linear(3, 2).parameters()))
    buffers.allocate()
    buffers.result_part(4, 0).fill_(2.0)
    buffers.result_part(5, 0).fill_(3.0)
    buffers.take_result(4, 0.5)
    assert all(view.eq(1.0).all() for view in buffers.views)
    assert buffers.result_part(4, 0).eq(2.0).all(), "a result stays as it was"
    assert buffers.result_part(6, 0).data_ptr() == buffers.result_part(4, 0).data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, 5 * PIECE + 3])
def test_the_norm_has_the_same_bits_with_any_number_of_threads(
    count: int, dtype: torch.dtype
) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(1)).to(dtype)
    before, threads = values.clone(), torch.get_num_threads()
    try:
        found = set()
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.add(squared_norm(values))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1
    assert torch.equal(values, before), "the gradient is only read"
    expected = float(values.double().square().sum())
    assert gradient_norm([values, values]) == pytest.approx((2 * expected) ** 0.5)


def test_clipping_follows_torch() -> None:
    assert clip_factor(0.3, 0.5) == 1.0
    assert clip_factor(2.0, 0.5) == pytest.approx(0.25, rel=1e-6)
    assert np.isnan(clip_factor(float("inf"), 0.5))


def test_sideband_entries_say_who_did_what() -> None:
    layout = EntryLayout(num_quanta=11, num_parameters=9, num_sums=2, num_counts=1)
    a, b = NodeId("a" * 52), NodeId("b" * 52)
    entries = [
        _entry(a, (0, 2, 10), 3.0, used=(0, 8), count=4),
        _entry(b, (1,), 1.5, used=(0, 3), count=7),
    ]
    encoded = [layout.encode(entry) for entry in entries]
    assert {each.numel() for each in encoded} == {layout.num_bytes}
    assert [layout.decode(i, each) for i, each in enumerate(encoded)] == entries
    totals = layout.totals(entries, 11)
    assert totals.table.quanta == {a: (0, 2, 10), b: (1,)}
    assert totals.table.dropped == (3, 4, 5, 6, 7, 8, 9)
    assert totals.weight == 4.5
    assert members_of(totals.used) == [0, 3, 8]
    assert totals.sums.tolist() == [2.0, 4.0]
    assert totals.counts.tolist() == [7]


@pytest.mark.parametrize(
    ("at", "value"), [(52, b"\xff" * 8), (60, b"\xff" * 8), (68, b"\xff"), (0, b"\xff")]
)
def test_an_invalid_entry_names_its_rank(at: int, value: bytes) -> None:
    layout = EntryLayout(1, 1, 0, 0)
    data = bytearray(layout.encode(_entry(NodeId("a" * 52), (0,), 1.0)).numpy())
    data[at : at + len(value)] = value
    with pytest.raises(ProtocolError, match=r"rank 3.*invalid sideband"):
        layout.decode(3, torch.frombuffer(data, dtype=torch.uint8))


def _entry(
    node: NodeId,
    quanta: tuple[int, ...],
    weight: float,
    used: tuple[int, ...] = (0,),
    count: int | None = None,
) -> Entry:
    has_norms = count is not None
    return Entry(
        node=node,
        quanta=quanta,
        weight=weight,
        report=Report(0.25, Flag.LEAVING),
        used=bitmap(used, 9 if has_norms else 1),
        sums=torch.tensor([1.0, 2.0] if has_norms else [], dtype=torch.float64),
        counts=torch.tensor([count] if has_norms else [], dtype=torch.int64),
        digest=2**64 - 5,
    )


def test_seeds_follow_from_run_version_and_quantum() -> None:
    assert quantum_seed(0, 3, 4) == quantum_seed(0, 3, 4)
    seeds = {quantum_seed(s, v, q) for s in (0, 1) for v in (0, 1) for q in (0, 1)}
    assert len(seeds) == 8
    drawn = []
    for _ in range(2):
        seed_generators(quantum_seed(0, 3, 4))
        drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))
    assert drawn[0] == drawn[1]


def test_residuals_change_only_when_their_attempt_is_delivered() -> None:
    buffers = FlatBuffers([torch.ones(300_000), torch.ones(7)])
    buffers.allocate()
    assert len(buffers.buckets) == 1
    residuals = Residuals(buffers, "int8")
    assert residuals.codec_of(torch.zeros(1, dtype=torch.float64)) is None
    one, two, three = (Attempt(NO_VIEW._replace(counter=n), 1) for n in (1, 2, 3))
    residuals.begin(one)
    residuals.parts(0)[1].fill_(1.0)
    residuals.written(one, 0)
    residuals.begin(two)  # one was given up
    assert residuals.parts(0)[0].eq(0.0).all()
    residuals.parts(0)[1].fill_(2.0)
    residuals.written(two, 0)
    residuals.deliver(two)  # also if a view change came between
    assert residuals.parts(0)[0].eq(2.0).all()
    residuals.begin(three)
    residuals.parts(0)[1].fill_(3.0)
    residuals.written(two, 0)  # a late callback of the attempt before
    residuals.deliver(three)  # by a gather: the call had not ended here
    assert residuals.parts(0)[0].eq(0.0).all(), "the old one is in the result already"


def test_the_residual_of_an_older_attempt_is_not_counted_twice() -> None:
    buffers = FlatBuffers([torch.ones(7)])
    buffers.allocate()
    residuals = Residuals(buffers, "int8")
    one, two = (Attempt(NO_VIEW._replace(counter=n), 1) for n in (1, 2))
    residuals.parts(0)[0].fill_(1.0)
    residuals.begin(one)
    residuals.begin(two)
    residuals.deliver(one)
    assert residuals.parts(0)[0].eq(0.0).all()


def test_a_bucket_counts_as_held_when_waiting_for_it_has_ended() -> None:
    """Callbacks of a work run after its waiters are woken."""
    works = [Work(), Work()]

    class Reducer:
        def reduce_bucket(self, index: int) -> Work:
            return works[0]

        def exchange_sideband(self, entry: torch.Tensor) -> Work:
            return works[1]

    held: list[int] = []
    reduction = Reduction(Reducer(), [(0,)], held.append)
    reduction.parameter_ready(0)
    for work in works:
        work._finished.set()  # as a thread of the group that is interrupted here
    reduction.finish(torch.zeros(1))
    assert set(held) == {0, 1}


def test_gradients_must_come_from_the_run() -> None:
    model = nn.Linear(3, 2)
    contribution = Contribution(
        ModelUpdate(model, torch.optim.SGD(model.parameters(), lr=0.1))
    )
    contribution.attach()
    with pytest.raises(ConfigError, match=r"run\.backward"):
        model(torch.ones(1, 3)).sum().backward()


def test_the_optimizer_must_belong_to_the_model() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="does not have"):
        trained_parameters(model, torch.optim.SGD(other.parameters(), lr=0.1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter"):
        trained_parameters(model, torch.optim.SGD(model.parameters(), lr=0.1))
