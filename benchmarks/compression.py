"""What compression saves, costs and does to training, beside Gloo and uncompressed.

    sudo .venv/bin/python benchmarks/compression.py bytes       # at the interfaces
    sudo .venv/bin/python benchmarks/compression.py time        # per all_reduce
    sudo .venv/bin/python benchmarks/compression.py ddp         # steps per second
    sudo .venv/bin/python benchmarks/compression.py auto        # never slower?
    sudo .venv/bin/python benchmarks/compression.py convergence # loss, three seeds
    sudo .venv/bin/python benchmarks/compression.py clock       # loss against time
    .venv/bin/python benchmarks/compression.py plot tables

Hosts are network namespaces with cables of a given rate; loopback and shared memory are
processes of this machine. One process per rank holds Gloo and our group, and all
schemes take turns in it, in reversed order every other round, so that a disturbance of
the machine hits all of them. A time is that of the slowest rank; a ratio is the median
over rounds of Gloo's time, or the uncompressed one, divided by the scheme's in the same
round. After every scheme all ranks must hold the same bits.

Each part takes less than eight minutes, appends what it found to
benchmarks/results/compression-DATE.jsonl and says which bars hold.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringleader.cli.bench.system_info import describe
from ringleader.cli.worker_pool import WorkerPool
from ringleader.simulation.lan import VirtualHost, lan

WORKER = Path(__file__).with_name("compression_worker.py")
RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20

GLOO, PLAIN = "gloo", "plain"
SCHEMES = (
    "bf16",
    "fp16",
    "int8",
    "onebit",
    "topk:0.01",
    "randomk:0.01",
    "powersgd:2",
)
LANS = ("100mbit", "1gbit", "10gbit")
PLACES = (*LANS, "loopback", "shm")

LAN_RANKS, LOCAL_RANKS = 4, 2
"""Four hosts; but two ranks where they compete for the cores of this one machine."""

START_S, ANSWER_S = 120.0, 300.0
SETTLE_S = 0.1
"""Until the last acknowledgement has been counted."""

LOOK_S, QUIET = 2.0, 0.05
"""How long to look for others, and what is still quiet."""

Answers = list[Any]


@dataclass(slots=True)
class Site:
    """Ranks that are up, and the hosts they are on."""

    place: str
    size: int
    pool: WorkerPool
    hosts: list[VirtualHost]

    def ask(self, do: str, **task: object) -> Answers:
        """What every rank answers."""
        return self.pool.request({"do": do, **task}, ANSWER_S)

    def bytes_sent(self) -> int:
        """By all hosts so far, at their interfaces, headers included."""
        time.sleep(SETTLE_S)
        return sum(host.bytes_sent() for host in self.hosts)

    def time_calls(self, scheme: str, count: int = 1) -> list[float]:
        """Seconds of every all_reduce on its slowest rank."""
        answers = self.ask("calls", scheme=scheme, count=count)
        return [
            max(each) for each in zip(*(a["seconds"] for a in answers), strict=True)
        ]

    def time_median(self, scheme: str, count: int) -> float:
        """The usual one of ``count`` calls."""
        return statistics.median(self.time_calls(scheme, count))

    def time_steps(self, scheme: str, count: int) -> float:
        """Seconds per training step on the slowest rank."""
        answers = self.ask("steps", scheme=scheme, count=count)
        require_same(scheme, answers)
        return float(max(a["seconds"] for a in answers)) / count


@contextmanager
def site(place: str, size: int | None = None) -> Iterator[Site]:
    """Start the ranks of one place and connect them."""
    is_lan = place in LANS
    ranks = size or (LAN_RANKS if is_lan else LOCAL_RANKS)
    with ExitStack() as stack:
        hosts = (
            stack.enter_context(lan(hosts=ranks, rate=place)).hosts if is_lan else []
        )
        pool = stack.enter_context(WorkerPool("compression", ranks))
        for rank in range(ranks):
            argv = [sys.executable, str(WORKER), "--control", pool.address]
            who = ["--rank", str(rank), "--size", str(ranks)]
            pool.start([*argv, *who], hosts[rank].popen if is_lan else subprocess.Popen)
        pool.wait_connected(START_S)
        found = Site(place, ranks, pool, hosts)
        answers = found.ask(
            "open",
            transport="auto" if place == "shm" else "tcp",
            interface="eth0" if is_lan else "lo",
            address="" if is_lan else "127.0.0.1",
            store=(pool.directory / "store").as_uri(),
        )
        wanted = "shm" if place == "shm" else "tcp"
        if any(a["links"] != [wanted] for a in answers):
            sys.exit(f"{place}: ranks are linked by {answers[0]['links']}")
        yield found


def require_same(scheme: str, answers: Answers) -> None:
    """All ranks hold the same bits, or nothing else matters."""
    if len({a["checksum"] for a in answers}) != 1:
        sys.exit(f"{scheme}: the ranks hold different values")


# -- what was found ----------------------------------------------------------------


@dataclass(slots=True)
class Book:
    """Prints and records what is found, and whether it is enough."""

    path: Path
    machine: dict[str, Any] = field(default_factory=describe)
    missed: list[str] = field(default_factory=list)
    busy: float = 0.0
    """The share of the machine that others used before or after what is noted."""

    def look(self, *, is_first: bool = False) -> None:
        """See whether others use the machine; only while our own ranks sleep."""
        self.busy = max(0.0 if is_first else self.busy, busy_share(LOOK_S))
        if self.busy > QUIET:
            print(f"  NOT QUIET: others use {self.busy:.0%} of the machine", flush=True)

    def note(self, part: str, text: str, **found: object) -> None:
        """One line for people, one for programs."""
        print(f"  {text}", flush=True)
        self._append({"part": part, **found})

    def judge(
        self,
        part: str,
        what: str,
        found: float,
        *,
        least: float = 0.0,
        most: float = 0.0,
    ) -> None:
        """Hold a figure against its bar: at least, or at most."""
        holds = found <= most if most else found >= least
        bar = f"<= {most:g}" if most else f">= {least:g}"
        word = "holds" if holds else "MISSED"
        print(f"  {what}: {found:.4g}, bar {bar}: {word}", flush=True)
        self._append(
            {"part": part, "bar": what, "found": found, "wanted": bar, "holds": holds}
        )
        if not holds:
            self.missed.append(what)

    def _append(self, record: dict[str, Any]) -> None:
        about = {"at": time.strftime("%F %T"), "busy": round(self.busy, 3)}
        keys = ("cpu", "cores", "python")
        machine = {key: self.machine[key] for key in keys}
        machine["torch"] = self.machine["versions"]["torch"]
        numbers = {key: None if is_wild(v) else v for key, v in record.items()}
        with self.path.open("a") as file:
            file.write(json.dumps({**about, "machine": machine, **numbers}) + "\n")


def busy_share(seconds: float) -> float:
    """How much of all cores was used in the next ``seconds``."""
    before = cpu_times()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, cpu_times(), strict=True)]
    idle = spent[3] + spent[4]  # idle, and waiting for a disk
    return 1 - idle / max(1, sum(spent))


def cpu_times() -> list[int]:
    """Ticks of all cores so far: user, nice, system, idle, iowait and so on."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    return [int(word) for word in first.split()[1:9]]


