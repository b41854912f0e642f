"""The processes of benchmarks/elastic_overhead.py: one model, trained in three ways."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before the fork
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ringleader.identity.credentials import Credentials
from ringleader.settings.run import RunSettings
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import KnownPeers
from ringleader.training.data.data_state import DataSpec
from ringleader.training.elastic import start_run
from ringleader.training.local_step import LocalStep
from ringleader.training.options import Options

MICRO_BATCH = 64


@dataclass(frozen=True, slots=True)
class Place:
    """What one process needs to know."""

    kind: str
    rank: int
    size: int
    credentials: Path
    ports: list[int]
    store_port: int
    width: int
    depth: int
    transport: str


def model(width: int, depth: int) -> nn.Module:
    """Return a perceptron."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of both sides."""
    return torch.optim.AdamW(net.parameters(), lr=1e-4)


class Plain:
    """DistributedDataParallel over the backend, with its usual settings."""

    def __init__(self, place: Place, data: TensorDataset) -> None:
        if place.kind == "survive":
            run = RunSettings(
                job="overhead",
                is_joiner=False,
                credentials=str(place.credentials),
                peers=",".join(f"127.0.0.1:{port}" for port in place.ports),
                port=place.ports[place.rank],
                size=place.size,
            )
            os.environ.update(run.environment())
        dist.init_process_group(
            "ringleader",
            init_method=f"tcp://127.0.0.1:{place.store_port}",
            rank=place.rank,
            world_size=place.size,
        )
        net = model(place.width, place.depth)
        self._net = DistributedDataParallel(net)
        self._optimizer = optimizer_of(net)
        sampler: Any = DistributedSampler(data, place.size, place.rank)
        self._loader = DataLoader(data, MICRO_BATCH, sampler=sampler)
        self._batches = iter(self._loader)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            x, y = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            x, y = next(self._batches)
        return x, y

    def step(self) -> None:
        """Train one step."""
        x, y = self._batch()
        self._optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(self._net(x), y).backward()
        self._optimizer.step()


class Elastic:
    """The same by ringleader.elastic, one quantum per member and step."""

    def __init__(self, place: Place, data: TensorDataset) -> None:
        # Shares stay equal, as those of DDP: with unequal ones a member takes part in
        # steps without entering the loop, and blocks of steps would not end together.
        LocalStep.quantum_s = lambda *_: 1.0  # type: ignore[method-assign]
        net = self._net = model(place.width, place.depth)
        spec = DataSpec(
            num_samples=len(data),
            global_batch=place.size * MICRO_BATCH,
            micro_batch=MICRO_BATCH,
            epochs=None,
        )
        config = RunConfig(
            run="overhead",
            credentials=Credentials.from_file(place.credentials),
            peers=",".join(f"127.0.0.1:{port}" for port in place.ports),
            port=place.ports[place.rank],
            source=KnownPeers(place.size, is_joiner=False),
        )
        self.run = start_run(net, optimizer_of(net), data, spec, Options(), config)

    def step(self) -> None:
        """Train one step."""
        for x, y in self.run:
            self.run.backward(nn.functional.cross_entropy(self._net(x), y))
            if self.run.step():
                return


def member(place: Place, pipe: Connection) -> None:
    """Train as many steps as ordered, and answer with the time of each."""
    torch.set_num_threads(1)
    os.environ["RINGLEADER_TRANSPORT"] = place.transport
    made = torch.Generator().manual_seed(0)
    count = 16 * place.size * MICRO_BATCH
    data = TensorDataset(
        torch.randn(count, place.width, generator=made),
        torch.randint(0, 10, (count,), generator=made),
    )
    before = start_of_peak()
    side = (Elastic if place.kind == "elastic" else Plain)(place, data)
    while steps := pipe.recv():
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            side.step()
            times.append(time.perf_counter() - begin)
        pipe.send((times, peak() - before))
    os._exit(0)


def start_of_peak() -> int:
    """Forget the highest memory so far; return what is resident, in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Return the highest resident memory of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell the peak of the memory")
