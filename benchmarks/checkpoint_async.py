"""What saving in the background costs: step time and memory.

Two processes, each with a folder of its own as two machines have, train a model with
DDP. Blocks of steps without saving, with ``async_save`` every ``--every`` steps, and
with ``save`` take turns, so that a slow moment of the machine meets all three. Besides
the time, the CPU time of the process is measured, which other programs hardly change.

    python benchmarks/checkpoint_async.py --out benchmarks/results/...json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo  # once, not in every process: optimizers import it late
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringleader import checkpoint

RANKS = 2
WIDTH = 1151  # divides by nothing
LAYERS = 4
BATCH = 128


def new_model() -> nn.Module:
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers)


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Sample the resident memory; the function returns the largest."""
    process, samples, ended = psutil.Process(), [0], threading.Event()

    def sample() -> None:
        while not ended.wait(0.005):
            samples.append(process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: max(samples)
    finally:
        ended.set()
        thread.join()


class Run:
    """One rank: blocks of steps of each kind."""

    def __init__(self, rank: int, root: Path, every: int) -> None:
        self.folder = root / f"machine{rank}"
        self.every = every
        self.model = DistributedDataParallel(new_model())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.inputs = torch.randn(BATCH, WIDTH)
        self.step = 0
        self.calls: dict[str, list[float]] = {"async": [], "sync": []}

    def block(self, kind: str) -> dict[str, Any]:
        """Run one interval between saves; return what it took."""
        begun, cpu = time.perf_counter(), time.process_time()
        saving = None
        for number in range(self.every):
            self.train()
            if number == 0 and kind != "none":
                saving = self.save(kind)
        if saving is not None:
            saving.result()  # inside of the block: its whole cost is here
        return {
            "kind": kind,
            "wall": time.perf_counter() - begun,
            "cpu": time.process_time() - cpu,
        }

    def memory(self) -> int:
        """Return the memory that two saves in the background take, without training."""
        before = psutil.Process().memory_info().rss
        with peak_memory() as peak:
            for _ in range(2):
                self.step += 1
                self.save("async").result()
            return int(peak()) - int(before)

    def train(self) -> None:
        self.step += 1
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def save(self, kind: str) -> Any:  # noqa: ANN401
        begun = time.perf_counter()
        arguments = (self.folder, self.step, self.model, self.optimizer)
        saving = None
        if kind == "async":
            saving = checkpoint.async_save(*arguments, keep=2)
        else:
            checkpoint.save(*arguments, keep=2)
        self.calls[kind].append(time.perf_counter() - begun)
        return saving


def rank_main(rank: int, root: Path, every: int, rounds: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "ringleader",
        init_method=f"file://{root}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    run = Run(rank, root, every)
    run.block("none")
    memory = run.memory()
    kinds = ("none", "async", "sync")
    blocks = [run.block(kind) for _ in range(rounds) for kind in kinds]
    state = [*run.model.parameters()]
    state += [t for s in run.optimizer.state.values() for t in s.values()]
    size = sum(t.nbytes for t in state)
    pipe.send({"memory": memory, "blocks": blocks, "calls": run.calls, "bytes": size})
    dist.destroy_process_group()


def summary(ranks: list[dict[str, Any]], every: int) -> dict[str, Any]:
    """Return the figures of the slower rank, as every step waits for it."""

    def step_ms(kind: str, clock: str) -> float:
        medians = [
            statistics.median(b[clock] for b in r["blocks"] if b["kind"] == kind)
            for r in ranks
        ]
        return 1000 * float(max(medians)) / every

    result: dict[str, Any] = {
        "state_mb": round(ranks[0]["bytes"] / 1e6, 1),
        "save_every_steps": every,
    }
    for clock in ("wall", "cpu"):
        plain, background, blocking = (
            step_ms(kind, clock) for kind in ("none", "async", "sync")
        )
        result[clock] = {
            "step_ms": round(plain, 1),
            "async_save_cost": round(background / plain - 1, 3),
            "save_cost": round(blocking / plain - 1, 3),
        }
    calls = [statistics.median(r["calls"]["async"]) for r in ranks]
    memory = max(r["memory"] / r["bytes"] for r in ranks)
    return {
        **result,
        "async_save_call_ms": round(1000 * max(calls), 1),
        "memory_in_snapshots": round(memory, 2),
        "load": round(psutil.getloadavg()[0], 1),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    context = mp.get_context("fork")
    root = Path(tempfile.mkdtemp(prefix="async"))
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=rank_main,
            args=(rank, root, arguments.every, arguments.rounds, theirs),
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    result = summary([pipe.recv() for pipe in pipes], arguments.every)
    for process in processes:
        process.join(60)
    shutil.rmtree(root)
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
