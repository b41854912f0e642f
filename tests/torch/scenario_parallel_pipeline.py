"""``parallelize(model, "pipeline")`` beside one process in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from ringleader import checkpoint
from ringleader.errors import ConfigError
from ringleader.parallel.parallelize import parallelize
from ringleader.parallel.trainer import Trainer
from tests.kit.reference import adam, backward, check, check_state, sgd, tensor
from tests.torch.scenario_checkpoint import folder_of_all

EXACT = 1e-11
"""Relative error of a few steps in float64, whose sums have another order."""
WIDE, NARROW = 7, 5
ROWS = 29
"""A prime: the micro-batches of a step differ in size."""
STEPS = 3
SCHEDULES = ("gpipe", "1f1b", "interleaved")


def wave(module: nn.Module, seed: int) -> nn.Module:
    """Give a module values that are the same in every process."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            flat = tensor(parameter.numel(), seed=seed + i) / parameter.shape[-1] ** 0.5
            parameter.copy_(flat.view_as(parameter))
    return module


class Blocks(nn.Module):
    """An embedding, a list of blocks, a head that shares the embedding's weight."""

    def __init__(self, blocks: int, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Linear(WIDE, WIDE, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDE, WIDE)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x)
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.inner = nn.Sequential(nn.Linear(WIDE, NARROW), nn.Tanh())
        self.outer = nn.Linear(NARROW, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.outer(self.inner(self.norm(x)))
        return result


def blocks(count: int, *, tied: bool = True) -> nn.Module:
    return wave(Blocks(count, tied=tied).double(), seed=3)


def data(step: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    return tensor(rows, WIDE, seed=step), tensor(rows, WIDE, seed=100 + step)


def train_alone(
    model: nn.Module,
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd,
    batches: Callable[[int], tuple[Tensor, Tensor]] = data,
    clip: float | None = None,
) -> tuple[nn.Module, list[Tensor], list[float]]:
    """Return the model after the steps, their losses and the norms of the gradient."""
    alone = copy.deepcopy(model)
    optimizer = make([p for p in alone.parameters() if p.requires_grad])
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batches(step)
        loss = F.mse_loss(alone(x), y)
        backward(loss)
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(alone.parameters(), clip)))
        optimizer.step()
        losses.append(loss.detach())
    return alone, losses, norms


def trainer_of(model: nn.Module, **options: Any) -> Trainer:  # noqa: ANN401
    """Parallelize a copy; the values of ranks other than 0 must not matter."""
    mine = copy.deepcopy(model)
    if dist.get_rank() > 0:
        wave(mine, seed=1000 + dist.get_rank())
    options.setdefault("optimizer", sgd)
    options.setdefault("example", data(0))
    options.setdefault("strategy", "pipeline")
    return parallelize(mine, loss=F.mse_loss, **options)