def is_wild(value: object) -> bool:
    """Whether it is no finite number, which JSON cannot say."""
    return isinstance(value, float) and not math.isfinite(value)


def take_turns(
    schemes: Sequence[str], rounds: int, turn: Callable[[str], float]
) -> dict[str, list[float]]:
    """The seconds of every scheme in every round; one round before them warms up."""
    found: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    for scheme in schemes:
        turn(scheme)
    for number in range(rounds):
        for scheme in schemes[:: -1 if number % 2 else 1]:
            found[scheme].append(turn(scheme))
    return found


def ratio(found: dict[str, list[float]], of: str, to: str) -> float:
    """How many times faster ``of`` is than ``to``, round by round."""
    pairs = zip(found[to], found[of], strict=True)
    return statistics.median(slow / fast for slow, fast in pairs)


# -- the parts ---------------------------------------------------------------------

BYTES_BARS = {"int8": 3.8, "bf16": 2.0, "onebit": 28.0, "topk:0.01": 20.0}
"""Times fewer than uncompressed, 64 MiB of float32."""
POWERSGD_BAR = 40.0
"""The same for powersgd:2 on the gradients of a model."""
MODEL = {"width": 512, "layers": 4}
"""A transformer of 13 million parameters."""


def count_bytes(book: Book, options: argparse.Namespace) -> None:
    """Bytes that leave the hosts, and the error of one call, for every scheme."""
    for source in ("noise", "gradients"):
        with site("1gbit") as here:
            task = {"bytes": options.mib * MIB} if source == "noise" else MODEL
            size_bytes = here.ask(source, **task)[0]["bytes"]
            print(f"bytes: {source}, {size_bytes / MIB:.1f} MiB, {here.size} hosts")
            plain = 0.0
            for scheme in (PLAIN, GLOO, *SCHEMES):
                here.time_calls(scheme)
                checked = here.ask("check", scheme=scheme)
                require_same(scheme, checked)
                before = here.bytes_sent()
                here.time_calls(scheme, 2)
                sent = (here.bytes_sent() - before) / 2 / here.size
                plain = plain or sent
                error = float(checked[0]["off"])
                text = f"{scheme:13} {sent / 1e6:9.3f} MB per host"
                book.note(
                    "bytes",
                    f"{text} {plain / sent:7.2f}x fewer, error {error:.2g}",
                    source=source,
                    scheme=scheme,
                    size_bytes=size_bytes,
                    ranks=here.size,
                    sent_bytes=sent,
                    fewer=plain / sent,
                    error=error,
                )
                judge_bytes(book, source, scheme, plain / sent)


