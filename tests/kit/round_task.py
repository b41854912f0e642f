"""A small task in float32 that members train in rounds, and its float64 reference."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ringleader.settings.kill_point import kill_point
from ringleader.training import kill_points
from ringleader.training.control.run_config import RunConfig
from ringleader.training.data.data_state import DataSpec
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from tests.kit.elastic_task import Member, Trained, arrays, digest

SPEC = DataSpec(num_samples=209, global_batch=60, micro_batch=5, seed=3, epochs=3)
"""Rounds of twelve local steps; the last one of an epoch is shorter."""
CLIP = 0.5


def samples() -> TensorDataset:
    """Return the same samples in every process: a task that can be learned."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(SPEC.num_samples, 7, generator=made)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


class Net(nn.Module):
    """BatchNorm, and a parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(7, 61, bias=False)
        self.norm = nn.BatchNorm1d(61)
        self.unused = nn.Parameter(torch.ones(11))
        self.last = nn.Linear(61, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return logits


def train(config: RunConfig | None, **options: Any) -> tuple[Trained, list[Any]]:  # noqa: ANN401
    """Train until the data ends; return also the ledger's entries."""
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chosen = Options(seed=3, clip=CLIP, **options)
    run = start_run(model, optimizer, samples(), SPEC, chosen, config)
    digests = {}
    for x, y in run:
        run.backward(nn.functional.cross_entropy(model(x), y))
        if run.step():
            digests[run.version] = digest(model)
    entries = list(run.ledger().entries())
    positions = [(e.epoch, i) for e in entries for i in range(e.begin, e.end)]
    trained = Trained(arrays(model), digests, positions, {e.node for e in entries})
    return trained, [(e.version, e.node, e.epoch, e.begin, e.end) for e in entries]


def be_member(me: Member, options: Mapping[str, Any]) -> tuple[Trained, list[Any]]:
    """Train as one member, in a process of its own."""
    kill_points.arm(kill_point({"RINGLEADER_KILL_AT": me.kill_at}))
    return train(me.config(), **options)


def loss_of(state: Mapping[str, np.ndarray]) -> float:
    """Return the loss of a model over all samples."""
    model = Net()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in state.items()})
    x, y = samples().tensors
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.eval()(x), y))


def reference(ledger: list[Any], order: Any) -> dict[str, np.ndarray]:  # noqa: ANN401
    """Train in plain torch and float64 what the ledger says, member by member."""
    start = Net().double()
    outer = torch.optim.SGD(start.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    states: dict[str, Any] = {}
    x, y = samples().tensors
    rounds: dict[int, dict[str, list[list[int]]]] = defaultdict(dict)
    for version, node, epoch, begin, end in ledger:
        for i in range(begin, end, SPEC.micro_batch):
            indices = [
                order(epoch, j) for j in range(i, min(end, i + SPEC.micro_batch))
            ]
            rounds[version].setdefault(node, []).append(indices)
    for version in sorted(rounds):
        _reference_round(start, outer, states, rounds[version], (x.double(), y))
    return arrays(start)


def _reference_round(
    start: nn.Module,
    outer: torch.optim.Optimizer,
    states: dict[str, Any],
    work: dict[str, list[list[int]]],
    data: tuple[torch.Tensor, torch.Tensor],
) -> None:
    total = sum(len(batch) for mine in work.values() for batch in mine)
    gradients = [torch.zeros_like(p) for p in start.parameters()]
    buffers = [torch.zeros_like(b, dtype=torch.float64) for b in start.buffers()]
    for node, mine in work.items():
        model = copy.deepcopy(start)
        inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if node in states:
            inner.load_state_dict(states[node])
        for batch in mine:
            inner.zero_grad()
            loss = nn.functional.cross_entropy(model(data[0][batch]), data[1][batch])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            inner.step()
        states[node] = inner.state_dict()
        share = sum(map(len, mine)) / total
        for g, p, q in zip(
            gradients, start.parameters(), model.parameters(), strict=True
        ):
            g += share * (p - q).detach()
        for b, now in zip(buffers, model.buffers(), strict=True):
            b += share * now if now.is_floating_point() else (now - b).clamp(min=0)
    for p, g in zip(start.parameters(), gradients, strict=True):
        p.grad = g
    outer.step()
    for target, b in zip(start.buffers(), buffers, strict=True):
        target.copy_(b)