@contextmanager
def quick_measurements() -> Iterator[pytest.MonkeyPatch]:
    """Measure for a moment: whether the times are right is no matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringleader.parallel.measurement.measure.MEASURE_S", 0.02)
        yield patch


def check_mine(trainer: Trainer, expected: nn.Module, rel: float = EXACT) -> None:
    """Compare what this rank holds, and that all ranks together hold everything."""
    mine = trainer.model.state_dict()
    whole = expected.state_dict()
    check_state(mine, {name: whole[name] for name in mine}, rel=rel)
    names = sorted(whole)
    held = torch.tensor([float(name in mine) for name in names])
    dist.all_reduce(held)
    assert held.min() >= 1, [
        n for n, count in zip(names, held, strict=True) if not count
    ]


def split_of(layers: int, stages: int) -> list[int]:
    """Return an uneven split: one layer each, and the rest on the first."""
    return [layers - stages + 1] + [1] * (stages - 1)


def parallel_pipeline(rank: int, size: int) -> None:
    """Every schedule gives the values of one process.

    FT-1: activations and gradients arrive with their shape. FT-2: the gradient that a
    stage sends back is that of its input, so that all stages learn.
    """
    model = blocks(2 * size + 1)
    alone, losses, _ = train_alone(model)
    for name in SCHEDULES:
        stages = 2 * size if name == "interleaved" else size
        trainer = trainer_of(
            model,
            schedule=name,
            microbatches=2 * size,
            split=split_of(2 * size + 3, stages),
        )
        for step in range(STEPS):
            check(trainer.step(*data(step)), losses[step], what=f"{name} loss")
        check_mine(trainer, alone)
        before = model.state_dict()
        moved = [
            n for n, p in trainer.model.state_dict().items() if not p.equal(before[n])
        ]
        assert moved == [*trainer.model.state_dict()], "a layer did not learn (FT-2)"
        trainer.model.eval()
        x, _ = data(50)
        check(trainer.predict(x), alone(x), rel=EXACT, what=f"{name} output")


def parallel_pipeline_options(rank: int, size: int) -> None:
    """Frozen parameters, clipping over all stages, Adam, a small last batch."""
    model = blocks(size + 1)
    for parameter in [*model.blocks[0].parameters(), *model.blocks[1].parameters()]:  # type: ignore[union-attr,index]
        parameter.requires_grad_(False)
    alone, _, norms = train_alone(model, adam, clip=0.05)
    trainer = trainer_of(
        model,
        optimizer=adam,
        clip=0.05,
        microbatches=size,
        split=split_of(size + 3, size),
    )
    for step in range(STEPS):
        trainer.step(*data(step))
        assert trainer.grad_norm is not None
        assert abs(trainer.grad_norm - norms[step]) < 1e-5 * norms[step]
    check_mine(trainer, alone, rel=1e-5)

    # All that comes before the last layer is frozen: no gradient travels back.
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    untied = blocks(size + 1, tied=False)
    for name, parameter in untied.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    sizes = (ROWS, 1, 3 * size)

    def batches(step: int) -> tuple[Tensor, Tensor]:
        return data(step, sizes[step])

    alone, losses, _ = train_alone(untied, batches=batches)
    trainer = trainer_of(untied, microbatches=size, split=split_of(size + 3, size))
    for step in range(STEPS):
        check(trainer.step(*batches(step)), losses[step], what="loss")
    check_mine(trainer, alone)
    with folder_of_all(rank) as folder:  # by ranks whose optimizers train nothing, too
        checkpoint.save(folder, 1, trainer.model, trainer.optimizer)
        wave(trainer.model, seed=5)
        assert checkpoint.load(folder, trainer.model, trainer.optimizer)
    check_mine(trainer, alone)


def parallel_pipeline_batch_norm(rank: int, size: int) -> None:
    """Batch norm sees each micro-batch by itself, as accumulation in one process."""
    layers: list[nn.Module] = []
    for _ in range(size):
        layers += [nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(inplace=True)]
    model = wave(nn.Sequential(*layers).double(), seed=9)
    rows, parts = 6 * size, 2 * size
    alone = copy.deepcopy(model)
    optimizer = sgd(alone.parameters())
    trainer = trainer_of(
        model, microbatches=parts, split=split_of(3 * size, size), example=data(0, rows)
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = data(step, rows)
        for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
            backward(F.mse_loss(alone(part), target) / parts)
        optimizer.step()
        trainer.step(x, y)
    check_mine(trainer, alone)


def parallel_pipeline_precision(rank: int, size: int) -> None:
    """bf16 is one process under autocast, with micro-batches; weights stay float32."""
    model = blocks(size + 1, tied=False).float()  # one cast for both uses rounds twice
    rows, parts = 4 * size, size
    alone = copy.deepcopy(model)
    optimizer = sgd(alone.parameters())
    trainer = trainer_of(
        model,
        precision="bf16",
        microbatches=parts,
        split=split_of(size + 3, size),
        example=[each.float() for each in data(0, rows)],
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (each.float() for each in data(step, rows))
        for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(alone(part), target)
            backward(loss / parts)
        optimizer.step()
        trainer.step(x, y)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    check_mine(trainer, alone.double(), rel=1e-4)


class Alive:
    """Counts what autograd keeps, in units of one micro-batch."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> tuple[Tensor, Alive.Kept]:
        return tensor, Alive.Kept(self)

    class Kept:
        def __init__(self, alive: Alive) -> None:
            self.alive = alive
            alive.now += 1
            alive.most = max(alive.most, alive.now)

        def __del__(self) -> None:
            self.alive.now -= 1


def kept_microbatches(trainer: Trainer, rows: int) -> float:
    """Return how many micro-batches wait for their backward at a time, at most."""
    alive = Alive()
    with saved_tensors_hooks(alive.pack, lambda kept: kept[0]):
        trainer.step(*data(0, rows))
    return alive.most


