"""Distributed checkpoints: saved by some ranks, loaded by as many, fewer or more."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.kit.reference import (
    adam,
    check_state,
    mse,
    net,
    single,
    tensor,
    train,
    train_alone,
)
from tests.torch.scenario_sharding import shard, whole

State = dict[str, Any]
SHAPE = (7, 5)


@contextmanager
def folder_of_all(rank: int) -> Iterator[str]:
    """A folder that every rank knows, removed when all are done."""
    names: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    try:
        yield names[0]
        dist.barrier()
    finally:
        if rank == 0:
            shutil.rmtree(names[0])


def sharded_state(size: int, fill: float | None = None) -> State:
    """Tensors sharded by rows and by columns, a plain one and a number."""
    mesh = init_device_mesh("cpu", (size,))
    values = [tensor(*SHAPE, seed=seed) for seed in (1, 2, 3)]
    if fill is not None:
        values = [torch.full_like(value, fill) for value in values]
    return {
        "rows": distribute_tensor(values[0], mesh, [Shard(0)]),
        "columns": distribute_tensor(values[1], mesh, [Shard(1)]),
        "plain": values[2],
        "step": 17 if fill is None else 0,
    }


def check_sharded(state: State) -> None:
    assert torch.equal(full(state["rows"]), tensor(*SHAPE, seed=1))
    assert torch.equal(full(state["columns"]), tensor(*SHAPE, seed=2))
    assert torch.equal(state["plain"], tensor(*SHAPE, seed=3))
    assert state["step"] == 17


def full(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def checkpoint_save_and_load(rank: int, size: int) -> None:
    with folder_of_all(rank) as folder:
        save(sharded_state(size), checkpoint_id=folder)
        state = sharded_state(size, fill=0.0)
        load(state, checkpoint_id=folder)
        check_sharded(state)


def checkpoint_async_save(rank: int, size: int) -> None:
    """The state changes and the same group works while two checkpoints are written."""
    dist.new_group([0])  # so that the ranks are in different numbers of groups
    with folder_of_all(rank) as folder:
        state = sharded_state(size)
        saves = []
        for name in ("first", "second"):
            saves.append(async_save(state, checkpoint_id=f"{folder}/{name}"))
            for i in range(20):
                ours = torch.full((1000,), float(rank + i))
                dist.all_reduce(ours)
                wanted = float(sum(r + i for r in range(size)))
                assert torch.equal(ours, torch.full((1000,), wanted))
                assert torch.equal(full(state["rows"]), tensor(*SHAPE, seed=1))
        state["plain"].zero_()
        for save_ in saves:
            cast("Future[Any]", save_).result(timeout=80)
        for name in ("first", "second"):
            loaded = sharded_state(size, fill=0.0)
            load(loaded, checkpoint_id=f"{folder}/{name}")
            check_sharded(loaded)


# -- one checkpoint through worlds of different sizes --------------------------------


def trained(size: int, rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = shard(single(net()))
    optimizer = adam(model.parameters())
    train(model, lambda m, step: mse(m, rank, step), optimizer)
    return model, optimizer


def flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the training state, whole."""
    values = whole(model)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            values[f"{name} {key}"] = full(value)
    return values


def app_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save_trained(rank: int, size: int, folder: str) -> None:
    """Save a trained model and its optimizer, and beside it all tensors whole."""
    model, optimizer = trained(size, rank)
    check_state(whole(model), train_alone(net(), mse, size, adam))
    state = app_state(model, optimizer) | sharded_state(size)
    save(state, checkpoint_id=folder)
    values = flat(model, optimizer)
    if rank == 0:
        torch.save(values, Path(folder) / "whole.pt")


def load_trained(rank: int, size: int, folder: str, save_to: str | None) -> None:
    """Load it into another number of ranks: not a bit differs. Perhaps save it."""
    model = shard(single(net(seed=99)))
    optimizer = adam(model.parameters())
    train(model, lambda m, step: mse(m, rank, step), optimizer, steps=1)
    state = app_state(model, optimizer) | sharded_state(size, fill=0.0)
    load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    check_sharded(state)
    expected = torch.load(Path(folder) / "whole.pt")
    values = flat(model, optimizer)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert torch.equal(value, expected[name]), f"{name} is not what was saved"
    if save_to is not None:
        save(state, checkpoint_id=save_to)
        if rank == 0:
            shutil.copy(Path(folder) / "whole.pt", save_to)
        dist.barrier()
