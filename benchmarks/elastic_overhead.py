"""Compares a step of ringleader.elastic without failures with one of plain DDP.

    .venv/bin/python benchmarks/elastic_overhead.py [--members 2] [--blocks 30]

Both train the same model over Ringleader in the same processes, in alternating blocks
of steps, so that a change in the load of the machine meets both. Bars: step time at
most 1.03x that of DDP, memory at most one more gradient buffer.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch._dynamo  # before the fork
import torch.distributed as dist
from machine import describe
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.secret_value import Secret
from ringleader.testing.run_member import issue_credentials
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_environment import KnownPeers
from ringleader.training.data.data_state import DataSpec
from ringleader.training.elastic import start_run
from ringleader.training.options import Options
from ringleader.transport.free_ports import free_ports

STEPS = 10
"""Steps of a block."""
WIDTH, DEPTH, MICRO_BATCH = 512, 6, 64
BAR = 1.03


@dataclass(frozen=True, slots=True)
class Place:
    """What one process needs to know."""

    rank: int
    size: int
    credentials: Path
    ports: list[int]
    store_port: int
    blocks: int
    transport: str


def model() -> nn.Module:
    """Return a perceptron with about 3 million parameters."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(DEPTH * 2):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of both sides."""
    return torch.optim.AdamW(net.parameters(), lr=1e-4)


class Plain:
    """DistributedDataParallel over the backend, with its usual settings."""

    def __init__(self, place: Place, data: TensorDataset) -> None:
        dist.init_process_group(
            "ringleader",
            init_method=f"tcp://127.0.0.1:{place.store_port}",
            rank=place.rank,
            world_size=place.size,
        )
        net = model()
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
        net = self._net = model()
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
    """Time blocks of both kinds in turn; the first process sends the times."""
    torch.set_num_threads(1)
    os.environ["RINGLEADER_TRANSPORT"] = place.transport
    made = torch.Generator().manual_seed(0)
    count = 64 * place.size * MICRO_BATCH
    data = TensorDataset(
        torch.randn(count, WIDTH, generator=made),
        torch.randint(0, 10, (count,), generator=made),
    )
    sides: list[Any] = [Plain(place, data), Elastic(place, data)]
    times: list[list[float]] = [[], []]
    for block in range(place.blocks + 1):
        for side, found in zip(sides, times, strict=True):
            dist.barrier()
            for _ in range(STEPS):
                begin = time.perf_counter()
                side.step()
                if block:  # the first one warms up
                    found.append(time.perf_counter() - begin)
    pipe.send(times)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Run it, print the comparison and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    ports = free_ports(chosen.members + 1)
    forks, pipes = get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(chosen.members):
            file, _ = issue_credentials(Path(folder), cluster)
            place = Place(
                rank,
                chosen.members,
                file,
                ports[1:],
                ports[0],
                chosen.blocks,
                chosen.transport,
            )
            ours, theirs = forks.Pipe()
            forks.Process(target=member, args=(place, theirs), daemon=True).start()
            pipes.append(ours)
        times, *_ = [pipe.recv() for pipe in pipes]
    plain_s, elastic_s = (median(each) for each in times)
    row = {
        "members": chosen.members,
        "parameters": sum(p.numel() for p in model().parameters()),
        "ddp_ms": round(plain_s * 1e3, 3),
        "elastic_ms": round(elastic_s * 1e3, 3),
        "ratio": round(elastic_s / plain_s, 4),
        "bar": BAR,
        "verdict": "met" if elastic_s <= BAR * plain_s else "MISSED",
        "gradient_buffers": "DDP: gradients and buckets; elastic: A, B0 and B1",
    }
    print(json.dumps(row, indent=1))
    if chosen.out:
        chosen.out.write_text(
            json.dumps({"machine": describe(), "rows": [row]}, indent=1)
        )


if __name__ == "__main__":
    main()