def parallel_pipeline_memory(rank: int, size: int) -> None:
    """1F1B keeps at most one micro-batch per stage, GPipe keeps all."""
    model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(size))).double()
    parts = 3 * size
    most = {}
    for name in ("gpipe", "1f1b"):
        trainer = trainer_of(
            model,
            schedule=name,
            microbatches=parts,
            split=[1] * size,
            example=data(0, parts),
        )
        trainer.step(*data(0, parts))
        most[name] = kept_microbatches(trainer, parts)
    per_part = most["gpipe"] / parts
    assert per_part == int(per_part), most
    assert most["1f1b"] <= per_part * (size - rank), most
    assert most["1f1b"] <= per_part * size < most["gpipe"]


def parallel_pipeline_plan(rank: int, size: int) -> None:
    """The machines are measured, all ranks agree, and training follows the plan."""
    model = blocks(2 * size)
    with quick_measurements():
        trainer = trainer_of(model, microbatches=size)
    held = len(
        {name.split(".")[1] for name in trainer.model.state_dict() if "blocks" in name}
    )
    total = torch.tensor(held)
    dist.all_reduce(total)
    assert int(total) == 2 * size, "every block is on one rank"
    alone, _, _ = train_alone(model)
    for step in range(STEPS):
        trainer.step(*data(step))
    check_mine(trainer, alone)


