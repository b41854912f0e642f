"""The trainer: the samples of a batch, and its gradient on every worker."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.protocol.messages import Assignment
from ringleader.paramserver.tasks.batch_order import batch_indices
from ringleader.paramserver.tasks.device import pick_device
from ringleader.paramserver.tasks.task import Task, default_predict
from ringleader.paramserver.worker.trainer import StepResult, Trainer

CPU = torch.device("cpu")
FIRST = Assignment(
    version=0, shard=0, shards=2, first_batch=0, steps=1, batch_size=16, lr=1.0
)


def small(**more: object) -> Task:
    """Build a task of 50 samples whose loss is a mean of squares."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(50, 4, generator=generator)
    settings: dict[str, object] = {
        "name": "small",
        "code": "",
        "make_model": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        "make_samples": lambda split: (inputs, inputs[:, :3].sin()),
        "loss": lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        "make_optimizer": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
        "predict": default_predict,
    }
    return Task(**{**settings, **more})  # type: ignore[arg-type]


def run(task: Task, assignment: Assignment, seed: int = 3) -> StepResult:
    trainer = Trainer(task, task.samples("train"), CPU, seed=seed)
    manifest = Manifest.of(trainer.model)
    return trainer.compute(manifest, assignment, trainer.gather(assignment))


@pytest.mark.parametrize(("size", "count"), [(1, 7), (3, 7), (7, 7), (10, 7), (29, 7)])
def test_batches_cover_whole_epochs(size: int, count: int) -> None:
    line = np.concatenate([batch_indices(9, b, size, count) for b in range(21)])

    assert all(len(batch_indices(9, b, size, count)) == size for b in range(21))
    for epoch in range(len(line) // count):
        assert set(line[epoch * count : (epoch + 1) * count]) == set(range(count))


def test_epochs_and_seeds_are_shuffled_differently_and_always_alike() -> None:
    whole = [tuple(batch_indices(1, b, 100, 100).tolist()) for b in range(3)]

    assert len({*whole, tuple(batch_indices(2, 0, 100, 100).tolist())}) == 4
    # Pinned: workers of different versions must agree, or change task.ORDER.
    assert batch_indices(0, 0, 5, 1000).tolist() == PINNED


PINNED = [654, 222, 541, 125, 66]


def test_two_shards_together_are_one_batch_of_a_single_run() -> None:
    """They are also compared with a float64 reference."""
    task = small()
    shards = [replace(FIRST, shard=i, first_batch=6 + i, version=3) for i in (0, 1)]
    found = [run(task, assignment) for assignment in shards]
    parts = np.stack([r.update.parameters.astype(np.float64) for r in found])
    mean = np.average(parts, axis=0, weights=[r.num_samples for r in found])

    model = task.model().double()
    inputs, targets = task.samples("train").batch(
        torch.cat([batch_indices(3, b, 16, 50) for b in (6, 7)])
    )
    task.loss(model, (inputs.double(), targets.double())).backward()  # type: ignore[no-untyped-call]
    exact = torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )

    assert np.abs(mean - exact.numpy()).max() < 1e-6
    assert sum(r.num_samples for r in found) == 32


def test_local_steps_are_the_difference_that_the_optimizer_makes() -> None:
    task = small()
    found = run(task, replace(FIRST, steps=5, first_batch=10, lr=0.5))

    model = task.model()
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for number in range(10, 15):
        optimizer.zero_grad()
        loss = task.loss(
            model, task.samples("train").batch(batch_indices(3, number, 16, 50))
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    moved = nn.utils.parameters_to_vector(model.parameters()).detach() - start

    assert np.abs(found.update.parameters - moved.numpy()).max() < 1e-7
    assert found.num_samples == 5 * 16
    assert found.loss == pytest.approx(sum(losses) / 5)


def dropping() -> Task:
    layers = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)
    )
    return small(make_model=lambda: layers.requires_grad_())


@pytest.mark.parametrize("steps", [1, 3])
def test_a_batch_gives_the_same_result_on_every_worker(steps: int) -> None:
    """Dropout and batch norm would show a difference in random numbers or buffers."""
    assignment = replace(FIRST, steps=steps, first_batch=4)
    task = dropping()
    trainer = Trainer(task, task.samples("train"), CPU, seed=3)
    manifest = Manifest.of(trainer.model)
    weights = {n: t.clone() for n, t in manifest.tensors(trainer.model).items()}
    first = trainer.compute(manifest, assignment, trainer.gather(assignment))
    other = replace(assignment, first_batch=20)
    trainer.compute(manifest, other, trainer.gather(other))
    torch.manual_seed(99)
    manifest.load(trainer.model, weights)
    second = trainer.compute(manifest, assignment, trainer.gather(assignment))

    assert np.array_equal(first.update.parameters, second.update.parameters)
    assert np.array_equal(first.update.buffers, second.update.buffers)
    assert first.loss == second.loss
    counts = Counter(np.round(second.update.buffers).tolist())
    assert counts[float(steps)] == 1, "num_batches_tracked moved by the steps"


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (lambda model, batch: model(batch[0]).sum() * float("nan"), "is nan"),
        (lambda model, batch: model(batch[0]), "not one number"),
        (lambda model, batch: 1.0, "not one number"),
        (lambda model, batch: (model(batch[0]) * 0).abs().sqrt().sum(), "not finite"),
    ],
)
def test_a_loss_that_is_not_finite_is_not_sent(loss: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run(small(loss=loss), FIRST)


def test_devices_are_named_or_found() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="--device warp"):
        pick_device("warp")
