"""A script as users write it: DistributedDataParallel, and not one word of ours.

``surviving_script.py FOLDER STEPS`` trains; every rank writes after each step who took
part and what came out, so that the test can compute the same by itself.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GO_ON = "go on"
"""A file in the folder: the ranks do not end before it is there."""
WAIT_S = 300.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 31).double()
        self.norm = nn.BatchNorm1d(31, affine=False).double()
        self.last = nn.Linear(31, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.tanh(self.norm(self.first(x)))
        result: torch.Tensor = self.last(hidden)
        return result


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    return x, torch.randn(5, 3, generator=generator, dtype=torch.float64)


def wait_for(file: Path) -> None:
    until_s = time.monotonic() + WAIT_S
    while not file.exists():
        assert time.monotonic() < until_s, f"{file} did not come"
        time.sleep(0.01)


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("ringleader")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    log = (folder / f"{rank}.jsonl").open("a", buffering=1)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    for step in range(steps):
        if step == 2 * steps // 3:
            wait_for(folder / GO_ON)
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        present = torch.zeros(size)
        present[rank] = 1
        dist.all_reduce(present)
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        line = {"step": step, "present": present.tolist(), "at_s": time.monotonic()}
        log.write(json.dumps(line) + "\n")
    dist.barrier()
    torch.save(model.module.state_dict(), folder / f"{rank}.pt")
    gathered = torch.empty(size)
    dist.all_gather_into_tensor(gathered, torch.full((1,), float(rank)))
    log.write(json.dumps({"gathered": gathered.tolist()}) + "\n")
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} has finished, process {os.getpid()}\n")


if __name__ == "__main__":
    main()
