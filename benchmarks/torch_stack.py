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
import multiprocessing
import os
import platform
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

OURS, GLOO = "ringleader", "gloo"
RANKS = 2
MIB = 1 << 20

WIDTH, LAYERS, BATCH = 2048, 6, 1
"""25.2 million parameters and little arithmetic: a step is mostly communication."""

BUCKET_BYTES = 25_000_000
"""About one bucket of DDP."""

START_S, REPLY_S = 120.0, 180.0
"""Limits for importing torch in four processes on two cores, and for one batch."""


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
    task: str
    total_bytes: int = 0
    bar: Bar | None = None


SMALL = Bar(at_most_s=20e-6, text="<= 20 us")


def rows(device: str) -> list[Row]:
    """Return all rows that are measured on ``device``."""
    if device == "cuda":
        bar = Bar(faster=2.0, text=">= 2x Gloo")
        return [
            Row(f"all_reduce {n} MiB", "all_reduce", n * MIB, bar if n >= 16 else None)
            for n in (1, 4, 16, 64, 256)
        ]
    return [
        Row("all_reduce 4 B", "all_reduce", 4, Bar(1 / 0.15, text="<= 0.15 of Gloo")),
        Row("all_gather_into_tensor 1 KiB", "all_gather", 1024, SMALL),
        Row("reduce_scatter_tensor 1 KiB", "reduce_scatter", 1024, SMALL),
        Row("broadcast 1 KiB", "broadcast", 1024, SMALL),
        Row("barrier", "barrier"),
        *(Row(f"all_reduce {n} MiB", "all_reduce", n * MIB) for n in (4, 16, 64)),
        Row("all_gather_into_tensor 16 MiB", "all_gather", 16 * MIB),
        Row("reduce_scatter_tensor 16 MiB", "reduce_scatter", 16 * MIB),
        Row("DDP that sends nothing", "ddp_silent"),
        Row("DDP forward, backward", "ddp_backward"),
        Row("DDP forward, backward, SGD", "ddp", bar=Bar(1.8, text=">= 1.8x Gloo")),
        Row("FSDP2 forward, backward, SGD", "fsdp", bar=Bar(1.5, text=">= 1.5x Gloo")),
        Row(
            "busy: all_reduce 4 B",
            "busy_all_reduce",
            4,
            Bar(at_most_s=1.5e-3, text="<= 1.5 ms"),
        ),
        Row(
            "busy: async all_reduce 25 MB, wait",
            "busy_async",
            BUCKET_BYTES,
            Bar(at_most_s=60e-3, text="<= 60 ms"),
        ),
    ]


