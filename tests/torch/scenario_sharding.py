"""Fully sharded models: FSDP1, FSDP2, mixed precision and hybrid sharding."""

from __future__ import annotations

import copy
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.kit.reference import (
    backward,
    batch,
    check_state,
    mse,
    net,
    single,
    train_alone,
    train_rank,
)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The full value of every sharded parameter."""
    return {name: full(p) for name, p in model.named_parameters()}


def full(value: Tensor) -> Tensor:
    return cast(DTensor, value).full_tensor()


def shard(
    model: nn.Module,
    mesh: DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
) -> nn.Module:
    """FSDP2 over every layer and the root."""
    policy = mp_policy or MixedPrecisionPolicy()
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def fsdp1(rank: int, size: int) -> None:
    model = FullyShardedDataParallel(
        single(net()),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    held = sum(p.numel() for p in model.parameters())
    assert held < sum(p.numel() for p in net().parameters()), "nothing was sharded"
    train_rank(model, mse, rank)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        values = {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().clone()
            for name, p in model.named_parameters()
        }
    check_state(values, train_alone(net(), mse, size))


def fsdp1_sharding_gradients_only(rank: int, size: int) -> None:
    model = FullyShardedDataParallel(
        single(net()),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    train_rank(model, mse, rank)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        values = {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().clone()
            for name, p in model.named_parameters()
        }
    check_state(values, train_alone(net(), mse, size))


def fsdp2(rank: int, size: int) -> None:
    model = shard(single(net()))
    local = cast(DTensor, next(model.parameters())).to_local()
    assert local.shape[0] < 11, "nothing was sharded"
    train_rank(model, mse, rank)
    check_state(whole(model), train_alone(net(), mse, size))


def fsdp2_bf16_with_float32_reduction(rank: int, size: int) -> None:
    """Each rank's gradient is rounded to bfloat16, their mean is not."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = shard(single(net()), mp_policy=policy)
    backward(mse(model, rank, 0))

    grads: list[dict[str, Tensor]] = []
    for each in range(size):
        alone = copy.deepcopy(single(net())).bfloat16()
        backward(mse_with_float32_target(alone, each))
        grads.append(
            {n: cast(Tensor, p.grad).double() for n, p in alone.named_parameters()}
        )
    expected = {n: sum(g[n] for g in grads) / size for n in grads[0]}
    actual = {n: full(cast(Tensor, p.grad)) for n, p in model.named_parameters()}
    for name, value in actual.items():
        assert value.dtype == torch.float32, (name, value.dtype)
    check_state(actual, cast("dict[str, Tensor]", expected), rel=1e-6)


def mse_with_float32_target(model: nn.Module, rank: int) -> Tensor:
    """As FSDP sees it: the batch is float32 and only the model's input is cast."""
    x, y = batch(rank, 0, torch.zeros((), dtype=torch.float32))
    return F.mse_loss(model(x.bfloat16()), y)


def fsdp2_accumulates_without_sync(rank: int, size: int) -> None:
    model = shard(single(net()))
    sharded = cast("FSDPLike", model)
    sharded.set_requires_gradient_sync(False)
    backward(mse(model, rank, 0))
    sharded.set_requires_gradient_sync(True)
    backward(mse(model, rank, 1))

    alone = net()
    total = sum(mse(alone, r, step) for r in range(size) for step in (0, 1))
    backward(cast(Tensor, total) / size)
    check_state(
        {n: full(cast(Tensor, p.grad)) for n, p in model.named_parameters()},
        {n: cast(Tensor, p.grad) for n, p in alone.named_parameters()},
    )


class FSDPLike(nn.Module):
    """The method that ``fully_shard`` adds to a module."""

    def set_requires_gradient_sync(self, requires: bool) -> None:
        raise NotImplementedError


def hsdp(rank: int, size: int) -> None:
    """Replicas of shards; in a small world one of the two has a single rank."""
    shapes = [(2, 2)] if size == 4 else [(1, size), (size, 1)]
    for shape in shapes:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model = shard(single(net()), mesh)
        train_rank(model, mse, rank)
        check_state(whole(model), train_alone(net(), mse, size))


def fsdp2_with_tensor_parallel(rank: int, size: int) -> None:
    """Two dimensions: the data ranks differ, the tensor ranks share a batch."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    model = single(net(8, 12, 5))
    parallelize_module(
        model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    shard(model, mesh["data"])
    train_rank(model, mse, mesh["data"].get_local_rank())
    check_state(whole(model), train_alone(net(8, 12, 5), mse, 2))