def judge_bytes(book: Book, source: str, scheme: str, fewer: float) -> None:
    what = f"{scheme}: times fewer bytes, {source}"
    if source == "noise" and scheme in BYTES_BARS:
        # To two digits: a retransmission or an ARP more makes bf16 1.9999.
        book.judge("bytes", what, round(fewer, 2), least=BYTES_BARS[scheme])
    if source == "gradients" and scheme == "powersgd:2":
        book.judge("bytes", what, fewer, least=POWERSGD_BAR)


TIME_BAR = 3.6
"""int8 at 1 Gbit/s, times faster than Gloo."""
TIME_ROUNDS = {"100mbit": 3, "1gbit": 7, "10gbit": 9, "loopback": 9, "shm": 9}


def time_calls(book: Book, options: argparse.Namespace) -> None:
    """One all_reduce by every scheme, in every place."""
    schemes = (GLOO, PLAIN, *SCHEMES, "auto")
    for place in options.where or PLACES:
        with site(place) as here:
            size_bytes = here.ask("noise", bytes=options.mib * MIB)[0]["bytes"]
            print(f"time: {place}, {size_bytes / MIB:g} MiB, {here.size} ranks")
            book.look(is_first=True)
            rounds = options.rounds or TIME_ROUNDS[place]
            found = take_turns(schemes, rounds, lambda s: here.time_calls(s)[0])
            book.look()
            for scheme in schemes:
                took_s = statistics.median(found[scheme])
                faster = ratio(found, scheme, GLOO)
                over_plain = ratio(found, scheme, PLAIN)
                text = f"{scheme:13} {took_s * 1e3:9.1f} ms {faster:6.2f}x Gloo"
                book.note(
                    "time",
                    f"{text} {over_plain:6.2f}x uncompressed",
                    place=place,
                    scheme=scheme,
                    size_bytes=size_bytes,
                    ranks=here.size,
                    median_s=took_s,
                    faster_than_gloo=faster,
                    faster_than_plain=over_plain,
                    rounds_s=found[scheme],
                )
        if place == "1gbit":
            faster = ratio(found, "int8", GLOO)
            book.judge("time", "int8 at 1gbit, times Gloo", faster, least=TIME_BAR)


DDP_SCHEMES = (
    GLOO,
    PLAIN,
    "bf16",
    "int8",
    "topk:0.01",
    "powersgd:2",
    "auto",
    "alone",
)
"""The last does not communicate: with more ranks than cores it is a bound, too."""
DDP_BARS = {"int8": 2.5, "powersgd:2": 5.0}
"""Times Gloo's steps per second at 1 Gbit/s."""


def time_ddp(book: Book, options: argparse.Namespace) -> None:
    """Training of a model whose step is mostly communication."""
    for place in options.where or LANS:
        with site(place) as here:
            for scheme in DDP_SCHEMES:
                made = here.ask("model", scheme=scheme, **shape(options))
            parameters = int(made[0]["parameters"])
            print(
                f"ddp: {place}, {parameters / 1e6:.1f} M parameters, {here.size} ranks"
            )
            book.look(is_first=True)
            found = turns_of_steps(here, options.rounds or 5)
            book.look()
        for scheme in DDP_SCHEMES:
            step_s, faster = (
                statistics.median(found[scheme]),
                ratio(found, scheme, GLOO),
            )
            text = f"{scheme:13} {1 / step_s:7.2f} steps per second"
            book.note(
                "ddp",
                f"{text} {faster:6.2f}x Gloo",
                place=place,
                scheme=scheme,
                parameters=parameters,
                ranks=here.size,
                step_s=step_s,
                faster_than_gloo=faster,
                rounds_s=found[scheme],
            )
        if place == "1gbit":
            for scheme, bar in DDP_BARS.items():
                what = f"DDP with {scheme} at 1gbit, times Gloo's steps per second"
                book.judge("ddp", what, ratio(found, scheme, GLOO), least=bar)


