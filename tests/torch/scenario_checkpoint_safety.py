"""What ``ringleader.checkpoint`` leaves untouched, never does, and takes along."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import ringleader
from ringleader import checkpoint
from ringleader.backend.underlying_group import ringleader_group
from ringleader.checkpoint.catalog import newest_here
from ringleader.checkpoint.export import export_file
from ringleader.checkpoint.storage import FolderStorage
from ringleader.compression.attached_hook import compressor_of
from ringleader.compression.env_hook import _compress
from ringleader.errors import ConfigError
from tests.kit.reference import (
    adam,
    backward,
    check_state,
    mse,
    net,
    sgd,
    single,
    train,
)
from tests.torch.scenario_checkpoint import folder_of_all, trained
from tests.torch.scenario_own_checkpoint import (
    flat,
    flip_last_byte,
    fresh,
    machine,
    same,
)


def a_failed_load_leaves_the_model_as_it_was(rank: int, size: int) -> None:
    """All copies of one shard are damaged, or an object refuses its state: the others
    have been read by then, and still nothing is overwritten."""
    data = TensorDataset(torch.arange(20.0))
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        position = ringleader.shard(data, size, seed=1)
        saved = checkpoint.save(mine, 1, model, optimizer, data=position)
        model, optimizer = fresh()
        train(model, lambda m, step: mse(m, rank, step), optimizer, steps=1)
        before = flat(model, optimizer)
        numbers = torch.get_rng_state()
        other = ringleader.shard(data, size, seed=2 if rank == 1 else 1)
        with pytest.raises(ConfigError, match=r"unchanged\): rank 1: seed: 2 here, 1"):
            checkpoint.load(mine, model, optimizer, data=other)
        same(flat(model, optimizer), before)
        damaged = f"shard-{size - 1:05d}.safetensors"
        for path in Path(saved.path).glob(damaged):
            flip_last_byte(path)
        dist.barrier()
        with pytest.raises(checkpoint.DamagedCheckpoint, match=f"{damaged} is damaged"):
            checkpoint.load(mine, model, optimizer, data=position)
        same(flat(model, optimizer), before)
        assert torch.equal(torch.get_rng_state(), numbers)


def nothing_of_a_checkpoint_is_pickled(rank: int, size: int) -> None:
    """Neither in the files nor between the ranks."""
    with folder_of_all(rank) as folder, pytest.MonkeyPatch.context() as patch:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        expected = flat(model, optimizer)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise AssertionError("pickled")

        for module, name in (
            (distributed_c10d, "_object_to_tensor"),
            (distributed_c10d, "_tensor_to_object"),
            (pickle, "dumps"),
            (pickle, "loads"),
            (torch, "save"),
            (torch, "load"),
        ):
            patch.setattr(module, name, refuse)
        checkpoint.save(mine, 1, model, optimizer, epoch=1)
        checkpoint.async_save(mine, 2, model, optimizer, epoch=2).result(timeout=80)
        if rank == size - 1:
            shutil.rmtree(mine)
        model, optimizer = fresh()
        loaded = checkpoint.load(mine, model, optimizer)
        patch.undo()
        assert loaded is not None
        assert loaded.values == {"epoch": 2}
        same(flat(model, optimizer), expected)


def a_group_of_ours_saves_and_loads(rank: int, size: int) -> None:
    """As ``ringleader.join`` returns one; one machine's folder is deleted."""
    world = dist.group.WORLD
    group = ringleader_group(world) if world is not None else None
    if group is None:
        return  # another backend is under test
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model = single(net())
        optimizer = sgd(model.parameters())
        train(model, lambda m, step: mse(m, 0, step), optimizer)
        expected = {name: t.clone() for name, t in model.state_dict().items()}
        checkpoint.save(mine, 1, model, optimizer, group=group, best=0.5)
        if rank == 0:
            shutil.rmtree(mine)
        model = single(net(seed=99))
        optimizer = sgd(model.parameters())
        loaded = checkpoint.load(mine, model, optimizer, group=group)
        assert loaded is not None
        assert loaded.values == {"best": 0.5}
        same(dict(model.state_dict()), expected)
        assert all(bool(s["momentum_buffer"].any()) for s in optimizer.state.values())


def ranks_with_other_layers_than_before(rank: int, size: int) -> None:
    """As in a pipeline that is cut anew: weights, moments and hyperparameters."""

    def stage(
        layer: int, value: float, rate: float
    ) -> tuple[nn.Module, torch.optim.SGD]:
        model = nn.ModuleDict({f"layer{layer}": nn.Linear(3, 5)})
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
            moment = torch.full_like(parameter, value)
            optimizer.state[parameter]["momentum_buffer"] = moment
        return model, optimizer

    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        checkpoint.save(mine, 1, *stage(rank, rank, 0.25))
        other = (rank + 1) % size
        model, optimizer = stage(other, -1.0, 9.0)
        assert checkpoint.load(mine, model, optimizer) is not None
        assert optimizer.param_groups[0]["lr"] == 0.25
        for parameter in model.parameters():
            for tensor in (parameter, optimizer.state[parameter]["momentum_buffer"]):
                assert bool((tensor == other).all())


