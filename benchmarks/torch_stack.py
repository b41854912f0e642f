"""Compares torch on our backend with Gloo: small calls, DDP, FSDP2, a busy process.

    python benchmarks/torch_stack.py [--quick] [--transport tcp] [--json FILE]
    PYTHONPATH=src python benchmarks/torch_stack.py --device cuda

Each backend has two ranks, processes with one compute thread each, which create its
group the way a user does. Both pairs exist for the whole run and take turns, so that a
disturbance of the machine affects both; the other pair sleeps. A time is the median
over the rounds; one round is a batch of calls on its slowest rank. Every operation is
compared with a reference before it is timed.

It needs only torch, numpy and the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_groups import (
    GLOO,
    OURS,
    BackendFailure,
    Competitor,
    MakeTask,
    RankGroup,
    Seat,
    Task,
    in_turns,
    in_words,
    machine,
)
from torch import Tensor, nn

RANKS = 2
MIB = 1 << 20

WIDTH, LAYERS, BATCH = 2048, 6, 1
"""25.2 million parameters and little arithmetic: a step is mostly communication."""

BUCKET_BYTES = 25_000_000
"""About one bucket of DDP."""

# -- what is measured ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """The ratio that a row must reach."""

    faster: float = 0.0
    """Minimum of Gloo's time divided by ours."""
    at_most_s: float = float("inf")
    text: str = ""

    def is_met(self, ours_s: float, gloo_s: float) -> bool:
        """Whether it is reached; equality counts."""
        return gloo_s / ours_s >= self.faster and ours_s <= self.at_most_s


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    task: MakeTask
    total_bytes: int = 0
    bar: Bar | None = None


SMALL = Bar(at_most_s=20e-6, text="<= 20 us")


def rows(device: str) -> list[Row]:
    """Return all rows that are measured on ``device``."""
    if device == "cuda":
        bar = Bar(faster=2.5, text=">= 2.5x Gloo")
        tasks = {"all_gather_into_tensor": all_gather, "broadcast": broadcast}
        tasks["reduce_scatter_tensor"] = reduce_scatter
        return [
            *(Row(f"all_reduce {n} MiB", all_reduce, n * MIB, bar) for n in (1, 4, 16)),
            *(Row(f"all_reduce {n} MiB", all_reduce, n * MIB, bar) for n in (64, 256)),
            *(Row(f"{name} 16 MiB", task, 16 * MIB) for name, task in tasks.items()),
        ]  # no FSDP2: Gloo's ranks die of it (torch 2.11)
    return [
        Row("all_reduce 4 B", all_reduce, 4, Bar(1 / 0.15, text="<= 0.15 of Gloo")),
        Row("all_gather_into_tensor 1 KiB", all_gather, 1024, SMALL),
        Row("reduce_scatter_tensor 1 KiB", reduce_scatter, 1024, SMALL),
        Row("broadcast 1 KiB", broadcast, 1024, SMALL),
        Row("barrier", barrier),
        *(Row(f"all_reduce {n} MiB", all_reduce, n * MIB) for n in (4, 16, 64)),
        Row("all_gather_into_tensor 16 MiB", all_gather, 16 * MIB),
        Row("reduce_scatter_tensor 16 MiB", reduce_scatter, 16 * MIB),
        Row("DDP that sends nothing", ddp_silent),
        Row("DDP forward, backward", partial(ddp, with_optimizer=False)),
        Row("DDP forward, backward, SGD", ddp, bar=Bar(1.8, text=">= 1.8x Gloo")),
        Row("FSDP2 forward, backward, SGD", fsdp, bar=Bar(1.5, text=">= 1.5x Gloo")),
        Row(
            "busy: all_reduce 4 B",
            busy_all_reduce,
            4,
            Bar(at_most_s=1.5e-3, text="<= 1.5 ms"),
        ),
        Row(
            "busy: async all_reduce 25 MB, wait",
            busy_async,
            BUCKET_BYTES,
            Bar(at_most_s=60e-3, text="<= 60 ms"),
        ),
    ]


