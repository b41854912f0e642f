"""A small training task in float64, and members of an elastic run that train it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it; here the fork server does
from torch import nn
from torch.utils.data import TensorDataset

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.secret_value import Secret
from ringleader.membership.config import MembershipConfig
from ringleader.settings.kill_point import kill_point
from ringleader.testing.run_member import issue_credentials
from ringleader.training import kill_points
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import KnownPeers
from ringleader.training.data.data_state import (
    DataSpec,
    DataState,
    advance,
    quanta,
    sample_indices,
)
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from ringleader.training.quantum_seed import quantum_seed
from ringleader.training.run import ElasticRun
from ringleader.transport.free_ports import free_ports

SEED = 3
CLIP = 0.5
SPEC = DataSpec(num_samples=209, global_batch=24, micro_batch=5, seed=SEED, epochs=2)
"""Sizes that divide by nothing: 9 steps per epoch, the last one smaller."""
PATIENT = replace(
    MembershipConfig.for_training(),
    suspect_after_s=30.0,
    dead_after_s=90.0,
    lost_after_s=60.0,
)
"""A process that ends is noticed at once; one that the machine keeps waiting stays."""


def samples() -> TensorDataset:
    """Return the same samples in every process."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(SPEC.num_samples, 7, generator=made, dtype=torch.float64)
    y = torch.randint(0, 5, (SPEC.num_samples,), generator=made)
    return TensorDataset(x, y)


class Net(nn.Module):
    """BatchNorm, dropout, and a parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(7, 61, bias=False)
        self.norm = nn.BatchNorm1d(61)
        self.unused = nn.Parameter(torch.ones(11))
        self.last = nn.Linear(61, 5)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = nn.functional.dropout(self.norm(self.first(x)), 0.3, self.training)
        logits: torch.Tensor = self.last(hidden.relu())
        return logits


def parts() -> tuple[Net, torch.optim.Optimizer, Any]:
    """Return model, optimizer and scheduler, equal in every process."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)


@dataclass(slots=True)
class Trained:
    """What a member has at the end."""

    state: dict[str, np.ndarray]
    digests: dict[int, str] = field(default_factory=dict)
    """Version -> digest of the parameters."""
    positions: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and position of every delivered sample, by the ledger."""
    nodes: set[str] = field(default_factory=set)
    """Members whose samples were delivered."""


def train(
    config: RunConfig | None,
    *,
    until: int = 1 << 60,
    save_every: int = 0,
    pause: Callable[[ElasticRun], None] = lambda _: None,
    **options: Any,  # noqa: ANN401
) -> Trained:
    """Train until the data ends or to a version, by the loop that users write."""
    torch.set_num_threads(1)
    model, optimizer, scheduler = parts()
    chosen = Options(seed=SEED, clip=CLIP, scheduler=scheduler, **options)
    run = start_run(model, optimizer, samples(), SPEC, chosen, config)
    digests: dict[int, str] = {}

    def note_digest(*_: object) -> None:
        digests[run.version + 1] = digest(model)

    # Not where step() returns True: a member that is slow may have no quanta.
    optimizer.register_step_post_hook(note_digest)
    for x, y in run:
        pause(run)
        run.backward(nn.functional.cross_entropy(model(x), y))
        if run.step():
            if save_every and run.version % save_every == 0:
                run.checkpoint()
            if run.version == until:
                run.close()
                break
    entries = list(run.ledger().entries())
    return Trained(
        arrays(model),
        digests,
        [(e.epoch, i) for e in entries for i in range(e.begin, e.end)],
        {e.node for e in entries},
    )


def digest(model: nn.Module) -> str:
    """Return a digest of all bits of the parameters."""
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(content).hexdigest()


def reference() -> dict[str, np.ndarray]:
    """Train in plain torch: one process, no buckets, no weights by hand."""
    model, optimizer, scheduler = parts()
    x, y = samples().tensors
    state, version = DataState(), 0
    while step := quanta(SPEC, state):
        _reference_step(
            model, optimizer, [sample_indices(SPEC, q) for q in step], (x, y), version
        )
        scheduler.step()
        state, version = advance(SPEC, state), version + 1
    return arrays(model)


def _reference_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[list[int]],
    data: tuple[torch.Tensor, ...],
    version: int,
) -> None:
    optimizer.zero_grad()
    total = sum(len(batch) for batch in batches)
    before = {name: b.clone() for name, b in model.named_buffers()}
    mean = {name: torch.zeros_like(b) for name, b in model.named_buffers()}
    for index, batch in enumerate(batches):
        torch.manual_seed(quantum_seed(SEED, version, index))
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
        loss = nn.functional.cross_entropy(model(data[0][batch]), data[1][batch])
        (loss * (len(batch) / total)).backward()  # type: ignore[no-untyped-call]
        for name, buffer in model.named_buffers():
            share = len(batch) / total if buffer.is_floating_point() else 1
            mean[name] = mean[name] + buffer * share if share != 1 else buffer.clone()
    for name, buffer in model.named_buffers():
        buffer.copy_(mean[name])
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    """Return parameters and buffers, as pipes can send them."""
    return {name: t.numpy().copy() for name, t in model.state_dict().items()}


def difference(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of two models."""
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@dataclass(frozen=True, slots=True)
class Member:
    """Everything that a member process needs."""

    credentials: Path
    port: int
    peers: str
    size: int
    kill_at: str = ""
    is_joiner: bool = False

    def config(self) -> RunConfig:
        """Return the settings of its control thread."""
        return RunConfig(
            run="test",
            credentials=Credentials.from_file(self.credentials),
            peers=self.peers,
            is_joiner=self.is_joiner,
            port=self.port,
            timing=PATIENT,
            source=KnownPeers(self.size, is_joiner=self.is_joiner),
        )


def members(folder: Path, kills: Sequence[str]) -> list[Member]:
    """Return as many members as there are kill points; an empty one never kills."""
    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    ports = free_ports(len(kills))
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return [
        Member(issue_credentials(folder, cluster)[0], port, peers, len(kills), kill)
        for port, kill in zip(ports, kills, strict=True)
    ]


def be_member(me: Member) -> Trained:
    """Train as one member, in a process of its own."""
    kill_points.arm(kill_point({"RINGLEADER_KILL_AT": me.kill_at}))
    return train(me.config())
