"""The torch stack on our backend beside Gloo: small calls, DDP, FSDP2, a busy process.

    python benchmarks/torch_stack.py [--quick] [--transport tcp] [--json FILE]
    PYTHONPATH=src python benchmarks/torch_stack.py --device cuda

Each backend has two ranks, processes with one compute thread each, which start its
group the way a user does. Both pairs live through the whole run and take turns, so that
a disturbance of the machine hits both; the pair that is not asked sleeps. A time is the
median of all rounds; one round is a batch of calls on its slowest rank. Every operation
is compared with a reference before it is timed.

Needs torch, numpy and the standard library: it also runs where nothing else is.
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
"""25.2 million parameters and hardly any arithmetic: the step is communication."""

BUCKET_BYTES = 25_000_000
"""About one bucket of DDP."""

START_S, ANSWER_S = 120.0, 180.0
"""Importing torch in four processes on two cores; the slowest batch of a slow backend.
"""


# -- what is measured ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """What a row has to reach."""

    faster: float = 0.0
    """Gloo's time divided by ours, at least."""
    at_most_s: float = float("inf")
    text: str = ""

    def is_met(self, ours_s: float, gloo_s: float) -> bool:
        """Whether it is reached, exactly counts."""
        return gloo_s / ours_s >= self.faster and ours_s <= self.at_most_s


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    title: str
    task: str
    total_bytes: int = 0
    bar: Bar | None = None