def pattern(items: int, rank: int) -> Tensor:
    """Return integers that differ between ranks, whose sums are exact in float32."""
    return torch.arange(items, dtype=torch.float32).remainder_(1000).add_(rank)


def require_equal(name: str, found: Tensor, wanted: Tensor) -> None:
    """Raise if the result is wrong."""
    if not torch.equal(found.cpu(), wanted):
        raise ArithmeticError(f"{name}: the value is wrong")


def require_close(name: str, found: Tensor, wanted: Tensor) -> None:
    """Compare gradients, which are summed in another order than in the reference."""
    error = (found.cpu() - wanted).abs().max().item()
    if not error <= 1e-5 * wanted.abs().max().item():
        raise ArithmeticError(f"{name}: off by {error:g}")


def finish(work: dist.Work | None) -> None:
    """Wait for an operation; a synchronous one has ended and returned None."""
    if work is not None:
        work.wait()


def all_reduce(seat: Seat, total_bytes: int, *, async_op: bool = False) -> Task:
    """In-place all_reduce; with ``async_op`` it is started, then waited for."""
    items = total_bytes // 4
    tensor = torch.zeros(items, device=seat.device)

    def step() -> None:
        finish(dist.all_reduce(tensor, async_op=async_op))
        seat.settle()

    def check() -> None:
        tensor.copy_(pattern(items, seat.rank))
        step()
        wanted = torch.stack([pattern(items, r) for r in range(RANKS)]).sum(0)
        require_equal("all_reduce", tensor, wanted)
        tensor.zero_()  # avoids an overflow of repeated sums

    return Task(check, step)


def all_gather(
    seat: Seat,
    total_bytes: int,
    *,
    async_op: bool = False,
    name: str = "all_gather_into_tensor",
) -> Task:
    """all_gather by this name; ``total_bytes`` is the size of its output."""
    call = getattr(dist, name)
    items = total_bytes // 4 // RANKS
    shard = pattern(items, seat.rank).to(seat.device)
    whole = torch.zeros(items * RANKS, device=seat.device)

    def step() -> None:
        finish(call(whole, shard, async_op=async_op))
        seat.settle()

    def check() -> None:
        step()
        wanted = torch.cat([pattern(items, r) for r in range(RANKS)])
        require_equal(name, whole, wanted)

    return Task(check, step)