@dataclass(frozen=True, slots=True)
class Task:
    """One operation on one rank, which can be repeated."""

    check: Callable[[], None]
    """Runs the operation once and raises if the result is wrong."""
    step: Callable[[], object]
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the steps are timed, such as a busy thread."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Rank and device of a task."""

    rank: int
    device: torch.device

    def settle(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


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


def all_reduce(seat: Seat, total_bytes: int) -> Task:
    """Synchronous, in-place all_reduce."""
    items = total_bytes // 4
    tensor = torch.zeros(items, device=seat.device)

    def step() -> None:
        dist.all_reduce(tensor)
        seat.settle()

    def check() -> None:
        tensor.copy_(pattern(items, seat.rank))
        step()
        wanted = torch.stack([pattern(items, r) for r in range(RANKS)]).sum(0)
        require_equal("all_reduce", tensor, wanted)
        tensor.zero_()  # avoids an overflow of repeated sums

    return Task(check, step)


def all_gather(seat: Seat, total_bytes: int) -> Task:
    """all_gather; ``total_bytes`` is the size of its output."""
    items = total_bytes // 4 // RANKS
    shard = pattern(items, seat.rank).to(seat.device)
    whole = torch.zeros(items * RANKS, device=seat.device)

    def step() -> None:
        dist.all_gather_into_tensor(whole, shard)
        seat.settle()

    def check() -> None:
        step()
        wanted = torch.cat([pattern(items, r) for r in range(RANKS)])
        require_equal("all_gather_into_tensor", whole, wanted)

    return Task(check, step)


def broadcast(seat: Seat, total_bytes: int) -> Task:
    """broadcast from rank 0 of a tensor of ``total_bytes``."""
    tensor = pattern(total_bytes // 4, seat.rank).to(seat.device)

    def step() -> None:
        dist.broadcast(tensor, 0)
        seat.settle()

    def check() -> None:
        step()
        require_equal("broadcast", tensor, pattern(total_bytes // 4, 0))

    return Task(check, step)


def barrier(_seat: Seat, _total_bytes: int) -> Task:
    """barrier, which has no values to check."""
    return Task(dist.barrier, dist.barrier)


def reduce_scatter(seat: Seat, total_bytes: int) -> Task:
    """reduce_scatter; ``total_bytes`` is the size of its input."""
    items = total_bytes // 4
    whole = pattern(items, seat.rank).to(seat.device)
    shard = torch.zeros(items // RANKS, device=seat.device)

    def step() -> None:
        dist.reduce_scatter_tensor(shard, whole)
        seat.settle()

    def check() -> None:
        step()
        total = torch.stack([pattern(items, r) for r in range(RANKS)]).sum(0)
        require_equal("reduce_scatter_tensor", shard, total.chunk(RANKS)[seat.rank])

    return Task(check, step)


def busy_all_reduce(seat: Seat, total_bytes: int) -> Task:
    """all_reduce while another thread of rank 0 runs Python and holds the GIL."""
    quiet = all_reduce(seat, total_bytes)
    return Task(quiet.check, quiet.step, busy_thread if seat.rank == 0 else nullcontext)


def busy_async(seat: Seat, total_bytes: int) -> Task:
    """Asynchronous all_reduce, as DDP uses it: start, then wait."""
    quiet = busy_all_reduce(seat, total_bytes)
    tensor = torch.zeros(total_bytes // 4, device=seat.device)

    def step() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        seat.settle()

    return Task(quiet.check, step, quiet.meanwhile)


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


TASKS: dict[str, Callable[[Seat, int], Task]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "barrier": barrier,
    "ddp_silent": ddp_silent,
    "ddp": ddp,
    "ddp_backward": partial(ddp, with_optimizer=False),
    "fsdp": fsdp,
    "busy_all_reduce": busy_all_reduce,
    "busy_async": busy_async,
}


# -- a rank ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """One backend of this run."""

    title: str
    backend: str
    device: str
    transport: str


def run_rank(competitor: Competitor, rank: int, store: str, pipe: Connection) -> None:
    """Run a rank: join the group, then handle requests from the pipe."""
    try:
        seat = join(competitor, rank, store)
        pipe.send(None)
        obey(seat, pipe)
        dist.destroy_process_group()
    except EOFError:
        pass  # the driver has ended
    except Exception:  # noqa: BLE001 - reported to the driver
        pipe.send(traceback.format_exc())


def join(competitor: Competitor, rank: int, store: str) -> Seat:
    """Initialize the default group as rank ``rank``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # renamed in torch 2.13
    os.environ["RINGLEADER_TRANSPORT"] = competitor.transport
    if Path("/sys/class/net/lo").exists():  # the name of a container may not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if competitor.backend == OURS:
        from ringleader.backend.register import register

        register()
    dist.init_process_group(
        competitor.backend,
        init_method=Path(store).as_uri(),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    if competitor.device == "cuda":
        torch.cuda.set_device(0)
    return Seat(rank, torch.device(competitor.device))


def obey(seat: Seat, pipe: Connection) -> None:
    """Reply to ("prepare", task, bytes) with None, to ("time", calls) with seconds."""
    task: Task | None = None
    while (order := pipe.recv()) is not None:
        match order:
            case "prepare", name, total_bytes:
                task = None  # frees its memory before the next is prepared
                task = TASKS[name](seat, total_bytes)
                task.check()
                pipe.send(None)
            case "time", calls:
                assert task is not None
                pipe.send(time_calls(task, calls))


def time_calls(task: Task, calls: int) -> float:
    """Return the seconds per call of a batch that starts with a barrier."""
    dist.barrier()
    with task.meanwhile():
        started_s = time.perf_counter()
        for _ in range(calls):
            task.step()
        return (time.perf_counter() - started_s) / calls


# -- the driver ------------------------------------------------------------------


class BackendFailure(RuntimeError):
    """A backend failed in a row of the table."""


class RankPair:
    """Both ranks of one competitor; started on first use and after a failure."""

    def __init__(self, competitor: Competitor) -> None:
        self.competitor = competitor
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def request(self, *order: object) -> list[Any]:
        """Send a request to every rank and return their replies.

        Raises BackendFailure.
        """
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send(order)
            return self._replies(REPLY_S)
        except OSError as exc:
            self.stop()
            raise BackendFailure(f"a rank died: {exc!r}") from exc

    def stop(self) -> None:
        """End both ranks: ask them to exit, then kill them after 5 s."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder = [], [], None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="torch-stack-")
        store = Path(self._folder.name) / "store"
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run_rank,
                args=(self.competitor, rank, str(store), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()  # so that the pipe ends when the rank does
            self._processes.append(process)
            self._pipes.append(ours)
        self._replies(START_S)

    def _replies(self, within_s: float) -> list[Any]:
        """Return one reply per rank; the first error explains later ones."""
        until_s = time.monotonic() + within_s
        replies: dict[Connection, object] = {}
        while waiting := [pipe for pipe in self._pipes if pipe not in replies]:
            ready = wait(waiting, max(0.0, until_s - time.monotonic()))
            if not ready:
                self._fail(f"no reply within {within_s:g} s")
            for pipe in self._pipes:
                if pipe in ready:
                    replies[pipe] = self._reply(pipe)
        return [replies[pipe] for pipe in self._pipes]

    def _reply(self, pipe: Connection) -> object:
        try:
            reply = pipe.recv()
        except EOFError:
            reply = f"rank {self._pipes.index(pipe)} died without a message"
        if isinstance(reply, str):
            self._fail(reply)
        return reply

    def _fail(self, why: str) -> NoReturn:
        self.stop()
        raise BackendFailure(why)


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
    def recording_failure(self, pair: RankPair) -> Iterator[None]:
        """Record a failure of this backend, which ends the row but not the run."""
        try:
            yield
        except BackendFailure as exc:
            self.failures[pair.competitor.title] = str(exc)


@dataclass(frozen=True, slots=True)
class Pace:
    """Number and length of the rounds."""

    rounds: int = 7
    batch_s: float = 0.4
    """Long enough to average over the scheduler, short enough to alternate often."""


def measure(row: Row, pairs: Sequence[RankPair], pace: Pace) -> RowResult:
    """Verify the values, find how many calls fill a batch, then measure in turns."""
    result = RowResult(row)
    calls: dict[str, int] = {}
    for pair in pairs:
        with result.recording_failure(pair):
            calls[pair.competitor.title] = prepare(row, pair, pace)
    for number in range(pace.rounds):
        for pair in pairs[:: -1 if number % 2 else 1]:  # reversed every other round
            title = pair.competitor.title
            if title not in result.failures:
                with result.recording_failure(pair):
                    slowest_s = max(pair.request("time", calls[title]))
                    result.times_s.setdefault(title, []).append(slowest_s)
    return result


def prepare(row: Row, pair: RankPair, pace: Pace) -> int:
    """Verify the values; return how many calls fill a batch."""
    pair.request("prepare", row.task, row.total_bytes)
    calls = 2
    for _ in range(2):  # the first estimate is of a cold operation
        per_call_s = max(pair.request("time", calls))
        calls = max(1, min(20_000, round(pace.batch_s / per_call_s)))
    return calls


# -- the report ------------------------------------------------------------------


def in_words(seconds: float | None) -> str:
    """Format a time with three digits and its unit."""
    if seconds is None:
        return "failed"
    for scale, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1e3:.4g} {unit}"
    return f"{seconds:.3g} s"


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
    is_cuda = torch.cuda.is_available()
    return {
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "load_1min": round(os.getloadavg()[0], 2),
            "gpu": torch.cuda.get_device_name(0) if is_cuda else None,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        },
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
    pairs = [RankPair(ours), RankPair(Competitor(title="Gloo", backend=GLOO, **where))]
    titles = [pair.competitor.title for pair in pairs]
    pace = Pace(rounds=3, batch_s=0.1) if options.quick else Pace()
    chosen = [row for row in rows(options.device) if re.search(options.k, row.title)]
    results = []
    try:
        for row in chosen:
            print(f"... {row.title}", file=sys.stderr, flush=True)
            results.append(measure(row, pairs, pace))
    finally:
        for pair in pairs:
            pair.stop()
    print_table(results, titles)
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"\nmedians of {pace.rounds} rounds; load {load:.1f} on {cores} cores")
    if options.json:
        options.json.write_text(json.dumps(as_json(results, titles), indent=1) + "\n")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
