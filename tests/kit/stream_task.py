"""A training task in float64 on streamed shards, and the same in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.data.permutation import Permutation
from ringleader.settings.kill_point import kill_point
from ringleader.training import kill_points
from ringleader.training.control.run_config import RunConfig
from ringleader.training.data.data_source import data_spec
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from tests.kit.elastic_task import Member

SIZES = [13, 7, 20, 0, 9, 11, 5, 2]
"""Samples of the shards: uneven, one of them empty."""
SLOTS, MICRO, EPOCHS, SEED = 4, 3, 3, 5


class Shard:
    """A resumable shard; every sample follows from its shard and position."""

    def __init__(self, number: int, size: int) -> None:
        self._number = number
        self._size = size
        self._position = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self._position < self._size:
            self._position += 1
            yield sample(self._number, self._position - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return how many samples were yielded."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue behind that many samples."""
        self._position = state["position"]


def sample(shard: int, position: int) -> Tensor:
    """Return one sample."""
    made = torch.Generator().manual_seed(1000 * shard + position)
    return torch.randn(7, generator=made, dtype=torch.float64)


def net() -> nn.Linear:
    """Return a model that is the same in every process."""
    torch.manual_seed(1)
    return nn.Linear(7, 7, dtype=torch.float64)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return a loss that depends on the order of the steps."""
    return nn.functional.mse_loss(model(x).tanh(), x.flip(1))


def train(config: RunConfig | None) -> tuple[list[list[float]], int]:
    """Train until the shards end; return the weights and the delivered samples."""
    torch.set_num_threads(1)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    shards = [Shard(number, size) for number, size in enumerate(SIZES)]
    spec = data_spec(
        shards,
        global_batch=SLOTS * MICRO,
        micro_batch=MICRO,
        epochs=EPOCHS,
        shuffle=True,
        seed=SEED,
    )
    run = start_run(model, optimizer, shards, spec, Options(seed=SEED), config)
    for x in run:
        run.backward(loss_of(model, x))
        run.step()
    weights: list[list[float]] = model.weight.detach().tolist()
    return weights, run._team.progress.state.samples


def be_member(me: Member) -> tuple[list[list[float]], int]:
    """Train as one member, in a process of its own."""
    kill_points.arm(kill_point({"RINGLEADER_KILL_AT": me.kill_at}))
    return train(me.config())


def reference() -> list[list[float]]:
    """Train in plain torch: the slots read their shards one after the other."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for epoch in range(EPOCHS):
        for batches in _steps(epoch):
            total = sum(len(batch) for batch in batches)
            optimizer.zero_grad()
            for batch in batches:
                share = len(batch) / total
                (loss_of(model, torch.stack(batch)) * share).backward()  # type: ignore[no-untyped-call]
            if total:
                optimizer.step()
    weights: list[list[float]] = model.weight.detach().tolist()
    return weights


def _steps(epoch: int) -> Iterator[list[list[Tensor]]]:
    """Yield the batches of each step."""
    positions = torch.arange(len(SIZES)).numpy()
    waiting = [int(n) for n in Permutation(len(SIZES), SEED, epoch)(positions)]
    slots: list[list[Tensor] | None] = [_all(waiting.pop(0)) for _ in range(SLOTS)]
    while any(slot is not None for slot in slots):
        batches = []
        for number, slot in enumerate(slots):
            if slot is None:
                continue
            batches.append(slot[:MICRO])
            slots[number] = slot[MICRO:]
            if not slot[MICRO:]:
                slots[number] = _all(waiting.pop(0)) if waiting else None
        yield [batch for batch in batches if batch]


def _all(shard: int) -> list[Tensor]:
    return [sample(shard, position) for position in range(SIZES[shard])]
