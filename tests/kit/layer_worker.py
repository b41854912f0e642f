"""One rank of a torch group with Gloo inside its host and ringleader across hosts.

Its argument is the JSON of {"rank", "size", "store", "address"}; it prints the hosts of
the group when all values were right.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from ringleader.backend.options import BackendOptions
from ringleader.groups.group import handle_of

COUNT = 300_001


def values(rank: int) -> torch.Tensor:
    """Whole numbers, different by place and rank."""
    return ((torch.arange(COUNT) * 7 + rank * 13) % 31 - 15).double()


def main() -> None:
    """Form the group and check sums, means and broadcasts."""
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    rank, size = job["rank"], job["size"]
    os.environ["RINGLEADER_ADDRESS"] = job["address"]
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    os.environ["RINGLEADER_PLAINTEXT"] = "1"
    options: Any = BackendOptions(intra_host="gloo")
    dist.init_process_group(
        "ringleader",
        init_method=job["store"],
        rank=rank,
        world_size=size,
        pg_options=options,
    )
    total = torch.stack([values(r) for r in range(size)]).sum(0)
    for op, want in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / size)):
        tensor = values(rank)
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, want), str(op)
    for root in range(size):
        tensor = values(rank)
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, values(root)), f"root {root}"
    world: Any = dist.group.WORLD
    assert world.layer.serves(values(rank))
    hosts = handle_of(world.group).network.host_lists()
    dist.barrier()
    print(json.dumps(hosts), flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
