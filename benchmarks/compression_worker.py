"""One rank of benchmarks/compression.py: holds both groups and performs its tasks.

Gloo is torch's default group and ours is created next to it, so that all schemes take
turns in the same processes, on the same tensors. The parent sends tasks over a control
socket, reads the counters of the network interfaces in between, and compares the
replies of the ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit

from ringleader import compression
from ringleader.backend.process_group import RingleaderGroup
from ringleader.cli.json_socket import Message, Report, serve
from ringleader.errors import ConfigError
from ringleader.groups.group import Group
from tests.kit.compression_bugs import BUGS
from tests.kit.training_tasks import TASKS, Task, characters, learn

GLOO, PLAIN, ALONE = "gloo", "plain", "alone"
"""Names besides the schemes: Gloo, ours uncompressed, and no communication."""
CODECS = ("fp16", "bf16", "int8", "int8-stochastic", "onebit", "auto")
"""Schemes inside all_reduce; all other names are compressors around it."""

TIMEOUT_S = 120.0
"""Limit for one call; 64 MiB at 100 Mbit/s take nine seconds."""

Call = Callable[[], object]


class CompressionRank:
    """One rank: its groups, its gradients, and its models by scheme."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._source = torch.empty(0)
        self._flat = torch.empty(0)
        self._gradients: dict[str, Tensor] = {}
        """Views of ``_flat``, as the gradients of a model are views of a bucket."""
        self._compressors: dict[str, compression.Compressor] = {}
        self._steps: dict[str, Call] = {}
        self._models: dict[str, nn.Module] = {}

    def open(self, task: Message) -> Message:
        """Form both groups; the reply names the kind of links."""
        os.environ["GLOO_SOCKET_IFNAME"] = str(task["interface"])
        os.environ["RINGLEADER_TRANSPORT"] = str(task["transport"])
        os.environ["RINGLEADER_PLAINTEXT"] = "1"
        if task["address"]:
            os.environ["RINGLEADER_ADDRESS"] = str(task["address"])
        dist.init_process_group(
            GLOO,
            init_method=str(task["store"]),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        self._ours = dist.new_group(
            backend="ringleader", timeout=timedelta(seconds=TIMEOUT_S)
        )
        backend = self._ours._get_backend(torch.device("cpu"))
        assert isinstance(backend, RingleaderGroup)
        self._group: Group = backend.group
        return {"links": sorted(set(self._group.links().values()))}

    # -- all_reduce ----------------------------------------------------------------

    def make_noise(self, num_bytes: int) -> Message:
        """Use one square matrix of normal numbers, different on every rank."""
        generator = torch.Generator().manual_seed(self.rank)
        side = round((num_bytes / 4) ** 0.5)
        self._hold({"noise": torch.randn(side, side, generator=generator)})
        return {"bytes": self._source.nbytes}

    def make_gradients(self, width: int, layers: int) -> Message:
        """Use the gradients of a transformer on text after some training steps."""
        task = characters(width=width, layers=layers).shortened(5)
        model = task.model(0)
        list(
            learn(
                task,
                model,
                0,
                rank=self.rank,
                size=self.size,
                average=lambda gradients: self._plain_mean(gradients.values()),
            )
        )
        model.zero_grad()
        rows = next(task.batches(7))[self.rank :: self.size]
        task.loss(model, rows).backward()
        self._hold(
            {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        )
        return {"bytes": self._source.nbytes}

    def time_calls(self, scheme: str, count: int) -> Message:
        """Return the seconds of every call, each on a new copy of the gradients."""
        call = self._call(scheme)
        seconds = []
        for _ in range(count):
            self._flat.copy_(self._source)
            self._group.barrier()
            started_s = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started_s)
        return {"seconds": seconds}

    def check(self, scheme: str) -> Message:
        """Return the error of the last result and its checksum."""
        exact = self._source.double()
        self._group.all_reduce(exact)
        if scheme not in (GLOO, PLAIN, *CODECS):  # all others return the mean
            exact /= self.size
        error = float((self._flat - exact).norm() / exact.norm())
        return {"off": error, "checksum": checksum([self._flat])}

    def _hold(self, gradients: dict[str, Tensor]) -> None:
        self._source = torch.cat([tensor.flatten() for tensor in gradients.values()])
        self._flat = torch.empty_like(self._source)
        parts = self._flat.split([tensor.numel() for tensor in gradients.values()])
        self._gradients = {
            name: part.view_as(gradients[name])
            for name, part in zip(gradients, parts, strict=True)
        }
        self._compressors.clear()

    def _call(self, scheme: str) -> Call:
        if scheme == GLOO:
            return lambda: dist.all_reduce(self._flat)
        if scheme in (PLAIN, *CODECS):
            codec = None if scheme == PLAIN else scheme
            return lambda: self._group.all_reduce(self._flat, codec=codec)
        if scheme not in self._compressors:
            self._compressors[scheme] = compression.compressor(scheme)
        compressor = self._compressors[scheme]
        return lambda: compressor.average(self._group, self._gradients)

    def _plain_mean(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._group.all_reduce(tensor, "mean")

    # -- training ------------------------------------------------------------------

    def make_model(self, scheme: str, width: int, layers: int) -> Message:
        """Build a model whose steps are communication, parallel by the given scheme."""
        torch.manual_seed(0)
        stack: list[nn.Module] = []
        for _ in range(layers):
            stack += [nn.Linear(width, width, bias=False), nn.ReLU()]
        model = self._parallel(nn.Sequential(*stack[:-1]), scheme)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
        generator = torch.Generator().manual_seed(1 + self.rank)
        batch = torch.randn(1, width, generator=generator) * 10

        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        self._models[scheme], self._steps[scheme] = model, step
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def time_steps(self, scheme: str, count: int) -> Message:
        """Return the seconds of ``count`` steps and a checksum of the parameters."""
        step = self._steps[scheme]
        self._group.barrier()
        started_s = time.perf_counter()
        for _ in range(count):
            step()
        seconds = time.perf_counter() - started_s
        parameters = [] if scheme == ALONE else self._models[scheme].parameters()
        return {"seconds": seconds, "checksum": checksum(parameters)}

    def learn(self, task: Task, scheme: str, seed: int) -> Message:
        """Run a whole task; return when every step ended and the loss of this rank."""
        model, average = task.model(seed), None
        if scheme in BUGS:
            average = BUGS[scheme](self._group)
        else:
            model = self._parallel(model, scheme)
        seconds, losses = [], []
        self._group.barrier()
        started_s = time.perf_counter()
        place = {"rank": self.rank, "size": self.size}
        for loss in learn(task, model, seed, average=average, **place):
            seconds.append(round(time.perf_counter() - started_s, 4))
            losses.append(loss)
        return {
            "seconds": seconds,
            "losses": losses,
            "checksum": checksum(model.parameters()),
        }

    def _parallel(self, model: nn.Module, scheme: str) -> nn.Module:
        if scheme == ALONE:
            return model
        group = dist.group.WORLD if scheme == GLOO else self._ours
        made = DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True
        )
        if scheme not in (GLOO, PLAIN):
            made.register_comm_hook(self._ours, compression.hook(scheme))
        return made

    def handle(self, task: Message, _report: Report) -> Message:
        """Perform one task of the parent and return the reply."""
        match task:
            case {"do": "open"}:
                return self.open(task)
            case {"do": "noise", "bytes": int(num_bytes)}:
                return self.make_noise(num_bytes)
            case {"do": "gradients", "width": int(width), "layers": int(layers)}:
                return self.make_gradients(width, layers)
            case {"do": "calls", "scheme": str(scheme), "count": int(count)}:
                return self.time_calls(scheme, count)
            case {"do": "check", "scheme": str(scheme)}:
                return self.check(scheme)
            case _:
                return self.train(task)

    def train(self, task: Message) -> Message:
        """Perform the tasks that need a model."""
        match task:
            case {
                "do": "model",
                "scheme": str(scheme),
                "width": int(width),
                "layers": int(layers),
            }:
                return self.make_model(scheme, width, layers)
            case {"do": "steps", "scheme": str(scheme), "count": int(count)}:
                return self.time_steps(scheme, count)
            case {"do": "learn", "scheme": str(scheme), "seed": int(seed)}:
                return self.learn(_real_task(task), scheme, seed)
            case _:
                raise ConfigError(f"compression worker: no such task {task}")


def _real_task(task: Message) -> Task:
    """Return the named task, with the given size if there is one."""
    match task:
        case {"width": int(width), "layers": int(layers), "steps": int(steps)}:
            return characters(width=width, layers=layers).shortened(steps)
        case _:
            return TASKS[str(task["task"])]()


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return a checksum that is equal on two ranks only if all bits are."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.detach().numpy(), total)
    return total


def main() -> None:
    """Handle tasks until the parent closes the socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the ranks already use all cores
    rank = CompressionRank(options.rank, options.size)
    serve(options.control, {"rank": options.rank}, rank.handle)


if __name__ == "__main__":
    main()