def parallel_pipeline_refusals(rank: int, size: int) -> None:
    """What cannot run is refused on all ranks, with the reason."""
    model = blocks(size + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGLEADER_MEMORY", "3KiB" if rank == size - 1 else "8GiB")
        with pytest.raises(ConfigError, match=r"does not fit(.|\n)*parameters .* KiB"):
            trainer_of(model, microbatches=size, split=split_of(size + 3, size))
    for options, words in (
        ({"microbatches": size - 1, "schedule": "1f1b"}, "at least one for each"),
        ({"split": [1, 1]}, "numbers of 1 or more"),
        ({"layers": ["head", "blocks.0"]}, "in no layer"),
        ({"layers": ["nothing"]}, "not a part of the model"),
        ({"example": None}, "example="),
        ({"example": data(0, 1)}, "1 rows"),
    ):
        options = {"microbatches": size, **options}
        with pytest.raises(ConfigError, match=words):
            trainer_of(model, **options)

    class Skips(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x) + x
            return result

    with pytest.raises(ConfigError, match="something else than its layers"):
        trainer_of(wave(Skips(size).double(), 1), microbatches=size)
    trainer = trainer_of(model, microbatches=size, split=split_of(size + 3, size))
    x, y = data(0)
    for wrong, words in (
        ((tensor(4, NARROW, seed=1), y[:4]), "rows of one shape"),
        ((x, [y]), "tensor as target, not list"),
    ):
        is_odd = rank == size - 1  # one rank is wrong, and nobody waits for it
        reason = words if is_odd else f"batch of rank {size - 1} cannot be used"
        with pytest.raises(ConfigError, match=reason):
            trainer.step(*(wrong if is_odd else (x, y)))
    trainer.step(x, y)
    with pytest.raises(ConfigError, match=r"on another rank|not a Tensor"):
        trainer.model(data(0)[0])


def parallel_pipeline_of_replicas(rank: int, size: int) -> None:
    """Two pipelines with batches of unlike size are one process with both batches."""
    sizes = (ROWS, 12)

    def both(step: int) -> tuple[Tensor, Tensor]:
        parts = [data(10 * step + share, rows) for share, rows in enumerate(sizes)]
        x, y = zip(*parts, strict=True)
        return torch.cat(x), torch.cat(y)

    model = blocks(3)
    alone, losses, _ = train_alone(model, batches=both)
    for name in SCHEDULES:
        trainer = trainer_of(
            model,
            strategy="pipeline+ddp",
            stages=2,
            schedule=name,
            microbatches=4,
            split=[2, 3] if name != "interleaved" else [1, 1, 2, 1],
        )
        share = trainer.data_rank
        for step in range(STEPS):
            loss = trainer.step(*data(10 * step + share, sizes[share]))
            check(loss, losses[step], what=f"{name} loss")
        check_mine(trainer, alone)


def parallel_pipeline_of_shards(rank: int, size: int) -> None:
    """Optimizer state sharded over two pipelines; the values of one process."""

    def both(step: int) -> tuple[Tensor, Tensor]:
        x, y = zip(*(data(10 * step + share) for share in range(2)), strict=True)
        return torch.cat(x), torch.cat(y)

    model = blocks(3, tied=False)
    alone, losses, _ = train_alone(model, adam, batches=both, clip=0.05)
    for name in SCHEDULES:
        trainer = trainer_of(
            model,
            strategy="pipeline+fsdp",
            optimizer=adam,
            clip=0.05,
            stages=2,
            schedule=name,
            microbatches=4,
            split=[2, 3] if name != "interleaved" else [1, 1, 2, 1],
        )
        for step in range(STEPS):
            loss = trainer.step(*data(10 * step + trainer.data_rank))
            check(loss, losses[step], what=f"{name} loss {step}")
        expected = alone.state_dict()
        for key, value in trainer.model.state_dict().items():
            assert isinstance(value, DTensor)
            assert value.to_local().numel() < value.numel(), "it is sharded"
            check(value.full_tensor(), expected[key], rel=1e-5, what=key)
        x, _ = data(50)
        check(trainer.predict(x), alone(x), rel=1e-5, what=f"{name} output")
        with pytest.raises(ConfigError, match="batches of the same size"):
            trainer.step(*data(0, 5 + trainer.data_rank))
    with pytest.raises(ConfigError, match="shared between layers"):
        trainer_of(blocks(3), strategy="pipeline+fsdp", stages=2, split=[2, 3])


def parallel_pipeline_checkpoint(rank: int, size: int) -> None:
    """A step in a pipeline, one with DDP, one in a pipeline that is cut elsewhere."""
    model = blocks(size + 1)
    alone, losses, _ = train_alone(model, adam)
    layers = size + 3
    kinds: list[dict[str, Any]] = [
        {"split": split_of(layers, size), "microbatches": size},
        {"strategy": "ddp", "example": None},
        {"split": split_of(layers, size)[::-1], "schedule": "gpipe", "microbatches": 3},
    ]
    with folder_of_all(rank) as folder:
        for step, options in enumerate(kinds):
            trainer = trainer_of(model, optimizer=adam, **options)
            mine, optimizer = trainer.model, trainer.optimizer
            if step:
                assert checkpoint.load(folder, mine, optimizer, trainer=trainer)
            check(trainer.step(*data(step)), losses[step], what=f"loss {step}")
            checkpoint.save(folder, trainer.steps, mine, optimizer, trainer=trainer)
            if step + 1 == len(kinds):
                check_mine(trainer, alone)


def parallel_shares(rank: int, size: int) -> None:
    """With an example, machines of data-parallel training are measured, too."""
    model = blocks(2)
    with quick_measurements():
        trainer = trainer_of(model, strategy="ddp", microbatches=2)
    assert trainer.shares is not None
    assert len(trainer.shares) == size
    assert abs(sum(trainer.shares) - 1) < 1e-9
    everybody = [torch.empty(size, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(everybody, torch.tensor(trainer.shares, dtype=torch.float64))
    assert all(each.equal(everybody[0]) for each in everybody), "all ranks agree"
    with quick_measurements() as patch:
        patch.setenv("RINGLEADER_MEMORY", "3KiB" if rank == size - 1 else "8GiB")
        for strategy in ("ddp", "fsdp"):
            with pytest.raises(ConfigError, match=r"does not fit with(.|\n)*gradients"):
                trainer_of(model, strategy=strategy)
    # Parameters, gradients and momentum fit only if they are sharded, which the hosts
    # that were found out allow.
    layers = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(8))).double()
    with quick_measurements() as patch:
        held = sum(each.nbytes for each in layers.parameters())
        patch.setenv("RINGLEADER_MEMORY", str(2 * held))
        options: dict[str, Any] = {"strategy": "fsdp", "example": data(0, 1)}
        assert trainer_of(layers, shard="hybrid", **options).shares is not None
        with pytest.raises(ConfigError, match="does not fit"):
            trainer_of(layers, **{**options, "strategy": "ddp"})
    with quick_measurements():  # a model that is one layer
        assert trainer_of(nn.Linear(WIDE, WIDE).double(), strategy="ddp").shares
