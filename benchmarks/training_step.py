"""Shows what a backend adds to a training step: DDP and FSDP2, ours and Gloo.

    python benchmarks/training_step.py [--ranks 2x1] [--ranks 2x8 --ranks 4x4]
    PYTHONPATH=src python benchmarks/training_step.py --ranks 2x8 --ranks 4x4 --no-file
    PYTHONPATH=src python benchmarks/training_step.py --device cuda --ranks 2x1 -k DDP

The model is a transformer of 27 million parameters; a step is forward, backward and
SGD. The same step is also timed without communication: DDP with a hook that sends
nothing, and FSDP2 on torch's "fake" backend, which only copies. What the backend adds
is the difference, round by round. ``--barrier`` also times DDP's step with nothing but
a barrier after the backward pass: what any backend adds, because ranks wait for the
slowest and need the memory all at once. ``--unshared`` also times our DDP with buckets
outside of shared memory, or on a GPU each by itself. ``--ranks 2x8`` means 2 ranks with
8 compute threads each. With ``--device cuda`` all ranks are processes on one GPU. Both
backends exist for the whole run and take turns; a time is the median over the rounds,
with the quartiles beside it; one round is a batch of steps on the slowest rank. The
gradients of DDP and the loss of FSDP2 are compared with one process first.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from rank_groups import (
    GLOO,
    OURS,
    Competitor,
    MakeTask,
    RankGroup,
    Seat,
    Task,
    in_turns,
    in_words,
    machine,
)
from results_file import dated, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

VOCABULARY, WIDTH, HEADS, LAYERS = 2048, 512, 8, 8
RATE = 1e-4
"""Small, so that thousands of steps on one batch hardly change the numbers."""


class Transformer(nn.Module):
    """An encoder with 27.3 million parameters and an output per token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens)
        for layer in self.layers:
            values = layer(values)
        found: Tensor = self.head(values)
        return found


def make_model() -> Transformer:
    """Return a model with the same parameters on every rank."""
    torch.manual_seed(0)
    return Transformer()


def make_batch(rank: int, length: int) -> Tensor:
    """Return one sequence of tokens, which differs between ranks."""
    dice = torch.Generator().manual_seed(1 + rank)
    return torch.randint(VOCABULARY, (1, length + 1), generator=dice)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Predict every next token."""
    found = model(batch[:, :-1])
    return cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())


def backward(model: nn.Module, batch: Tensor, share: float = 1.0) -> None:
    """Run forward and backward."""
    torch.autograd.backward([loss_of(model, batch) * share])


def make_step(
    seat: Seat,
    model: nn.Module,
    batch: Tensor,
    after_backward: Callable[[], object] = lambda: None,
) -> Callable[[], None]:
    """Return one step of training: forward, backward and the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        backward(model, batch)
        after_backward()
        optimizer.step()
        seat.settle()

    return step


def ddp(seat: Seat, _: int, *, length: int, kind: str) -> Task:
    """DDP with its defaults; only a "step", or an "unshared" one, sends anything."""
    os.environ["RINGLEADER_SHARED_BUCKETS"] = "0" if kind == "unshared" else "1"
    model = nn.parallel.DistributedDataParallel(make_model().to(seat.device))
    batch = make_batch(seat.rank, length).to(seat.device)

    def check() -> None:
        backward(model, batch)
        alone = make_model().to(seat.device)
        for rank in range(seat.ranks):
            each = make_batch(rank, length).to(seat.device)
            backward(alone, each, 1 / seat.ranks)
        for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            assert found.grad is not None
            assert wanted.grad is not None
            error = (found.grad - wanted.grad).abs().max().item()
            if error > 1e-4 * wanted.grad.abs().max().item() + 1e-7:
                raise ArithmeticError(f"a gradient is off by {error:g}")

    if kind in ("step", "unshared"):
        return Task(check, make_step(seat, model, batch))
    # A lambda: torch checks annotations, which are strings in this module.
    model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
    wait = dist.barrier if kind == "barrier" else lambda: None
    return Task(lambda: None, make_step(seat, model, batch, wait))


