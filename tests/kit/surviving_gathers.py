"""Gathers of three ranks, one of which dies in the middle of gathering objects.

``surviving_gathers.py FOLDER gather|broadcast``: rank 1 ends after the lengths of its
objects were gathered, or broadcast, and before the objects are; the others write what
they get then and later.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import fully_shard

from ringleader.backend.living_collectives import Broadcast
from ringleader.groups.group import Group
from ringleader.groups.work import Work

DYING = 1


def the_object(rank: int) -> dict[str, Any]:
    """Objects of unlike lengths: the one that dies has the shortest."""
    return {"rank": rank, "text": "x" * (10 if rank == DYING else 1000 * (rank + 1))}


def die_between_lengths_and_objects() -> None:
    original, calls = c10d.all_gather, []

    def all_gather(outs: list[Tensor], tensor: Tensor, group: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        original(outs, tensor, group)

    c10d.all_gather = all_gather  # type: ignore[assignment]


def die_at_the_second_broadcast() -> None:
    original, calls = Broadcast.start, []

    def start(
        self: Broadcast, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, group, live, outs)

    Broadcast.start = start  # type: ignore[method-assign]


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as exc:
        return f"{type(exc).__name__}: {exc}"
    return "nothing"


def gathers(rank: int) -> dict[str, Any]:
    """Everything that gathers, with the part of this rank."""
    mine = torch.full((2,), float(rank))
    parts, whole = [torch.empty(2) for _ in range(3)], torch.empty(6)
    found: dict[str, Any] = {}
    dist.all_gather(parts, mine)
    found["all_gather"] = [part.tolist() for part in parts]
    dist.all_gather_into_tensor(whole, mine)
    found["into_tensor"] = whole.tolist()
    uneven = [torch.empty(n) for n in (2, 3, 3)]
    dist.all_gather(uneven, torch.full((2 if rank == 0 else 3,), float(rank)))
    found["uneven"] = [part.tolist() for part in uneven]
    at_root = [torch.empty(2) for _ in range(3)] if rank == 2 else None
    dist.gather(mine, at_root, dst=2)
    found["gather"] = [part.tolist() for part in at_root or []]
    dist.gather(mine, None, dst=DYING)
    objects: list[Any] = [None] * 3
    dist.gather_object(the_object(rank), objects if rank == 0 else None, dst=0)
    found["gather_object"] = objects
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("ringleader")
    rank = dist.get_rank()
    if sys.argv[2] == "broadcast":
        if rank == DYING:
            die_at_the_second_broadcast()
        later = {}
        for turn in range(2):
            given = [the_object(rank), turn]
            dist.broadcast_object_list(given, src=DYING)
            later[turn] = given
        nothing: list[Any] = [None, None]
        error = refused(lambda: dist.broadcast_object_list(nothing, src=DYING))
        found = {"objects": later, "error": error}
        (folder / f"{rank}.json").write_text(json.dumps(found))
        dist.destroy_process_group()
        return
    sharded = nn.Linear(6, 3)
    fully_shard(sharded)
    if rank == DYING:
        die_between_lengths_and_objects()
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, the_object(rank))
    found = {"all_gather_object": objects, **gathers(rank)}
    given = [the_object(rank)] if rank == 0 else [None]
    dist.broadcast_object_list(given, src=0)
    found["broadcast_object_list"] = given

    def scatter() -> Tensor:
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, torch.ones(6))
        return out

    found["refused"] = {
        "fsdp": refused(lambda: sharded(torch.ones(6))),
        "reduce_scatter": refused(scatter),
        "after it": refused(lambda: gathers(rank)),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