def rows(device: str) -> list[Row]:
    """Everything that is measured on ``device``."""
    if device == "cuda":
        bar = Bar(faster=2.0, text=">= 2x Gloo")
        return [
            Row(f"all_reduce {n} MiB", "all_reduce", n * MIB, bar if n >= 16 else None)
            for n in (1, 4, 16, 64, 256)
        ]
    return [
        Row("all_reduce 4 B", "all_reduce", 4, Bar(1 / 0.15, text="<= 0.15 of Gloo")),
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
    """One operation on one rank, ready to be repeated."""

    check: Callable[[], None]
    """Does it once and raises if the value is wrong."""
    step: Callable[[], object]
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
    """What else this rank does while the steps are timed."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a task runs."""

    rank: int
    device: torch.device

    def settle(self) -> None:
        """Return when the device has done what it was told."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def pattern(items: int, rank: int) -> Tensor:
    """Whole numbers that differ between ranks; float32 adds them exactly."""
    return torch.arange(items, dtype=torch.float32).remainder_(1000).add_(rank)


def require_equal(name: str, found: Tensor, wanted: Tensor) -> None:
    """A fast wrong answer is no answer."""
    if not torch.equal(found.cpu(), wanted):
        raise ArithmeticError(f"{name}: the value is wrong")


def require_close(name: str, found: Tensor, wanted: Tensor) -> None:
    """Gradients are added in another order than in the reference."""
    error = (found.cpu() - wanted).abs().max().item()
    if not error <= 1e-5 * wanted.abs().max().item():
        raise ArithmeticError(f"{name}: off by {error:g}")


def all_reduce(seat: Seat, total_bytes: int) -> Task:
    """In place, called synchronously."""
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
        tensor.zero_()  # repeated sums would overflow

    return Task(check, step)


def all_gather(seat: Seat, total_bytes: int) -> Task:
    """``total_bytes`` are what every rank ends up with."""
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


def reduce_scatter(seat: Seat, total_bytes: int) -> Task:
    """``total_bytes`` are what every rank puts in."""
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
    """The same while another thread of rank 0 runs Python and wants the GIL."""
    quiet = all_reduce(seat, total_bytes)
    return Task(quiet.check, quiet.step, busy_thread if seat.rank == 0 else nullcontext)


def busy_async(seat: Seat, total_bytes: int) -> Task:
    """As DDP does it: begin, then wait."""
    quiet = busy_all_reduce(seat, total_bytes)
    tensor = torch.zeros(total_bytes // 4, device=seat.device)

    def step() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        seat.settle()

    return Task(quiet.check, step, quiet.meanwhile)


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that computes in pure Python all the time."""
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
    """The same on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_batch(rank: int) -> Tensor:
    """Its own data for each rank."""
    made = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1 + rank))
    return made * 10  # far from denormal numbers, which are slow


def backward(model: nn.Module, batch: Tensor) -> None:
    """One forward and one backward pass."""
    model(batch).square().mean().backward()


def mean_gradients() -> list[Tensor]:
    """What every rank must hold after the backward pass, computed here alone."""
    model = make_model()
    for rank in range(RANKS):
        (model(make_batch(rank)).square().mean() / RANKS).backward()
    return [
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    ]


def training(seat: Seat, model: nn.Module, *, with_optimizer: bool = True) -> Task:
    """Steps of ``model``, whose gradients are the mean over ranks if it is parallel."""
    batch = make_batch(seat.rank).to(seat.device)
    # So small a rate that a thousand steps on one batch hardly change the numbers.
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
    """DistributedDataParallel as it is by default."""
    model = nn.parallel.DistributedDataParallel(make_model().to(seat.device))
    return training(seat, model, with_optimizer=with_optimizer)


def ddp_silent(seat: Seat, _: int) -> Task:
    """The bound: no backend can be faster than doing nothing."""
    model = nn.parallel.DistributedDataParallel(make_model().to(seat.device))
    # A lambda: torch compares annotations with its types, and ours are text.
    model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
    return Task(lambda: None, training(seat, model).step)


def _done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def fsdp(seat: Seat, _: int) -> Task:
    """FSDP2: every layer is sharded, gathered twice a step, and reduced in shards."""
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
    "ddp_silent": ddp_silent,
    "ddp": ddp,
    "ddp_backward": partial(ddp, with_optimizer=False),
    "fsdp": fsdp,
    "busy_all_reduce": busy_all_reduce,
    "busy_async": busy_async,
}


# -- a rank ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One backend in this run."""

    title: str
    backend: str
    device: str
    transport: str


def live(who: Contender, rank: int, store: str, pipe: Connection) -> None:
    """The life of a rank: join the group, then do what the pipe says."""
    try:
        seat = join(who, rank, store)
        pipe.send(None)
        obey(seat, pipe)
        dist.destroy_process_group()
    except EOFError:
        pass  # the driver has ended
    except Exception:  # noqa: BLE001 - told to the driver
        pipe.send(traceback.format_exc())


def join(who: Contender, rank: int, store: str) -> Seat:
    """Be rank ``rank`` of the default group."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # names that 2.13 has renamed
    os.environ["RINGLEADER_TRANSPORT"] = who.transport
    if Path("/sys/class/net/lo").exists():  # a container may not know its own name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if who.backend == OURS:
        from ringleader.backend.register import register

        register()
    dist.init_process_group(
        who.backend,
        init_method=Path(store).as_uri(),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    if who.device == "cuda":
        torch.cuda.set_device(0)
    return Seat(rank, torch.device(who.device))


def obey(seat: Seat, pipe: Connection) -> None:
    """Answer ("prepare", task, bytes) with None and ("time", calls) with seconds."""
    task: Task | None = None
    while (order := pipe.recv()) is not None:
        match order:
            case "prepare", name, total_bytes:
                task = None  # the memory of the last one is free before this one's
                task = TASKS[name](seat, total_bytes)
                task.check()
                pipe.send(None)
            case "time", calls:
                assert task is not None
                pipe.send(time_calls(task, calls))


def time_calls(task: Task, calls: int) -> float:
    """Seconds per call, from a moment when all ranks are there."""
    dist.barrier()
    with task.meanwhile():
        started_s = time.perf_counter()
        for _ in range(calls):
            task.step()
        return (time.perf_counter() - started_s) / calls


# -- the driver ------------------------------------------------------------------


class Trouble(RuntimeError):
    """A backend failed in a row; the text says how."""


class Pair:
    """Both ranks of one contender; started on first use, and anew after trouble."""

    def __init__(self, who: Contender) -> None:
        self.who = who
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, *order: object) -> list[Any]:
        """Tell every rank; their answers, or Trouble."""
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send(order)
            return self._answers(ANSWER_S)
        except OSError as exc:
            self.stop()
            raise Trouble(f"a rank died: {exc!r}") from exc

    def stop(self) -> None:
        """End both ranks, in peace if they can."""
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
                target=live, args=(self.who, rank, str(store), theirs), daemon=True
            )
            process.start()
            theirs.close()  # so that the end of the rank is the end of the pipe
            self._processes.append(process)
            self._pipes.append(ours)
        self._answers(START_S)

    def _answers(self, within_s: float) -> list[Any]:
        """One of every rank. The first that fails explains why the other waits."""
        until_s = time.monotonic() + within_s
        answers: dict[Connection, object] = {}
        while waiting := [pipe for pipe in self._pipes if pipe not in answers]:
            ready = wait(waiting, max(0.0, until_s - time.monotonic()))
            if not ready:
                self._give_up(f"no answer within {within_s:g} s")
            for pipe in self._pipes:
                if pipe in ready:
                    answers[pipe] = self._answer(pipe)
        return [answers[pipe] for pipe in self._pipes]

    def _answer(self, pipe: Connection) -> object:
        try:
            answer = pipe.recv()
        except EOFError:
            answer = f"rank {self._pipes.index(pipe)} died without a word"
        if isinstance(answer, str):
            self._give_up(answer)
        return answer

    def _give_up(self, why: str) -> NoReturn:
        self.stop()
        raise Trouble(why)


@dataclass(slots=True)
class Result:
    """What a row came to: seconds per call of every round, or why there are none."""

    row: Row
    times_s: dict[str, list[float]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def median_s(self, title: str) -> float | None:
        """The number of the table."""
        if title in self.troubles:
            return None
        return statistics.median(self.times_s[title])

    @contextmanager
    def noting_trouble(self, pair: Pair) -> Iterator[None]:
        """A backend that fails loses the row, not the run."""
        try:
            yield
        except Trouble as exc:
            self.troubles[pair.who.title] = str(exc)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure."""

    rounds: int = 7
    batch_s: float = 0.4
    """Long enough to average the scheduler, short enough to alternate often."""


def measure(row: Row, pairs: Sequence[Pair], pace: Pace) -> Result:
    """Prove the values, find how many calls fill a batch, then take turns."""
    result = Result(row)
    calls: dict[str, int] = {}
    for pair in pairs:
        with result.noting_trouble(pair):
            calls[pair.who.title] = prepare(row, pair, pace)
    for number in range(pace.rounds):
        for pair in pairs[:: -1 if number % 2 else 1]:  # the last is first next time
            title = pair.who.title
            if title not in result.troubles:
                with result.noting_trouble(pair):
                    slowest_s = max(pair.ask("time", calls[title]))
                    result.times_s.setdefault(title, []).append(slowest_s)
    return result


def prepare(row: Row, pair: Pair, pace: Pace) -> int:
    """Have the values proved; how many calls fill a batch."""
    pair.ask("prepare", row.task, row.total_bytes)
    calls = 2
    for _ in range(2):  # the first estimate is of a cold operation
        per_call_s = max(pair.ask("time", calls))
        calls = max(1, min(20_000, round(pace.batch_s / per_call_s)))
    return calls


# -- the report ------------------------------------------------------------------


def in_words(seconds: float | None) -> str:
    """A time with three digits and its unit."""
    if seconds is None:
        return "failed"
    for scale, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1e3:.4g} {unit}"
    return f"{seconds:.3g} s"


