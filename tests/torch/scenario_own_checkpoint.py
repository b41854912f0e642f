"""``ringleader.checkpoint``: every rank plays a machine with a folder of its own."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

from ringleader import checkpoint
from ringleader.checkpoint import manifest
from ringleader.checkpoint.inspection import inspect, verify
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.reshard import reshard
from ringleader.checkpoint.storage import open_storage
from ringleader.errors import ConfigError
from tests.kit.reference import adam, mse, net, single, train
from tests.torch.scenario_checkpoint import flat as live_state
from tests.torch.scenario_checkpoint import folder_of_all, trained
from tests.torch.scenario_sharding import shard, whole


def machine(folder: str, rank: int) -> Path:
    return Path(folder) / f"machine{rank}"


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = shard(single(net(seed=99)))
    return model, adam(model.parameters())


def flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies of all tensors of the training state, whole."""
    return {name: t.clone() for name, t in live_state(model, optimizer).items()}


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert torch.equal(value, expected[name]), f"{name} is not what was saved"


def own_checkpoint_without_a_shared_disk(rank: int, size: int) -> None:
    """Sharded model, optimizer, scheduler, random numbers and values come back; then
    one machine is lost, and they still do."""
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        scheduler = StepLR(optimizer, 3)
        expected = flat(model, optimizer)
        saved = checkpoint.save(
            mine, 7, model, optimizer, scheduler=scheduler, best=(0.5, {1: "a"})
        )
        numbers = torch.rand(3), random.random()
        assert Path(saved.path).parent == mine
        assert saved.num_bytes > 0
        for lost in (None, size - 1):
            if rank == lost:
                shutil.rmtree(mine)
            model, optimizer = fresh()
            scheduler = StepLR(optimizer, 99)
            loaded = checkpoint.load(mine, model, optimizer, scheduler=scheduler)
            assert loaded is not None
            assert (loaded.step, loaded.values) == (7, {"best": (0.5, {1: "a"})})
            assert scheduler.step_size == 3
            assert torch.equal(torch.rand(3), numbers[0])
            assert random.random() == numbers[1]
            same(flat(model, optimizer), expected)


def own_checkpoint_on_fewer_ranks_and_replicated(rank: int, size: int) -> None:
    """FSDP saves; DDP loads, on all ranks and on one alone, and exports one file."""
    with folder_of_all(rank) as folder:
        model, optimizer = trained(size, rank)
        expected = whole(model)
        checkpoint.save(folder, 1, model, optimizer)
        replica = DistributedDataParallel(single(net(seed=99)))
        assert checkpoint.load(folder, replica, adam(replica.parameters())) is not None
        same(dict(replica.module.state_dict()), expected)
        alone = dist.new_group([0])
        if rank == 0:
            single_model = single(net(seed=98))
            assert checkpoint.load(folder, single_model, group=alone) is not None
            same(dict(single_model.state_dict()), expected)


def own_checkpoint_resharded_offline(rank: int, size: int) -> None:
    """FT-13, FT-14: sizes that no number of ranks divides, cut for 3, 2 and 5 ranks,
    and each machine then has its own file only."""
    with folder_of_all(rank) as folder:
        model, optimizer = trained(size, rank)
        expected = flat(model, optimizer)
        saved = checkpoint.save(folder, 1, model, optimizer, epoch=3)
        numbers = torch.rand(3)
        names = {"first": 3, "second": 2, "third": 5, "last": size}
        if rank == 0:
            source = open_storage(folder)
            for name, ranks in names.items():
                found = inspect(source)[0].found
                assert found is not None
                source_before = source
                source = open_storage(Path(folder) / name)
                reshard(source_before, found, source, ranks)
                made = inspect(source)[0].found
                assert made is not None
                assert verify(source, made) == []
                assert len(made.manifest.files) == ranks
        dist.barrier()
        for name in names:
            model, optimizer = fresh()
            loaded = checkpoint.load(Path(folder) / name, model, optimizer)
            assert loaded is not None
            assert (loaded.step, loaded.values) == (1, {"epoch": 3})
            same(flat(model, optimizer), expected)
        mine = machine(folder, rank)
        last = next((Path(folder) / "last").iterdir())
        if dist.get_rank() < size:
            (mine / last.name).mkdir(parents=True)
            for file in ("manifest.json", f"shard-{rank:05d}.safetensors"):
                shutil.copy(last / file, mine / last.name)
        model, optimizer = fresh()
        torch.rand(1)  # three ranks have had their numbers back from "first"
        assert checkpoint.load(mine, model, optimizer) is not None
        same(flat(model, optimizer), expected)
        assert Path(saved.path).is_dir()
        assert not torch.equal(torch.rand(3), numbers), "left out, so not repeated"


