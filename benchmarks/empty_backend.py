"""What torch.distributed itself takes of a call: a backend that does nothing.

    python benchmarks/empty_backend.py

No backend can be faster. One process; the fastest of many batches of calls in a loop,
in which everything stays in the caches: a real call of the same wrapper takes longer.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup

BATCHES, CALLS = 100, 200


class EmptyGroup(ProcessGroup):
    """A process group whose operations have ended when they begin."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]

    def nothing(self, *_: object, **__: object) -> None:
        """Return at once."""

    getBackendName = name = lambda _: "empty"  # noqa: N815 - torch's name
    setGroupName = setGroupDesc = nothing  # noqa: N815
    allreduce = broadcast = barrier = nothing
    all_gather_single = _allgather_base = nothing
    reduce_scatter_single = _reduce_scatter_base = nothing
    shutdown = abort = nothing
    all_to_all_single = alltoall_base = nothing


def calls() -> dict[str, Callable[[], object]]:
    """Return the calls of this torch, on a kilobyte."""
    whole, part = torch.zeros(256), torch.zeros(128)
    found: dict[str, Callable[[], object]] = {
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_to_all_single": lambda: dist.all_to_all_single(whole, whole),
        "all_reduce": lambda: dist.all_reduce(whole),
        "barrier": dist.barrier,
    }
    new: Any = dist
    if hasattr(dist, "all_gather_single"):  # the new names of torch 2.13
        found["all_gather_single"] = lambda: new.all_gather_single(whole, part)
        found["reduce_scatter_single"] = lambda: new.reduce_scatter_single(part, whole)
    return found


def measure() -> dict[str, float]:
    """Return the microseconds of each call."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # renamed in torch 2.13
    dist.Backend.register_backend("empty", lambda *_: EmptyGroup(), devices=["cpu"])
    found = {}
    with tempfile.TemporaryDirectory(prefix="empty-backend-") as folder:
        store = (Path(folder) / "store").as_uri()
        dist.init_process_group("empty", init_method=store, rank=0, world_size=1)
        for name, call in calls().items():
            times_s = [time_batch(call) for _ in range(BATCHES)]
            found[name] = round(min(times_s) * 1e6, 2)
        dist.destroy_process_group()
    return found


def time_batch(call: Callable[[], object]) -> float:
    """Return the seconds per call."""
    started_s = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started_s) / CALLS


if __name__ == "__main__":
    for name, took_us in measure().items():
        print(f"{name:24} {took_us:6.2f} us")
