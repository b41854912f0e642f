"""One rank of ``start.py``: forms the group, wraps DDP, makes one step, says when."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def host_cpu_s() -> float:
    """CPU seconds that the processes of this host, a network namespace, have used."""
    here = os.readlink("/proc/self/ns/net")
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.readlink(process / "ns/net") == here:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # with children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """``start_trainer.py BACKEND``."""
    began_s = time.monotonic()
    dist.init_process_group(sys.argv[1])
    formed_s = time.monotonic()
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    times = {"began": began_s, "formed": formed_s, "step": time.monotonic()}
    line = {"rank": dist.get_rank(), "cpu": host_cpu_s(), **times}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