def _done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def fsdp(seat: Seat, _: int, *, length: int, kind: str) -> Task:
    """FSDP2, sharded by layer; "silent" is on a backend that only copies."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group: Any = dist.group.WORLD
    if kind == "silent":
        import_module("torch.testing._internal.distributed.fake_pg")  # registers it

        group = dist.new_group(backend="fake")
    mesh = DeviceMesh.from_group(group, seat.device.type)
    model = make_model().to(seat.device)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = make_batch(seat.rank, length).to(seat.device)

    def check() -> None:
        with torch.no_grad():
            found = loss_of(model, batch).item()
            wanted = loss_of(make_model().to(seat.device), batch).item()
        if abs(found - wanted) > 1e-4 * abs(wanted):
            raise ArithmeticError(f"the loss is {found} and not {wanted}")

    step = make_step(seat, model, batch)
    return Task((lambda: None) if kind == "silent" else check, step)


STRATEGIES: dict[str, MakeTask] = {"DDP": ddp, "FSDP2": fsdp}
Rounds = dict[str, list[float]]
"""Seconds of each round: "step", "silent" and their difference, "added"; "barrier" and
"unshared"."""


def measure(
    task: MakeTask, groups: Sequence[RankGroup], options: argparse.Namespace
) -> dict[str, Rounds]:
    """Time a step with and without communication in all groups, in turns."""
    rounds: dict[str, Rounds] = {}
    more = ["barrier"] if options.barrier and task is ddp else []
    kinds = {group.title: ["silent", *more, "step"] for group in groups}
    if options.unshared and task is ddp:
        kinds[OURS].append("unshared")
    steps = 1
    for group in groups:
        group.forget()
        names = kinds[group.title]
        for name in names:
            made = partial(task, length=options.length, kind=name)
            group.prepare(name, made)
            group.time(name, 2)
        rounds[group.title] = {name: [] for name in (*names, "added")}
        steps = max(steps, min(20, round(options.batch_s / group.time("silent", 2))))
    for number in range(options.rounds):
        for group in in_turns(groups, number):
            found, names = rounds[group.title], kinds[group.title]
            for name in names[:: -1 if number % 2 else 1]:
                found[name].append(group.time(name, steps))
            found["added"].append(found["step"][-1] - found["silent"][-1])
    return rounds


def row(rounds: Rounds) -> dict[str, object]:
    """Return the medians with their quartiles, and all rounds, in milliseconds."""
    found: dict[str, object] = {}
    for name, seconds in rounds.items():
        low, _, high = statistics.quantiles(seconds, n=4)
        found[name] = {
            "median_ms": round(statistics.median(seconds) * 1e3, 2),
            "quartiles_ms": [round(low * 1e3, 2), round(high * 1e3, 2)],
            "rounds_ms": [round(each * 1e3, 2) for each in seconds],
        }
    return found


def show(title: str, rounds: dict[str, Rounds]) -> None:
    """Print a line for each backend, and the ratios."""
    medians = {
        backend: {name: statistics.median(each) for name, each in found.items()}
        for backend, found in rounds.items()
    }
    for backend, found in rounds.items():
        cells = []
        for name in ("step", "silent", "added"):
            low, _, high = statistics.quantiles(found[name], n=4)
            spread = f"({in_words(low)} to {in_words(high)})"
            cells.append(f"{in_words(medians[backend][name]):>9} {spread:24}")
        print(f"{title:12} {backend:10} {' '.join(cells)}".rstrip(), flush=True)
    ours, gloo = medians[OURS], medians[GLOO]
    share = ours["added"] / gloo["added"] if gloo["added"] > 0 else float("nan")
    faster = gloo["step"] / ours["step"]
    print(
        f"{title:12} step {faster:.2f}x faster than Gloo; ours adds {share:.2f} of it"
    )
    for backend, found in medians.items():
        for name, what in (("barrier", "a barrier alone"), ("unshared", "unshared")):
            if name in found:
                added = in_words(found[name] - found["silent"])
                print(f"{title:12} {backend:10} {what} adds {added}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument(
        "--ranks", action="append", metavar="RxT", help="ranks x threads (2x1)"
    )
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--length", type=int, default=64, help="tokens per rank")
    made.add_argument("--batch-s", type=float, default=0.5, help="a round takes this")
    made.add_argument("-k", default="", metavar="REGEX", help="DDP or FSDP2 only")
    made.add_argument("--barrier", action="store_true", help="time DDP's, too")
    made.add_argument("--unshared", action="store_true", help="time our DDP's, too")
    made.add_argument("--no-file", action="store_true", help="write no results")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the results."""
    options = parse(arguments)
    load, rows = os.getloadavg()[0], {}
    head = ("step (quartiles)", "without communication", "added")
    print(f"{'':23} {' '.join(f'{text:34}' for text in head)}".rstrip())
    for shape in options.ranks or ["2x1"]:
        ranks, threads = map(int, shape.split("x"))
        groups = [
            RankGroup(
                Competitor(
                    title=name,
                    backend=name,
                    device=options.device,
                    ranks=ranks,
                    threads=threads,
                )
            )
            for name in (OURS, GLOO)
        ]
        try:
            for name, task in STRATEGIES.items():
                if re.search(options.k, name):
                    rounds = measure(task, groups, options)
                    show(f"{name} {shape}", rounds)
                    rows[f"{name} {shape}"] = {t: row(r) for t, r in rounds.items()}
        finally:
            for group in groups:
                group.stop()
    print(f"\nmedians of {options.rounds} rounds; load before {load:.1f}")
    results = {"machine": machine(), "load_before": round(load, 2), "rows": rows}
    if not options.no_file:
        place = "cuda" if options.device == "cuda" else f"{os.cpu_count()}-cores"
        save(dated(f"training-step-{place}"), results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
