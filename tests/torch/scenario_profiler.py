"""torch.profiler sees our operations as it sees those of Gloo."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from tests.kit.reference import backward

LENGTH = 24
BUCKET = 40_000
"""Elements of a gradient that is a bucket of its own, and large enough to be shared."""

Events = Counter[tuple[str, str]]
"""(name, sizes of the tensors that it got)."""


def profiled(work: Callable[[], None]) -> Events:
    """The events of communication while ``work`` runs."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return Counter(
        (event["name"], str([size for size in sizes(event) if size]))
        for event in events
        if event.get("ph") == "X"
        and event["name"].partition(":")[0] in ("c10d", "ringleader")
    )


def sizes(event: dict[str, Any]) -> list[Any]:
    return event["args"].get("Input Dims", [])  # type: ignore[no-any-return]


def operations(rank: int, size: int, group: Any) -> None:  # noqa: ANN401
    """One call of each kind."""
    tensor, whole = torch.ones(LENGTH), torch.ones(size * LENGTH)
    parts, others = ([torch.ones(LENGTH) for _ in range(size)] for _ in range(2))
    on_root = rank == 0
    dist.all_reduce(tensor, group=group)
    handle = dist.all_reduce(tensor, group=group, async_op=True)
    assert handle is not None
    handle.wait()
    dist.broadcast(tensor, 0, group=group)
    dist.reduce(tensor, 0, group=group)
    dist.all_gather(parts, tensor, group=group)
    group._allgather_base(whole, tensor).wait()
    group.reduce_scatter([tensor], [parts]).wait()
    group._reduce_scatter_base(tensor, whole).wait()
    dist.gather(tensor, parts if on_root else None, 0, group=group)
    dist.scatter(tensor, parts if on_root else None, 0, group=group)
    dist.all_to_all(others, parts, group=group)
    dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
    if rank < 2:
        for receive in (True, False):
            if on_root:
                dist.send(tensor, 1, group=group)
            elif receive:
                dist.recv(tensor, 0, group=group)
            else:
                dist.recv(tensor, group=group)
    dist.barrier(group=group)


def profiled_operations(rank: int, size: int) -> None:
    """The same calls of torch, with the same sizes, as with Gloo; and what they run."""
    gloo = dist.new_group(backend="gloo")
    ours: Any = dist.group.WORLD
    expected = profiled(lambda: operations(rank, size, gloo))
    found = profiled(lambda: operations(rank, size, ours))
    calls = Counter({k: n for k, n in found.items() if k[0].startswith("c10d::")})
    assert calls == without_sizes_of_barrier(expected)
    one, many = f"[[{LENGTH}]]", f"[[{size * LENGTH}]]"
    each = str([[LENGTH]] * size)
    assert found["ringleader:all_reduce", one] == 2
    for name in ("broadcast", "reduce", "gather"):
        assert found[f"ringleader:{name}", one] == 1, name
    assert found["ringleader:all_gather", one] == 2
    assert found["ringleader:reduce_scatter", each] == 1
    assert found["ringleader:reduce_scatter", many] == 1
    assert found["ringleader:all_to_all", each] == 1
    assert found["ringleader:all_to_all", many] == 1
    assert found["ringleader:scatter", each if rank == 0 else "[]"] == 1
    assert found["ringleader:barrier", "[]"] == 1
    if rank < 2:
        assert found[f"ringleader:{('send', 'recv')[rank]}", one] == 2
    assert not profiled(lambda: None)


def without_sizes_of_barrier(events: Events) -> Events:
    """Gloo's barrier gets a tensor from torch, of which it takes the device."""
    return Counter(
        {(n, "[]" if n == "c10d::barrier" else s): k for (n, s), k in events.items()}
    )


def profiled_ddp(rank: int, size: int) -> None:
    """Buckets are seen with their sizes, wherever they are reduced, until their end."""
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(BUCKET // 100, 100, bias=False))
    )

    def step() -> None:
        backward(model(torch.ones(2, BUCKET // 100) * (rank + 1)).sum())

    for _ in range(
        3
    ):  # a new bucket, one that moves to shared memory, one that is there
        found = profiled(step)
        assert found["c10d::allreduce_", f"[[[{BUCKET}]]]"] == 1, found
        assert found["ringleader:all_reduce", f"[[{BUCKET}]]"] == 1, found
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        step()
    seen = [each for each in trace.key_averages() if each.key.startswith("ringleader")]
    assert [each.count for each in seen] == [1]
    mean = sum(range(1, size + 1)) / size * 2
    gradient = next(model.parameters()).grad
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.full_like(gradient, 4 * mean))