def turns_of_steps(here: Site, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every scheme, as many steps at a time as fill a turn."""
    counts = step_counts(here, DDP_SCHEMES)
    return take_turns(
        DDP_SCHEMES, rounds, lambda scheme: here.time_steps(scheme, counts[scheme])
    )


def step_counts(
    here: Site, schemes: Sequence[str], turn_s: float = 1.0
) -> dict[str, int]:
    """How many steps fill a turn; DDP arranges its buckets anew after the first."""
    counts = {}
    for scheme in schemes:
        here.time_steps(scheme, 2)
        counts[scheme] = max(2, min(50, round(turn_s / here.time_steps(scheme, 2))))
    return counts


AUTO_BAR = 1.05
"""At most this times the uncompressed time."""
AUTO_SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
AUTO_TURN_S, AUTO_MEASURE_S = 0.25, 14.0
"""How long a turn and a measure take, so that five places take seven minutes."""

Turn = Callable[[str, int], float]
"""(scheme, how often) -> seconds of one."""


def check_auto(book: Book, options: argparse.Namespace) -> None:
    """Where compression loses, "auto" must not compress."""
    for place in options.where or PLACES:
        with site(place) as here:
            print(f"auto: {place}, {here.size} ranks")
            for size_bytes in AUTO_SIZES:
                here.ask("noise", bytes=size_bytes)
                what = f"all_reduce of {size_bytes >> 10} KiB"
                judge_auto(book, here, what, here.time_median)
            for scheme in (PLAIN, "auto"):
                here.ask("model", scheme=scheme, **shape(options))
            judge_auto(book, here, "DDP step", here.time_steps)


def judge_auto(book: Book, here: Site, what: str, turn: Turn) -> None:
    """Take turns with the uncompressed one for a while."""
    schemes = (PLAIN, "auto")
    book.look(is_first=True)
    once_s = 0.0
    for scheme in schemes * 2:  # the first is cold
        once_s = turn(scheme, 2)
    count = max(1, min(200, round(AUTO_TURN_S / once_s)))
    rounds = max(5, min(25, round(AUTO_MEASURE_S / (2 * count * once_s))))
    found = take_turns(schemes, rounds, lambda scheme: turn(scheme, count))
    book.look()
    slower = 1 / ratio(found, "auto", PLAIN)
    times = {scheme: statistics.median(found[scheme]) for scheme in schemes}
    book.note(
        "auto",
        f"{what}: {times[PLAIN] * 1e3:.2f} ms, auto {times['auto'] * 1e3:.2f} ms",
        place=here.place,
        what=what,
        ranks=here.size,
        plain_s=times[PLAIN],
        auto_s=times["auto"],
        slower=slower,
        rounds_s=found,
    )
    text = f"auto at {here.place}, {what}, times the uncompressed time"
    book.judge("auto", text, slower, most=AUTO_BAR)


TASKS = ("digits", "characters")
SEEDS = (3, 4, 5)
"""Not those that the tasks' steps and rates were chosen with, which were 0, 1 and 2."""
LOSS_BARS = {
    "bf16": 0.005,
    "fp16": 0.005,
    "int8": 0.005,
    "powersgd:4": 0.02,
    "topk:0.01": 0.02,
}
"""How far the final loss may be from the uncompressed one, as a part of it."""
NO_BAR = ("onebit", "randomk:0.1", "auto")
BUG_BARS = {
    "truncating int8": 0.005,
    "1/p with feedback": 0.02,
    "residual dropped, top-k": 0.02,
    "residual dropped, one bit": 0.02,
}
"""The bars of what they pretend to be; each must be missed."""


def compare_losses(book: Book, options: argparse.Namespace) -> None:
    """Two real tasks, three seeds, every scheme; and the bugs that must be seen.

    The text of one task is our documentation, so figures move a little with it.
    """
    schemes = (GLOO, *LOSS_BARS, *NO_BAR, *BUG_BARS)
    for task in TASKS:
        print(f"convergence: {task}")
        off: dict[str, list[float]] = {scheme: [] for scheme in schemes}
        with site("shm") as here:
            for seed in options.seeds:
                first, plain = final(here, task, PLAIN, seed)
                book.note(
                    "convergence",
                    f"seed {seed}: uncompressed, from {first:.3f} to {plain:.4f}",
                    task=task,
                    scheme=PLAIN,
                    seed=seed,
                    first=first,
                    final=plain,
                )
                for scheme in schemes:
                    _, loss = final(here, task, scheme, seed)
                    # A loss that is no number is as far away as can be.
                    is_lost = is_wild(loss)
                    off[scheme].append(math.inf if is_lost else loss / plain - 1)
                    book.note(
                        "convergence",
                        f"seed {seed}: {scheme:26} {loss:.4f} {loss / plain - 1:+.3%}",
                        task=task,
                        scheme=scheme,
                        seed=seed,
                        final=loss,
                        off=loss / plain - 1,
                    )
        judge_losses(book, task, off)


def judge_losses(book: Book, task: str, off: dict[str, list[float]]) -> None:
    """Every seed counts for itself."""
    for scheme, bar in LOSS_BARS.items():
        worst = max(abs(each) for each in off[scheme])
        book.judge("convergence", f"{task} with {scheme}: loss off", worst, most=bar)
    for scheme, bar in BUG_BARS.items():
        mildest = min(abs(each) for each in off[scheme])
        what = f"{task} with {scheme}, a bug: loss off"
        book.judge("convergence", what, mildest, least=bar)


def final(here: Site, task: str, scheme: str, seed: int) -> tuple[float, float]:
    """The loss at the first step and at the end, over all ranks."""
    answers = here.ask("learn", task=task, scheme=scheme, seed=seed)
    require_same(scheme, answers)
    losses = mean_losses(answers)
    tail = losses[-len(losses) // 5 :]
    return losses[0], sum(tail) / len(tail)


def mean_losses(answers: Answers) -> list[float]:
    """Of all ranks, step by step."""
    steps = zip(*(answer["losses"] for answer in answers), strict=True)
    return [sum(each) / len(each) for each in steps]


CLOCK_SCHEMES = (GLOO, PLAIN, "bf16", "int8", "topk:0.01", "powersgd:4", "auto")
CLOCK_STEPS = {"100mbit": 120, "1gbit": 300}
CLOCK_MODEL = {"width": 128, "layers": 4}
"""A transformer of 0.8 million parameters."""


def race(book: Book, options: argparse.Namespace) -> None:
    """The loss of a real task against the clock: equally many steps, other times."""
    for place in options.where or CLOCK_STEPS:
        with site(place) as here:
            steps = CLOCK_STEPS[place]
            print(f"clock: {place}, characters, {steps} steps, {here.size} ranks")
            took: dict[str, float] = {}
            for scheme in CLOCK_SCHEMES:
                book.look(is_first=True)
                answers = here.ask(
                    "learn", scheme=scheme, seed=0, steps=steps, **CLOCK_MODEL
                )
                book.look()
                require_same(scheme, answers)
                losses, seconds = mean_losses(answers), answers[0]["seconds"]
                took[scheme] = seconds[-1]
                end = statistics.fmean(losses[-steps // 10 :])
                text = f"{scheme:13} {seconds[-1]:7.1f} s, loss {end:.3f}"
                book.note(
                    "clock",
                    f"{text}, {took[GLOO] / seconds[-1]:.2f}x Gloo",
                    place=place,
                    scheme=scheme,
                    ranks=here.size,
                    seconds=seconds,
                    losses=[round(loss, 5) for loss in losses],
                )


def shape(options: argparse.Namespace) -> dict[str, int]:
    """Of the model whose step is communication."""
    return {"width": options.width, "layers": options.layers}


def draw(book: Book, _options: argparse.Namespace) -> None:
    """The latest of all parts as a picture beside the records."""
    from compression_report import save_plot

    save_plot(book.path, book.path.with_suffix(".png"))


def write_tables(book: Book, _options: argparse.Namespace) -> None:
    """The tables of docs/compression.md."""
    from compression_report import tables

    print(tables(book.path))


PARTS: dict[str, Callable[[Book, argparse.Namespace], None]] = {
    "bytes": count_bytes,
    "time": time_calls,
    "ddp": time_ddp,
    "auto": check_auto,
    "convergence": compare_losses,
    "clock": race,
    "plot": draw,
    "tables": write_tables,
}


def main() -> int:
    """Run the parts that were named; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="+", choices=PARTS)
    parser.add_argument("--where", action="append", choices=PLACES)
    parser.add_argument("--mib", type=int, default=64, help="of one all_reduce")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--width", type=int, default=1024, help="of the DDP model")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, help="the file of the records")
    options = parser.parse_args()
    today = RESULTS / f"compression-{time.strftime('%F')}.jsonl"
    book = Book(options.out or today)
    for part in options.part:
        started_s = time.monotonic()
        PARTS[part](book, options)
        print(f"{part}: {time.monotonic() - started_s:.0f} s", flush=True)
    for what in book.missed:
        print(f"MISSED: {what}")
    return int(bool(book.missed))


if __name__ == "__main__":
    sys.exit(main())
