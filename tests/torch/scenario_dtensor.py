"""DTensor and tensor parallel: one tensor over many ranks, evenly or not."""

from __future__ import annotations

import copy
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.kit.reference import backward, check, check_state, net, single, tensor

SHAPES = [(6, 12), (7, 5), (1, 4), (2, 3), (13, 1)]
"""Even, uneven, and fewer rows or columns than ranks."""


def piece(whole: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """Part of Shard(dim) on a rank, as torch.chunk cuts; the last may be empty."""
    parts = whole.chunk(size, dim)
    return parts[rank] if rank < len(parts) else whole.narrow(dim, 0, 0)


def to(value: DTensor, placement: Placement) -> DTensor:
    return value.redistribute(placements=[placement])


def dtensor_redistribute(rank: int, size: int) -> None:
    """FT-5: a new placement moves the values; it is not only another label."""
    mesh = init_device_mesh("cpu", (size,))
    for shape in SHAPES:
        whole = tensor(*shape, seed=5)
        rows = distribute_tensor(whole.float(), mesh, [Shard(0)])
        check(rows.to_local(), piece(whole, 0, rank, size), what=f"rows of {shape}")
        everywhere = to(rows, Replicate())
        check(everywhere.to_local(), whole, what=f"replicate {shape}")
        columns = to(everywhere, Shard(1))
        check(columns.to_local(), piece(whole, 1, rank, size), what=f"cols of {shape}")
        again = to(columns, Shard(0))  # an all-to-all
        check(again.to_local(), piece(whole, 0, rank, size), what=f"back {shape}")
        check(again.full_tensor(), whole, what=f"full {shape}")


def dtensor_partial(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    for shape in SHAPES:
        parts = [tensor(*shape, seed=100 + r) for r in range(size)]
        stack = torch.stack(parts)
        sums = {"sum": stack.sum(0), "avg": stack.mean(0), "max": stack.amax(0)}
        for op, expected in sums.items():
            partial = DTensor.from_local(parts[rank].float(), mesh, [Partial(op)])
            check(to(partial, Replicate()).to_local(), expected, what=f"{op} {shape}")
            if op == "max":
                continue
            for dim in (0, 1):
                mine = to(partial, Shard(dim)).to_local()
                wanted = piece(expected, dim, rank, size)
                check(mine, wanted, what=f"{op} {shape} to Shard({dim})")


def dtensor_matrix_product(rank: int, size: int) -> None:
    """Columns times rows give a partial sum, which becomes shards: Shard to Partial."""
    mesh = init_device_mesh("cpu", (size,))
    left, right = tensor(7, 9, seed=1), tensor(9, 5, seed=2)
    product = distribute_tensor(left.float(), mesh, [Shard(1)]) @ distribute_tensor(
        right.float(), mesh, [Shard(0)]
    )
    product = cast(DTensor, product)
    assert product.placements[0].is_partial()
    check(to(product, Shard(0)).full_tensor(), left @ right)
    check(product.full_tensor(), left @ right)


def dtensor_gradient(rank: int, size: int) -> None:
    """Backwards, replicate becomes partial and then the shards of the input."""
    mesh = init_device_mesh("cpu", (size,))
    for rows in (2 * size, 2 * size + 1, 1):
        whole, weights = tensor(rows, 3, seed=8), tensor(rows, 3, seed=9)
        leaf = distribute_tensor(whole.float(), mesh, [Shard(0)])
        leaf.requires_grad_()
        local = to(leaf, Replicate()).to_local(grad_placements=[Partial()])
        backward((local.square() * weights.float() * (rank + 1)).sum())
        expected = 2 * whole * weights * sum(range(1, size + 1))
        check(cast(DTensor, leaf.grad).full_tensor(), expected)


def dtensor_on_a_2d_mesh(rank: int, size: int) -> None:
    shape = (2, 2) if size == 4 else (1, size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))
    whole = tensor(7, 5, seed=11)
    grid = distribute_tensor(whole.float(), mesh, [Shard(0), Shard(1)])
    check(grid.full_tensor(), whole)
    for places in (
        [Replicate(), Shard(0)],
        [Shard(1), Replicate()],
        [Shard(1), Shard(0)],
        [Shard(0), Shard(0)],
        [Replicate(), Replicate()],
    ):
        grid = grid.redistribute(placements=places)
        check(grid.full_tensor(), whole, what=str(places))
    check(grid.to_local(), whole)


def tensor_parallel(rank: int, size: int) -> None:
    """Columns, then rows: one all-reduce forwards, one backwards."""
    mesh = init_device_mesh("cpu", (size,))
    model = single(net(8, 12, 5))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, y = tensor(4, 8, seed=1), tensor(4, 5, seed=2)
    mine = x.float().requires_grad_()
    backward(F.mse_loss(model(mine), y.float()))

    alone = net(8, 12, 5)
    x.requires_grad_()
    backward(F.mse_loss(alone(x), y))
    check(cast(Tensor, mine.grad), cast(Tensor, x.grad))
    check_state(
        {n: cast(DTensor, p.grad).full_tensor() for n, p in model.named_parameters()},
        {n: cast(Tensor, p.grad) for n, p in alone.named_parameters()},
    )


def sequence_parallel(rank: int, size: int) -> None:
    """Gathers and scatters rows around the same layers, and norms a shard of them."""
    mesh = init_device_mesh("cpu", (size,))
    blocks = torch.nn.Sequential(
        torch.nn.LayerNorm(8, dtype=torch.float64), *copy.deepcopy(net(8, 12, 5))
    )
    model = single(blocks)
    parallelize_module(
        model,
        mesh,
        {
            "0": SequenceParallel(sequence_dim=0),
            "1": ColwiseParallel(input_layouts=Shard(0)),
            "3": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        },
    )
    x, y = tensor(12, 8, seed=1), tensor(12, 5, seed=2)
    rows = distribute_tensor(x.float(), mesh, [Shard(0)])
    out = cast(DTensor, model(rows))
    check(out.to_local(), piece(blocks(x), 0, rank, size))
    backward(F.mse_loss(out.full_tensor(), y.float()))

    backward(F.mse_loss(blocks(x), y))
    check_state(
        {n: cast(DTensor, p.grad).full_tensor() for n, p in model.named_parameters()},
        {n: cast(Tensor, p.grad) for n, p in blocks.named_parameters()},
    )
