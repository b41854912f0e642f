"""DistributedDataParallel in all its modes, and the optimizer that shards its state."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from tests.kit.reference import (
    STEPS,
    adam,
    backward,
    batch,
    check,
    check_state,
    mse,
    net,
    sgd,
    single,
    tensor,
    train,
    train_alone,
    train_rank,
)

BUCKET_MB = 0.0004
"""100 float32: every layer of the small net needs a bucket of its own."""


def inner(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model that DDP wraps."""
    return dict(cast(DDP, model).module.state_dict())


def ddp_plain(rank: int, size: int) -> None:
    """Every rank starts elsewhere; DDP makes them all start from rank 0."""
    for dtype, rel in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        start = copy.deepcopy(net()).to(dtype)
        with torch.no_grad():
            for parameter in start.parameters():
                parameter.add_(rank)
        model = DDP(start)
        train_rank(model, mse, rank)
        check_state(inner(model), train_alone(net(), mse, size), rel)


def ddp_many_buckets(rank: int, size: int) -> None:
    """FT-3: all_reduces of equal and unequal size at a time, each of its own bucket."""
    deep = (8, *[12] * 20, 5)
    model = DDP(single(net(*deep)), bucket_cap_mb=BUCKET_MB)
    train_rank(model, mse, rank)
    sizes = cast(Any, model)._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert len(str(sizes).split(",")) > 10, f"few buckets: {sizes}"
    check_state(inner(model), train_alone(net(*deep), mse, size))


class Forked(nn.Module):
    """Two branches, of which a step uses one, and a third that nobody ever uses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = net(8, 6)
        self.branches = nn.ModuleList([net(6, 5, seed=20), net(6, 5, seed=30)])
        self.dead = net(6, 5, seed=40)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        return cast(Tensor, self.branches[branch](torch.tanh(self.stem(x))))


def forked_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    """In some steps all ranks use the same branch, in others they differ."""
    x, y = batch(rank, step, next(model.parameters()))
    return F.mse_loss(model(x, (step // 2 + rank * (step % 2)) % 2), y)


def ddp_find_unused_parameters(rank: int, size: int) -> None:
    model = DDP(
        single(Forked()), find_unused_parameters=True, bucket_cap_mb=BUCKET_MB / 2
    )
    train_rank(model, forked_loss, rank)
    check_state(inner(model), train_alone(Forked(), forked_loss, size))


def ddp_static_graph(rank: int, size: int) -> None:
    model = DDP(single(net()), static_graph=True, bucket_cap_mb=BUCKET_MB)
    train_rank(model, mse, rank)
    check_state(inner(model), train_alone(net(), mse, size))


def ddp_gradient_as_bucket_view(rank: int, size: int) -> None:
    model = DDP(single(net()), gradient_as_bucket_view=True)
    train_rank(model, mse, rank)
    assert all(p.grad is not None and p.grad._is_view() for p in model.parameters())
    check_state(inner(model), train_alone(net(), mse, size))


def ddp_buffers(rank: int, size: int) -> None:
    """The running mean of every rank is rank 0's at each forward pass."""
    wrapped = DDP(nn.BatchNorm1d(8))
    alone = nn.BatchNorm1d(8, dtype=torch.float64)
    for step in range(3):
        x = batch(rank, step, alone.weight)[0]
        wrapped(x.float())
        expected = 0.9 * cast(Tensor, alone.running_mean) + 0.1 * x.mean(0)
        check(inner(wrapped)["running_mean"], expected, what=f"step {step}")
        alone(batch(0, step, alone.weight)[0])


def ddp_no_sync(rank: int, size: int) -> None:
    """Three micro-batches, of which only the last one synchronizes."""
    model = DDP(single(net()), bucket_cap_mb=BUCKET_MB)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for micro in range(2):
                backward(mse(model, rank, 10 * step + micro))
        backward(mse(model, rank, 10 * step + 2))
        optimizer.step()

    def accumulated(m: nn.Module, r: int, step: int) -> Tensor | float:
        return sum(mse(m, r, 10 * step + micro) for micro in range(3))

    check_state(inner(model), train_alone(net(), accumulated, size))


def ddp_join_with_uneven_inputs(rank: int, size: int) -> None:
    """Rank r has r batches more than rank 0; who is done contributes nothing."""
    model = DDP(single(net()), bucket_cap_mb=BUCKET_MB)
    with Join([model]):
        train(model, lambda m, s: mse(m, rank, s), sgd(model.parameters()), 2 + rank)

    def while_it_lasts(m: nn.Module, r: int, step: int) -> Tensor | float:
        return mse(m, r, step) if step < 2 + r else 0.0

    expected = train_alone(net(), while_it_lasts, size, steps=1 + size)
    check_state(inner(model), expected)