def broadcast(seat: Seat, total_bytes: int, *, async_op: bool = False) -> Task:
    """broadcast from rank 0 of a tensor of ``total_bytes``."""
    tensor = pattern(total_bytes // 4, seat.rank).to(seat.device)

    def step() -> None:
        finish(dist.broadcast(tensor, 0, async_op=async_op))
        seat.settle()

    def check() -> None:
        step()
        require_equal("broadcast", tensor, pattern(total_bytes // 4, 0))

    return Task(check, step)


def barrier(_seat: Seat, _total_bytes: int, *, async_op: bool = False) -> Task:
    """barrier, which has no values to check."""

    def step() -> None:
        finish(dist.barrier(async_op=async_op))

    return Task(step, step)


def all_to_all(seat: Seat, total_bytes: int, *, async_op: bool = False) -> Task:
    """all_to_all_single; ``total_bytes`` is the size of its input."""
    items = total_bytes // 4
    whole = pattern(items, seat.rank).to(seat.device)
    found = torch.zeros(items, device=seat.device)

    def step() -> None:
        finish(dist.all_to_all_single(found, whole, async_op=async_op))
        seat.settle()

    def check() -> None:
        step()
        parts = [pattern(items, r).chunk(RANKS)[seat.rank] for r in range(RANKS)]
        require_equal("all_to_all_single", found, torch.cat(parts))

    return Task(check, step)


def reduce_scatter(
    seat: Seat,
    total_bytes: int,
    *,
    async_op: bool = False,
    name: str = "reduce_scatter_tensor",
) -> Task:
    """reduce_scatter by this name; ``total_bytes`` is the size of its input."""
    call = getattr(dist, name)
    items = total_bytes // 4
    whole = pattern(items, seat.rank).to(seat.device)
    shard = torch.zeros(items // RANKS, device=seat.device)

    def step() -> None:
        finish(call(shard, whole, async_op=async_op))
        seat.settle()

    def check() -> None:
        step()
        total = torch.stack([pattern(items, r) for r in range(RANKS)]).sum(0)
        require_equal(name, shard, total.chunk(RANKS)[seat.rank])

    return Task(check, step)


def busy_all_reduce(seat: Seat, total_bytes: int) -> Task:
    """all_reduce while another thread of rank 0 runs Python and holds the GIL."""
    quiet = all_reduce(seat, total_bytes)
    return Task(quiet.check, quiet.step, busy_thread if seat.rank == 0 else nullcontext)


def busy_async(seat: Seat, total_bytes: int) -> Task:
    """Asynchronous all_reduce, as DDP uses it, while another thread is busy."""
    quiet = all_reduce(seat, total_bytes, async_op=True)
    return Task(quiet.check, quiet.step, busy_thread if seat.rank == 0 else nullcontext)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Run a thread that computes in pure Python all the time."""
    over = threading.Event()

    def count() -> None:
        total = 0
        while not over.is_set():
            for number in range(1000):
                total += number

    thread = threading.Thread(target=count, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def make_model() -> nn.Sequential:
    """Return a model with the same parameters on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_batch(rank: int) -> Tensor:
    """Return input data that differs between ranks."""
    made = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1 + rank))
    return made * 10  # avoids denormal numbers, which are slow


def backward(model: nn.Module, batch: Tensor) -> None:
    """Run one forward and one backward pass."""
    model(batch).square().mean().backward()


def mean_gradients() -> list[Tensor]:
    """Compute the expected gradients of all ranks in this process."""
    model = make_model()
    for rank in range(RANKS):
        (model(make_batch(rank)).square().mean() / RANKS).backward()
    return [
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    ]


def training(seat: Seat, model: nn.Module, *, with_optimizer: bool = True) -> Task:
    """Training steps of ``model``; if parallel, gradients are the mean over ranks."""
    batch = make_batch(seat.rank).to(seat.device)
    # A rate so small that a thousand steps on one batch hardly change the numbers.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)

    def step() -> None:
        optimizer.zero_grad()
        backward(model, batch)
        if with_optimizer:
            optimizer.step()
        seat.settle()

    def check() -> None:
        optimizer.zero_grad()
        backward(model, batch)
        pairs = zip(model.named_parameters(), mean_gradients(), strict=True)
        for (name, parameter), wanted in pairs:
            found: Any = parameter.grad
            whole = found.full_tensor() if hasattr(found, "full_tensor") else found
            require_close(f"gradient of {name}", whole, wanted)

    return Task(check, step)


def ddp(seat: Seat, _: int, *, with_optimizer: bool = True) -> Task:
    """DistributedDataParallel with its defaults."""
    model = nn.parallel.DistributedDataParallel(make_model().to(seat.device))
    return training(seat, model, with_optimizer=with_optimizer)


def ddp_silent(seat: Seat, _: int) -> Task:
    """DDP without communication: the lower bound for every backend."""
    model = nn.parallel.DistributedDataParallel(make_model().to(seat.device))
    # A lambda: torch checks annotations, which are strings in this module.
    model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
    return Task(lambda: None, training(seat, model).step)


def _done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def fsdp(seat: Seat, _: int) -> Task:
    """FSDP2: every layer is sharded, gathered twice per step and reduce-scattered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(seat.device.type, (RANKS,))
    model = make_model().to(seat.device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(seat, model)


# -- the driver ------------------------------------------------------------------


@dataclass(slots=True)
class RowResult:
    """Result of a row: seconds per call of every round, or why there are none."""

    row: Row
    times_s: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median_s(self, title: str) -> float | None:
        """Median shown in the table."""
        if title in self.failures:
            return None
        return statistics.median(self.times_s[title])

    @contextmanager
    def recording_failure(self, group: RankGroup) -> Iterator[None]:
        """Record a failure of this backend, which ends the row but not the run."""
        try:
            yield
        except BackendFailure as exc:
            self.failures[group.title] = str(exc)


@dataclass(frozen=True, slots=True)
class Pace:
    """Number and length of the rounds."""

    rounds: int = 7
    batch_s: float = 0.4
    """Long enough to average over the scheduler, short enough to alternate often."""


def measure(row: Row, groups: Sequence[RankGroup], pace: Pace) -> RowResult:
    """Verify the values, find how many calls fill a batch, then measure in turns."""
    result = RowResult(row)
    calls: dict[str, int] = {}
    for group in groups:
        with result.recording_failure(group):
            group.forget()
            group.prepare(row.title, row.task, row.total_bytes)
            calls[group.title] = group.calls_for(row.title, pace.batch_s)
    for number in range(pace.rounds):
        for group in in_turns(groups, number):
            if group.title not in result.failures:
                with result.recording_failure(group):
                    slowest_s = group.time(row.title, calls[group.title])
                    result.times_s.setdefault(group.title, []).append(slowest_s)
    return result


# -- the report ------------------------------------------------------------------


def cells(result: RowResult, titles: Sequence[str]) -> list[str]:
    """One line of the table."""
    ours_s, gloo_s = (result.median_s(title) for title in titles)
    shown = [result.row.title, in_words(ours_s), in_words(gloo_s)]
    bar = result.row.bar
    if ours_s is None or gloo_s is None:
        return [*shown, "-", bar.text if bar else "", ""]
    shown.append(f"{gloo_s / ours_s:.2f}x")
    if bar is None:
        return [*shown, "", ""]
    return [*shown, bar.text, "met" if bar.is_met(ours_s, gloo_s) else "MISSED"]


def print_table(results: Sequence[RowResult], titles: Sequence[str]) -> None:
    """Align the table: text to the left, numbers to the right."""
    head = ["", *titles, "faster", "bar", ""]
    lines = [head, *(cells(result, titles) for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        left, *numbers = (
            text.rjust(width) if 0 < i < 4 else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([left, *numbers]).rstrip())
    for result in results:
        for title, failure in result.failures.items():
            print(f"\n{title}, {result.row.title}:\n{failure}")


def as_json(results: Sequence[RowResult], titles: Sequence[str]) -> dict[str, object]:
    """Return all rounds and the machine they were measured on."""
    keys = ("what", "ours", "gloo", "faster", "bar", "verdict")
    return {
        "machine": machine(),
        "rows": [
            dict(zip(keys, cells(result, titles), strict=True))
            | {"times_s": result.times_s, "troubles": result.failures}
            for result in results
        ],
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--backend", default=OURS, help="backend to compare with Gloo")
    made.add_argument("--transport", choices=["auto", "tcp"], default="auto")
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument(
        "-k", default="", metavar="REGEX", help="measure only the rows that match"
    )
    made.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    made.add_argument("--json", type=Path, metavar="FILE")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a backend failed."""
    options = parse(arguments)
    suffix = "" if options.transport == "auto" else f" {options.transport}"
    where = {"device": options.device, "transport": options.transport}
    ours = Competitor(title=options.backend + suffix, backend=options.backend, **where)
    gloo = Competitor(title="Gloo", backend=GLOO, **where)
    groups = [RankGroup(ours), RankGroup(gloo)]
    titles = [group.title for group in groups]
    pace = Pace(rounds=3, batch_s=0.1) if options.quick else Pace()
    chosen = [row for row in rows(options.device) if re.search(options.k, row.title)]
    results = []
    try:
        for row in chosen:
            print(f"... {row.title}", file=sys.stderr, flush=True)
            results.append(measure(row, groups, pace))
    finally:
        for group in groups:
            group.stop()
    print_table(results, titles)
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"\nmedians of {pace.rounds} rounds; load {load:.1f} on {cores} cores")
    if options.json:
        options.json.write_text(json.dumps(as_json(results, titles), indent=1) + "\n")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