def own_checkpoint_damage(rank: int, size: int) -> None:
    """A damaged shard is replaced by its copy; two damaged copies are named, and the
    checkpoint before is loaded."""
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        before = flat(model, optimizer)
        checkpoint.save(mine, 1, model, optimizer)
        train(model, lambda m, step: mse(m, rank, step), optimizer, steps=1)
        after = flat(model, optimizer)
        saved = checkpoint.save(mine, 2, model, optimizer)
        for copies, expected in ((1, after), (2, before)):
            if rank in range(copies):  # rank 1 has the copy of rank 0's shard
                flip_last_byte(Path(saved.path) / "shard-00000.safetensors")
            dist.barrier()
            model, optimizer = fresh()
            loaded = checkpoint.load(mine, model, optimizer)
            assert loaded is not None
            assert loaded.step == 3 - copies
            same(flat(model, optimizer), expected)
            if rank in range(copies):
                flip_last_byte(Path(saved.path) / "shard-00000.safetensors")
            dist.barrier()


def own_checkpoint_cannot_be_written(rank: int, size: int) -> None:
    """One machine's folder is no folder: all ranks say whose, and the old one stays."""
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        saved = checkpoint.save(mine, 1, model, optimizer)
        kept = mine.with_name(f"kept{rank}")
        if rank == 1:
            mine.rename(kept)
            mine.write_text("no folder")
        dist.barrier()
        with pytest.raises(ConfigError, match=f"rank 1: {machine(folder, 1)}"):
            checkpoint.save(mine, 2, model, optimizer)
        if rank == 1:
            mine.unlink()
            kept.rename(mine)
        dist.barrier()
        assert [p.name for p in mine.iterdir()] == [Path(saved.path).name]
        loaded = checkpoint.load(mine, *fresh())
        assert loaded is not None
        assert loaded.step == 1


def own_checkpoint_of_replicas(rank: int, size: int) -> None:
    """Statistics of BatchNorm are rank 0's, as in DDP, a save before the first step
    leaves the optimizer as it was, and what differs between ranks stays with each."""
    with folder_of_all(rank) as folder:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), norm(rank)))
        optimizer = adam(model.parameters())
        saved = checkpoint.save(folder, 0, model, optimizer, residual=Residual(rank))
        assert f"rank_tensors.{rank}.residual.a.b" in manifest_of(saved.path).tensors
        assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}
        model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), norm(99)))
        optimizer = adam(model.parameters())
        mine = Residual(99)
        assert checkpoint.load(folder, model, optimizer, residual=mine) is not None
        assert torch.equal(mine.value, torch.full((2, 3), float(rank)))
        assert {float(state["step"]) for state in optimizer.state.values()} == {0.0}
        for buffer in model.buffers():
            assert torch.equal(buffer, torch.full_like(buffer, 10))


class Residual:
    """What a rank alone has, as a compressor."""

    state_is_per_rank = True

    def __init__(self, rank: int) -> None:
        self.value = torch.full((2, 3), float(rank))

    def state_dict(self) -> dict[str, Tensor]:
        return {"a.b": self.value}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.value = state["a.b"]


def manifest_of(path: str) -> Manifest:
    return manifest.decode((Path(path) / manifest.NAME).read_bytes())


def norm(rank: int) -> nn.Module:
    """A layer whose buffers are those of a rank."""
    layer = nn.BatchNorm1d(3)
    for buffer in layer.buffers():
        buffer.fill_(10 + rank)
    return layer


def own_checkpoint_of_ranks_that_disagree(rank: int, size: int) -> None:
    """What one rank cannot save is an error of all ranks; nobody waits for it."""
    with folder_of_all(rank) as folder:
        model = net(seed=1)
        bad = object() if rank == 1 else 1
        with pytest.raises(ConfigError, match="rank 1: bad: value is a builtins"):
            checkpoint.save(folder, 1, model, bad=bad)
        with pytest.raises(ConfigError, match="different steps: "):
            checkpoint.save(folder, rank, model)
        checkpoint.save(folder, 1, model)
        extra: dict[str, Any] = {"extra": 1} if rank == 1 else {}
        with pytest.raises(ConfigError, match="rank 1: no 'extra' in this checkpoint"):
            checkpoint.load(folder, model, **extra)


def own_checkpoint_in_the_background(rank: int, size: int) -> None:
    """The state at the time of the call is saved, while training changes it. What one
    rank cannot save is an error of all ranks; it is raised once."""
    dist.new_group([0])  # so that the ranks are in different numbers of groups
    with folder_of_all(rank) as folder:
        mine = machine(folder, rank)
        model, optimizer = trained(size, rank)
        states, saves = [], []
        for step in range(5):
            states.append(flat(model, optimizer))
            saves.append(checkpoint.async_save(mine, step, model, optimizer, keep=2))
            train(model, lambda m, step: mse(m, rank, step), optimizer, steps=2)
        bad = object() if rank == 1 else 1
        saving = checkpoint.async_save(mine, 9, model, bad=bad)
        with pytest.raises(ConfigError, match="rank 1: bad: value is a builtins"):
            saving.result(timeout=80)
        checkpoint.async_save(mine, 9, model, bad=bad)
        with pytest.raises(ConfigError, match="rank 1: bad: value is a builtins"):
            checkpoint.async_save(mine, 9, model)
        assert saves[-1].result(timeout=80).step == 4
        assert len(list(mine.iterdir())) == 2
        for step in (3, 4):
            model, optimizer = fresh()
            assert checkpoint.load(mine, model, optimizer, step=step) is not None
            same(flat(model, optimizer), states[step])


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
