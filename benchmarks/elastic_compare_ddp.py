"""The program that benchmarks/elastic_compare.py starts by torchrun: plain DDP.

It saves a checkpoint every 100 steps and continues there when torchrun has restarted
it, as torch's tutorial on fault tolerance does. Every step is a line in a file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ringleader.data.permutation import Permutation

sys.path.append(str(Path(__file__).parents[1]))  # for tests.kit
from tests.kit import endless_task as task

EVERY = 100


def main() -> None:
    """Train until killed."""
    folder, pause_s = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer = task.make_model()
    saved, first = folder / "checkpoint.pt", 0
    if saved.exists():
        found = torch.load(saved)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        first = int(found["version"])
    parallel = DistributedDataParallel(model)
    data = task.Points()
    inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
    steps = task.SAMPLES // task.GLOBAL_BATCH
    with (folder / f"steps-{rank}-{os.getpid()}").open("w") as log:
        for version in range(first, 1_000_000):
            order = Permutation(task.SAMPLES, task.SEED, version // steps)
            begin = (version % steps) * task.GLOBAL_BATCH
            rows = order(np.arange(begin, begin + task.GLOBAL_BATCH, dtype=np.int64))
            mine = torch.from_numpy(rows[rank::size])
            time.sleep(pause_s / size)
            loss = cross_entropy(parallel(inputs[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{time.monotonic()} {version + 1}\n")
            log.flush()
            if rank == 0 and (version + 1) % EVERY == 0:
                save(model, optimizer, version + 1, saved)


def save(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, version: int, to: Path
) -> None:
    """Write a checkpoint, and make it the one that counts."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "version": version,
    }
    torch.save(state, to.with_suffix(".tmp"))
    to.with_suffix(".tmp").replace(to)


if __name__ == "__main__":
    main()