def cells(result: Result, titles: Sequence[str]) -> list[str]:
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


def print_table(results: Sequence[Result], titles: Sequence[str]) -> None:
    """Aligned: what it is to the left, numbers to the right."""
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
        for title, trouble in result.troubles.items():
            print(f"\n{title}, {result.row.title}:\n{trouble}")


def as_json(results: Sequence[Result], titles: Sequence[str]) -> dict[str, object]:
    """All rounds, and what they were measured on."""
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
            | {"times_s": result.times_s, "troubles": result.troubles}
            for result in results
        ],
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--backend", default=OURS, help="compared with Gloo")
    made.add_argument("--transport", choices=["auto", "tcp"], default="auto")
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("-k", default="", metavar="REGEX", help="only rows like this")
    made.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    made.add_argument("--json", type=Path, metavar="FILE")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a backend failed."""
    options = parse(arguments)
    suffix = "" if options.transport == "auto" else f" {options.transport}"
    where = {"device": options.device, "transport": options.transport}
    ours = Contender(title=options.backend + suffix, backend=options.backend, **where)
    pairs = [Pair(ours), Pair(Contender(title="Gloo", backend=GLOO, **where))]
    titles = [pair.who.title for pair in pairs]
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
    return int(any(result.troubles for result in results))


if __name__ == "__main__":
    sys.exit(main())
