"""Measures a pipeline over machines of speed 2:1: the planned and the equal split.

Two processes have one core each; the second may use half of its core (CPU quota of a
control group, needs root). Both splits train in the same run, in turn, and end with the
weights of one process in float64.

    .venv/bin/python benchmarks/pipeline_split.py --json benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from machine import describe
from torch import Tensor, nn

import ringleader
from ringleader.parallel.trainer import Trainer

RANKS = 2
BLOCKS, WIDTH = 12, 384
ROWS, MICROBATCHES = 1024, 16
ROUNDS = 5
LIMIT_S = 600.0
PERIOD_US = 10_000
BAR = 1.3


def main() -> None:
    """Measure, print the result and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--quota", type=float, default=0.5, help="of rank 1's core")
    options = parser.parse_args()
    described, load = describe(), os.getloadavg()[0]
    context = mp.get_context("spawn")
    results: Queue[dict[str, Any]] = context.Queue()
    with tempfile.TemporaryDirectory() as home, machines(options.quota) as groups:
        processes = [
            context.Process(target=work, args=(rank, home, groups[rank], results))
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        found = results.get(timeout=LIMIT_S)
        for process in processes:
            process.join(LIMIT_S)
    ratio = found["equal_s"] / found["planned_s"]
    found = {
        **described,
        "load_before": load,
        "quota_of_rank_1": options.quota,
        **found,
        "faster": ratio,
        "bar": f">= {BAR}",
        "verdict": "met" if ratio >= BAR else "MISSED",
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


@contextmanager
def machines(quota: float) -> Iterator[list[Path]]:
    """Make a control group per rank; the second may use ``quota`` of one core.

    Both come before all other programs, so that their speeds differ by the quota only.
    """
    first = Path("/sys/fs/cgroup/cpu")
    top = first if first.is_dir() else Path("/sys/fs/cgroup")
    groups = [top / f"ringleader-split-{rank}" for rank in range(RANKS)]
    allowed_us = int(quota * PERIOD_US)
    try:
        for group in groups:
            group.mkdir()
            if first.is_dir():
                (group / "cpu.shares").write_text(str(1 << 18))
            else:
                (group / "cpu.weight").write_text("10000")
        if first.is_dir():
            (groups[1] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (groups[1] / "cpu.cfs_quota_us").write_text(str(allowed_us))
        else:
            (groups[1] / "cpu.max").write_text(f"{allowed_us} {PERIOD_US}")
        yield groups
    finally:
        for group in groups:
            group.rmdir()


def work(rank: int, home: str, group: Path, results: Queue[dict[str, Any]]) -> None:
    """Train with both splits; rank 0 reports."""
    os.sched_setaffinity(0, {rank})
    (group / "cgroup.procs").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    dist.init_process_group(
        "ringleader",
        init_method=f"file://{home}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=LIMIT_S),
    )
    model = net()
    planned = trainer_of(model, None)
    equal = trainer_of(model, [BLOCKS // RANKS] * RANKS)
    times: dict[str, list[float]] = {"planned": [], "equal": []}
    for step in range(ROUNDS + 1):
        for name, trainer in (("planned", planned), ("equal", equal)):
            begin = time.monotonic()
            trainer.step(*batch(step))
            if step:  # the first one sets up connections and buffers
                times[name].append(time.monotonic() - begin)
    error = max(off(trainer, model) for trainer in (planned, equal))
    mine = len({name.split(".")[0] for name, _ in planned.model.named_parameters()})
    if rank == 0:
        results.put(
            {
                "layers": [mine, BLOCKS - mine],
                "planned_s": statistics.median(times["planned"]),
                "equal_s": statistics.median(times["equal"]),
                "times_s": times,
                "largest_error_beside_float64": error,
            }
        )
    dist.destroy_process_group()
    # So that the control group can be removed.
    (group.parent / "cgroup.procs").write_text(str(os.getpid()))


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS))
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, x.flip(1)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def trainer_of(model: nn.Module, split: list[int] | None) -> Trainer:
    return ringleader.parallelize(
        copy.deepcopy(model),
        "pipeline",
        optimizer=sgd,
        loss=F.mse_loss,
        microbatches=MICROBATCHES,
        layers=[str(block) for block in range(BLOCKS)],
        split=split,
        example=batch(0),
    )


def off(trainer: Trainer, model: nn.Module) -> float:
    """Return the largest difference from the same steps in one process, in float64."""
    alone = copy.deepcopy(model).double()
    optimizer = sgd(alone.parameters())
    for step in range(ROUNDS + 1):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = F.mse_loss(alone(x.double()), y.double())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    whole = dict(alone.named_parameters())
    return max(
        float((value.detach().double() - whole[name].detach()).abs().max())
        for name, value in trainer.model.named_parameters()
    )


if __name__ == "__main__":
    main()
