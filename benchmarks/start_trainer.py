"""One rank of ``start.py``: forms the group, wraps DDP, makes one step, says when."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


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
    line = {"rank": dist.get_rank(), "size": dist.get_world_size(), **times}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