def compressed(wide: bool) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Linear(8, 5))
    hook = ringleader.compression.hook("int8" if wide else "onebit")
    model.register_comm_hook(None, hook)
    return model, sgd(model.parameters())


def a_hook_from_the_environment_is_known_early(rank: int, size: int) -> None:
    """``run --compress`` registers it at the first forward; a load comes before."""
    model = DistributedDataParallel(nn.Linear(8, 5))
    _compress(model, "onebit")
    compressor = compressor_of(model)
    assert compressor is not None
    backward(mse(model, rank, 0))
    assert compressor_of(model) is compressor
    assert len(compressor.state_dict()) > 3  # with residuals


def residuals_of_a_compressed_model_continue(rank: int, size: int) -> None:
    """A run that is interrupted ends where one without a break does. DDP orders its
    buckets anew, so sums differ in their last bits; without residuals, all do."""

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> None:
        for step in range(first, first + 3):
            optimizer.zero_grad()
            backward(mse(model, rank, step))
            optimizer.step()

    with folder_of_all(rank) as folder:
        model, optimizer = compressed(wide=False)
        steps(model, optimizer, 0)
        checkpoint.save(folder, 3, model, optimizer)
        steps(model, optimizer, 3)
        expected = {name: t.clone() for name, t in model.state_dict().items()}
        model, optimizer = compressed(wide=False)
        assert checkpoint.load(folder, model, optimizer) is not None
        steps(model, optimizer, 3)
        check_state(model.state_dict(), expected)
        model, optimizer = compressed(wide=False)
        assert checkpoint.load(folder, model, optimizer) is not None
        compressor = compressor_of(model)
        assert compressor is not None
        compressor.reset()
        steps(model, optimizer, 3)
        with pytest.raises(AssertionError):
            check_state(model.state_dict(), expected, rel=1e-3)
        model, optimizer = compressed(
            wide=True
        )  # another scheme begins without residuals
        assert checkpoint.load(folder, model, optimizer) is not None
        steps(model, optimizer, 3)


def moments_are_loaded_where_gradients_are(rank: int, size: int) -> None:
    """torch leaves out the moments of an optimizer that has gradients and no state."""
    with folder_of_all(rank) as folder:
        model = DistributedDataParallel(single(net()))
        optimizer = adam(model.parameters())
        train(model, lambda m, step: mse(m, rank, step), optimizer)
        expected = [t.clone() for s in optimizer.state.values() for t in s.values()]
        checkpoint.save(folder, 4, model, optimizer)
        model = DistributedDataParallel(single(net(seed=99)))
        optimizer = adam(model.parameters())
        backward(mse(model, rank, 0))
        gradients = {p: p.grad for p in model.parameters()}
        assert checkpoint.load(folder, model, optimizer) is not None
        assert all(p.grad is g for p, g in gradients.items())
        loaded = [t for s in optimizer.state.values() for t in s.values()]
        assert len(loaded) == len(expected)
        assert all(map(torch.equal, loaded, expected))


# -- one checkpoint through worlds of different sizes, without a shared disk -----------


def save_sharded(rank: int, size: int, folder: str) -> None:
    """FSDP on ``size`` machines; beside it, all tensors whole."""
    model, optimizer = trained(size, rank)
    checkpoint.save(machine(folder, rank), 1, model, optimizer)
    values = flat(model, optimizer)
    if rank == 0:
        torch.save(values, Path(folder) / "whole.pt")


def load_sharded(rank: int, size: int, folder: str, step: int, lost: int) -> None:
    """Load what another number of machines saved, of which one is lost."""
    if rank == 0:
        shutil.rmtree(machine(folder, lost))
    dist.barrier()
    model, optimizer = fresh()
    loaded = checkpoint.load(machine(folder, rank), model, optimizer)
    assert loaded is not None
    assert loaded.step == step
    expected: dict[str, Tensor] = torch.load(Path(folder) / "whole.pt")
    same(flat(model, optimizer), expected)
    checkpoint.save(machine(folder, rank), step + 1, model, optimizer)


def load_replicated(rank: int, size: int, folder: str) -> None:
    """DDP loads what FSDP saved, saves it, and that becomes one file."""
    model = DistributedDataParallel(single(net(seed=99)))
    optimizer = adam(model.parameters())
    loaded = checkpoint.load(machine(folder, rank), model, optimizer)
    assert loaded is not None
    shared = Path(folder) / "shared"
    checkpoint.save(shared, loaded.step + 1, model, optimizer)
    expected: dict[str, Tensor] = torch.load(Path(folder) / "whole.pt")
    if rank == 0:
        storage, target = FolderStorage(shared), shared / "model.safetensors"
        export_file(storage, newest_here(storage), target)
        names = dict(model.module.state_dict())
        same(load_file(target), {name: expected[name] for name in names})