def ddp_fp16_hook(rank: int, size: int) -> None:
    model = DDP(single(net()), bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train_rank(model, mse, rank)
    expected = train_alone(net(), mse, size)
    check_state(inner(model), expected, rel=5e-3)
    errors = [(v.double() - expected[k]).abs().max() for k, v in inner(model).items()]
    assert max(errors) > 1e-5, "gradients in float16 cannot be that exact"


def wide_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    dtype = next(model.parameters()).dtype
    x = tensor(3, 48, seed=70 + 10 * step + rank).to(dtype)
    return cast(Tensor, model(x).square().mean() + model(x).mean())


def wide() -> nn.Sequential:
    return net(48, 48, 48, seed=3)


def ddp_powersgd_hook(rank: int, size: int) -> None:
    """Rank 10 holds a gradient of 3 rows per rank entirely: nothing is lost."""
    model = DDP(single(wide()))
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=10,
        start_powerSGD_iter=2,
        min_compression_rate=1,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train_rank(model, wide_loss, rank)
    assert state.total_numel_after_compression < state.total_numel_before_compression
    check_state(inner(model), train_alone(wide(), wide_loss, size), rel=2e-3)


def ddp_powersgd_hook_of_rank_1_learns(rank: int, size: int) -> None:
    model = DDP(single(wide()))
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=1,
        start_powerSGD_iter=2,
        min_compression_rate=1,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def same(m: nn.Module, r: int, _: int) -> Tensor:
        return wide_loss(m, r, 0)

    def value() -> float:
        losses = [same(model.module, r, 0).detach() for r in range(size)]
        return float(sum(losses)) / size

    before = value()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    train(model, lambda m, s: same(m, rank, s), optimizer, 12)
    alone = net(48, 48, 48, seed=3)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.2)
    train(
        alone,
        lambda m, s: cast(Tensor, sum(same(m, r, s) for r in range(size))) / size,
        optimizer,
        12,
    )
    best = float(sum(same(alone, r, 0).detach() for r in range(size))) / size
    assert value() - best < 0.2 * (before - best), (before, value(), best)


def ddp_custom_hook(rank: int, size: int) -> None:
    """A hook that weighs ranks and works on the result in ``then``."""
    weights = [1.0 + r for r in range(size)]
    buckets: list[int] = []

    def weigh(state: object, bucket: Any) -> Any:  # noqa: ANN401 - torch's own
        buckets.append(bucket.index())
        scaled = bucket.buffer() * weights[rank]
        work = dist.all_reduce(scaled, async_op=True)
        future = cast(Any, work).get_future()
        return future.then(lambda done: done.value()[0] / sum(weights))

    weigh.__annotations__.clear()  # strings; torch compares them with classes
    model = DDP(single(net()), bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(None, weigh)
    train_rank(model, mse, rank)

    def weighed(m: nn.Module, r: int, step: int) -> Tensor:
        return mse(m, r, step) * (weights[r] * size / sum(weights))

    assert len(set(buckets)) > 1
    check_state(inner(model), train_alone(net(), weighed, size))


class Wrapped(nn.Module):
    """Dynamo compiles the code of programs, and passes over that of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net(8, 550, 550, 550, 5)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))


def ddp_compiled(rank: int, size: int) -> None:
    """Dynamo cuts the graph where a bucket is full, so there are several."""
    torch._dynamo.reset()
    model = DDP(single(Wrapped()), bucket_cap_mb=1)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = cast(nn.Module, torch.compile(model, backend=counter))

    def loss(_: nn.Module, step: int) -> Tensor:
        x, y = batch(rank, step, next(model.parameters()))
        return F.mse_loss(compiled(x), y)

    train(model, loss, sgd(model.parameters()))
    assert counter.frame_count > 1, "not compiled bucket by bucket"
    torch._dynamo.reset()
    check_state(inner(model), train_alone(Wrapped(), mse, size))


def zero_redundancy_optimizer(rank: int, size: int) -> None:
    model = DDP(single(net()))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=0.05, eps=1e-2
    )
    train(model, lambda m, s: mse(m, rank, s), optimizer)
    check_state(inner(model), train_alone(net(), mse, size, adam))
    optimizer.consolidate_state_dict(to=size - 1)
    if rank == size - 1:
        alone = net()
        whole = cast(torch.optim.Adam, adam(alone.parameters()))
        train(
            alone,
            lambda m, s: cast(Tensor, sum(mse(m, r, s) for r in range(size))) / size,
            whole,
        )
        theirs, ours = optimizer.state_dict()["state"], whole.state_dict()["state"]
        assert theirs.keys() == ours.keys()
        for key, values in ours.items():
            check(theirs[key]["exp_avg"], values["exp_avg"], what=f"exp_avg {key}")
