"""Measures compression schemes next to Gloo and uncompressed all_reduce.

    sudo .venv/bin/python benchmarks/compression.py bytes       # bytes at the
    interfaces sudo .venv/bin/python benchmarks/compression.py time        # time per
    all_reduce sudo .venv/bin/python benchmarks/compression.py ddp         # steps per
    second sudo .venv/bin/python benchmarks/compression.py auto        # "auto" must not
    be slower sudo .venv/bin/python benchmarks/compression.py convergence # loss, three
    seeds sudo .venv/bin/python benchmarks/compression.py clock       # loss over time
    .venv/bin/python benchmarks/compression.py plot tables

Hosts are network namespaces with links of a given rate; with loopback and shared memory
all ranks are on this machine. One process per rank holds Gloo's group and ours, and all
schemes take turns in it, in reversed order every other round, so that a disturbance of
the machine affects all of them. A time is that of the slowest rank; a ratio is the
median over rounds of Gloo's time, or the uncompressed one, divided by the scheme's in
the same round. After every scheme all ranks must hold the same bits.

Each part takes less than eight minutes, appends its results to
benchmarks/results/compression-DATE.jsonl and prints which limits hold.
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
"""Four hosts on a LAN, but two ranks where they compete for the same cores."""

START_S, ANSWER_S = 120.0, 300.0
SETTLE_S = 0.1
"""Wait for the last acknowledgements to be counted."""

LOOK_S, QUIET = 2.0, 0.05
"""How long to measure the load of other processes, and what counts as quiet."""

Answers = list[Any]


@dataclass(slots=True)
class RankSession:
    """Running ranks and their hosts."""

    place: str
    size: int
    pool: WorkerPool
    hosts: list[VirtualHost]

    def ask(self, do: str, **task: object) -> Answers:
        """Send a task to every rank and return the replies."""
        return self.pool.request({"do": do, **task}, ANSWER_S)

    def bytes_sent(self) -> int:
        """Bytes sent by all hosts so far, headers included."""
        time.sleep(SETTLE_S)
        return sum(host.bytes_sent() for host in self.hosts)

    def time_calls(self, scheme: str, count: int = 1) -> list[float]:
        """Return the seconds of every all_reduce on its slowest rank."""
        answers = self.ask("calls", scheme=scheme, count=count)
        return [
            max(each) for each in zip(*(a["seconds"] for a in answers), strict=True)
        ]

    def time_median(self, scheme: str, count: int) -> float:
        """Return the median of ``count`` calls."""
        return statistics.median(self.time_calls(scheme, count))

    def time_steps(self, scheme: str, count: int) -> float:
        """Return the seconds per training step on the slowest rank."""
        answers = self.ask("steps", scheme=scheme, count=count)
        require_same(scheme, answers)
        return float(max(a["seconds"] for a in answers)) / count


@contextmanager
def site(place: str, size: int | None = None) -> Iterator[RankSession]:
    """Start and connect the ranks of one environment."""
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
        found = RankSession(place, ranks, pool, hosts)
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
    """Exit unless all ranks hold the same bits."""
    if len({a["checksum"] for a in answers}) != 1:
        sys.exit(f"{scheme}: the ranks hold different values")


# -- results ----------------------------------------------------------------


@dataclass(slots=True)
class ResultLog:
    """Prints and records results, and whether they meet their limits."""

    path: Path
    machine: dict[str, Any] = field(default_factory=describe)
    missed: list[str] = field(default_factory=list)
    busy: float = 0.0
    """Share of the machine that other processes used before or after a measurement."""

    def look(self, *, is_first: bool = False) -> None:
        """Measure the load of other processes, while our ranks sleep."""
        self.busy = max(0.0 if is_first else self.busy, busy_share(LOOK_S))
        if self.busy > QUIET:
            print(f"  NOT QUIET: others use {self.busy:.0%} of the machine", flush=True)

    def note(self, part: str, text: str, **found: object) -> None:
        """Print a line of text and append a record."""
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
        """Compare a value with its limit: at least, or at most."""
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
    """Measure the share of all cores that is used during ``seconds``."""
    before = cpu_times()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, cpu_times(), strict=True)]
    idle = spent[3] + spent[4]  # idle and iowait
    return 1 - idle / max(1, sum(spent))


def cpu_times() -> list[int]:
    """Return the ticks of all cores: user, nice, system, idle, iowait and so on."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    return [int(word) for word in first.split()[1:9]]


def is_wild(value: object) -> bool:
    """Whether a value is not finite, which JSON cannot represent."""
    return isinstance(value, float) and not math.isfinite(value)


def take_turns(
    schemes: Sequence[str], rounds: int, turn: Callable[[str], float]
) -> dict[str, list[float]]:
    """Return the seconds of every scheme in every round, after a warm-up round."""
    found: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    for scheme in schemes:
        turn(scheme)
    for number in range(rounds):
        for scheme in schemes[:: -1 if number % 2 else 1]:
            found[scheme].append(turn(scheme))
    return found


def ratio(found: dict[str, list[float]], of: str, to: str) -> float:
    """Return how many times faster ``of`` is than ``to`` (median of the rounds)."""
    pairs = zip(found[to], found[of], strict=True)
    return statistics.median(slow / fast for slow, fast in pairs)


# -- the parts ---------------------------------------------------------------------

BYTES_BARS = {"int8": 3.8, "bf16": 2.0, "onebit": 28.0, "topk:0.01": 20.0}
"""Minimum reduction of bytes relative to uncompressed, for 64 MiB of float32."""
POWERSGD_BAR = 40.0
"""Minimum reduction of bytes of powersgd:2 on the gradients of a model."""
MODEL = {"width": 512, "layers": 4}
"""Transformer of 13 million parameters."""


def count_bytes(log: ResultLog, options: argparse.Namespace) -> None:
    """Measure the bytes that leave the hosts and the error of one call, per scheme."""
    for source in ("noise", "gradients"):
        with site("1gbit") as session:
            task = {"bytes": options.mib * MIB} if source == "noise" else MODEL
            size_bytes = session.ask(source, **task)[0]["bytes"]
            print(f"bytes: {source}, {size_bytes / MIB:.1f} MiB, {session.size} hosts")
            plain = 0.0
            for scheme in (PLAIN, GLOO, *SCHEMES):
                session.time_calls(scheme)
                checked = session.ask("check", scheme=scheme)
                require_same(scheme, checked)
                before = session.bytes_sent()
                session.time_calls(scheme, 2)
                sent = (session.bytes_sent() - before) / 2 / session.size
                plain = plain or sent
                error = float(checked[0]["off"])
                text = f"{scheme:13} {sent / 1e6:9.3f} MB per host"
                log.note(
                    "bytes",
                    f"{text} {plain / sent:7.2f}x fewer, error {error:.2g}",
                    source=source,
                    scheme=scheme,
                    size_bytes=size_bytes,
                    ranks=session.size,
                    sent_bytes=sent,
                    fewer=plain / sent,
                    error=error,
                )
                judge_bytes(log, source, scheme, plain / sent)


def judge_bytes(log: ResultLog, source: str, scheme: str, fewer: float) -> None:
    what = f"{scheme}: times fewer bytes, {source}"
    if source == "noise" and scheme in BYTES_BARS:
        # Rounded: one more retransmission or ARP packet makes bf16 1.9999.
        log.judge("bytes", what, round(fewer, 2), least=BYTES_BARS[scheme])
    if source == "gradients" and scheme == "powersgd:2":
        log.judge("bytes", what, fewer, least=POWERSGD_BAR)


TIME_BAR = 3.6
"""Minimum speed of int8 at 1 Gbit/s relative to Gloo."""
TIME_ROUNDS = {"100mbit": 3, "1gbit": 7, "10gbit": 9, "loopback": 9, "shm": 9}


def time_calls(log: ResultLog, options: argparse.Namespace) -> None:
    """Time one all_reduce with every scheme in every environment."""
    schemes = (GLOO, PLAIN, *SCHEMES, "auto")
    for place in options.where or PLACES:
        with site(place) as session:
            size_bytes = session.ask("noise", bytes=options.mib * MIB)[0]["bytes"]
            print(f"time: {place}, {size_bytes / MIB:g} MiB, {session.size} ranks")
            log.look(is_first=True)
            rounds = options.rounds or TIME_ROUNDS[place]
            found = take_turns(schemes, rounds, lambda s: session.time_calls(s)[0])
            log.look()
            for scheme in schemes:
                took_s = statistics.median(found[scheme])
                faster = ratio(found, scheme, GLOO)
                over_plain = ratio(found, scheme, PLAIN)
                text = f"{scheme:13} {took_s * 1e3:9.1f} ms {faster:6.2f}x Gloo"
                log.note(
                    "time",
                    f"{text} {over_plain:6.2f}x uncompressed",
                    place=place,
                    scheme=scheme,
                    size_bytes=size_bytes,
                    ranks=session.size,
                    median_s=took_s,
                    faster_than_gloo=faster,
                    faster_than_plain=over_plain,
                    rounds_s=found[scheme],
                )
        if place == "1gbit":
            faster = ratio(found, "int8", GLOO)
            log.judge("time", "int8 at 1gbit, times Gloo", faster, least=TIME_BAR)


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
"""The last scheme does not communicate: the bound with more ranks than cores."""
DDP_BARS = {"int8": 2.5, "powersgd:2": 5.0}
"""Minimum steps per second at 1 Gbit/s relative to Gloo."""


def time_ddp(log: ResultLog, options: argparse.Namespace) -> None:
    """Time the training of a model whose steps are mostly communication."""
    for place in options.where or LANS:
        with site(place) as session:
            for scheme in DDP_SCHEMES:
                made = session.ask("model", scheme=scheme, **shape(options))
            parameters = int(made[0]["parameters"])
            print(
                f"ddp: {place}, {parameters / 1e6:.1f} M parameters, "
                f"{session.size} ranks"
            )
            log.look(is_first=True)
            found = turns_of_steps(session, options.rounds or 5)
            log.look()
        for scheme in DDP_SCHEMES:
            step_s, faster = (
                statistics.median(found[scheme]),
                ratio(found, scheme, GLOO),
            )
            text = f"{scheme:13} {1 / step_s:7.2f} steps per second"
            log.note(
                "ddp",
                f"{text} {faster:6.2f}x Gloo",
                place=place,
                scheme=scheme,
                parameters=parameters,
                ranks=session.size,
                step_s=step_s,
                faster_than_gloo=faster,
                rounds_s=found[scheme],
            )
        if place == "1gbit":
            for scheme, bar in DDP_BARS.items():
                what = f"DDP with {scheme} at 1gbit, times Gloo's steps per second"
                log.judge("ddp", what, ratio(found, scheme, GLOO), least=bar)


def turns_of_steps(session: RankSession, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of every scheme; a turn has many steps."""
    counts = step_counts(session, DDP_SCHEMES)
    return take_turns(
        DDP_SCHEMES, rounds, lambda scheme: session.time_steps(scheme, counts[scheme])
    )


def step_counts(
    session: RankSession, schemes: Sequence[str], turn_s: float = 1.0
) -> dict[str, int]:
    """Return how many steps fill a turn; DDP rebuilds its buckets after the first."""
    counts = {}
    for scheme in schemes:
        session.time_steps(scheme, 2)
        counts[scheme] = max(2, min(50, round(turn_s / session.time_steps(scheme, 2))))
    return counts


AUTO_BAR = 1.05
"""Maximum time relative to uncompressed."""
AUTO_SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
AUTO_TURN_S, AUTO_MEASURE_S = 0.25, 14.0
"""Length of a turn and of a measurement; five environments take seven minutes."""

Turn = Callable[[str, int], float]
"""(scheme, number of calls) -> seconds per call."""


def check_auto(log: ResultLog, options: argparse.Namespace) -> None:
    """Check that "auto" is not slower where compression does not pay."""
    for place in options.where or PLACES:
        with site(place) as session:
            print(f"auto: {place}, {session.size} ranks")
            for size_bytes in AUTO_SIZES:
                session.ask("noise", bytes=size_bytes)
                what = f"all_reduce of {size_bytes >> 10} KiB"
                judge_auto(log, session, what, session.time_median)
            for scheme in (PLAIN, "auto"):
                session.ask("model", scheme=scheme, **shape(options))
            judge_auto(log, session, "DDP step", session.time_steps)


def judge_auto(log: ResultLog, session: RankSession, what: str, turn: Turn) -> None:
    """Measure "auto" and uncompressed in turns."""
    schemes = (PLAIN, "auto")
    log.look(is_first=True)
    once_s = 0.0
    for scheme in schemes * 2:  # the first is cold
        once_s = turn(scheme, 2)
    count = max(1, min(200, round(AUTO_TURN_S / once_s)))
    rounds = max(5, min(25, round(AUTO_MEASURE_S / (2 * count * once_s))))
    found = take_turns(schemes, rounds, lambda scheme: turn(scheme, count))
    log.look()
    slower = 1 / ratio(found, "auto", PLAIN)
    times = {scheme: statistics.median(found[scheme]) for scheme in schemes}
    log.note(
        "auto",
        f"{what}: {times[PLAIN] * 1e3:.2f} ms, auto {times['auto'] * 1e3:.2f} ms",
        place=session.place,
        what=what,
        ranks=session.size,
        plain_s=times[PLAIN],
        auto_s=times["auto"],
        slower=slower,
        rounds_s=found,
    )
    text = f"auto at {session.place}, {what}, times the uncompressed time"
    log.judge("auto", text, slower, most=AUTO_BAR)


TASKS = ("digits", "characters")
SEEDS = (3, 4, 5)
"""Not the seeds 0, 1 and 2, with which steps and rates of the tasks were chosen."""
LOSS_BARS = {
    "bf16": 0.005,
    "fp16": 0.005,
    "int8": 0.005,
    "powersgd:4": 0.02,
    "topk:0.01": 0.02,
}
"""Maximum difference of the final loss from the uncompressed one, relative to it."""
NO_BAR = ("onebit", "randomk:0.1", "auto")
BUG_BARS = {
    "truncating int8": 0.005,
    "1/p with feedback": 0.02,
    "residual dropped, top-k": 0.02,
    "residual dropped, one bit": 0.02,
}
"""Limits of the schemes they imitate, each of which they must miss."""


def compare_losses(log: ResultLog, options: argparse.Namespace) -> None:
    """Train two tasks with three seeds and every scheme, and with injected bugs.

    The text of one task is our documentation, so figures move a little with it.
    """
    schemes = (GLOO, *LOSS_BARS, *NO_BAR, *BUG_BARS)
    for task in TASKS:
        print(f"convergence: {task}")
        off: dict[str, list[float]] = {scheme: [] for scheme in schemes}
        with site("shm") as session:
            for seed in options.seeds:
                first, plain = final(session, task, PLAIN, seed)
                log.note(
                    "convergence",
                    f"seed {seed}: uncompressed, from {first:.3f} to {plain:.4f}",
                    task=task,
                    scheme=PLAIN,
                    seed=seed,
                    first=first,
                    final=plain,
                )
                for scheme in schemes:
                    _, loss = final(session, task, scheme, seed)
                    # A loss that is not finite counts as the largest difference.
                    is_lost = is_wild(loss)
                    off[scheme].append(math.inf if is_lost else loss / plain - 1)
                    log.note(
                        "convergence",
                        f"seed {seed}: {scheme:26} {loss:.4f} {loss / plain - 1:+.3%}",
                        task=task,
                        scheme=scheme,
                        seed=seed,
                        final=loss,
                        off=loss / plain - 1,
                    )
        judge_losses(log, task, off)


def judge_losses(log: ResultLog, task: str, off: dict[str, list[float]]) -> None:
    """Compare the loss of every seed with the limit."""
    for scheme, bar in LOSS_BARS.items():
        worst = max(abs(each) for each in off[scheme])
        log.judge("convergence", f"{task} with {scheme}: loss off", worst, most=bar)
    for scheme, bar in BUG_BARS.items():
        mildest = min(abs(each) for each in off[scheme])
        what = f"{task} with {scheme}, a bug: loss off"
        log.judge("convergence", what, mildest, least=bar)


def final(
    session: RankSession, task: str, scheme: str, seed: int
) -> tuple[float, float]:
    """Return the mean loss over all ranks at the first step and at the end."""
    answers = session.ask("learn", task=task, scheme=scheme, seed=seed)
    require_same(scheme, answers)
    losses = mean_losses(answers)
    tail = losses[-len(losses) // 5 :]
    return losses[0], sum(tail) / len(tail)


def mean_losses(answers: Answers) -> list[float]:
    """Return the mean loss over all ranks, step by step."""
    steps = zip(*(answer["losses"] for answer in answers), strict=True)
    return [sum(each) / len(each) for each in steps]


CLOCK_SCHEMES = (GLOO, PLAIN, "bf16", "int8", "topk:0.01", "powersgd:4", "auto")
CLOCK_STEPS = {"100mbit": 120, "1gbit": 300}
CLOCK_MODEL = {"width": 128, "layers": 4}
"""Transformer of 0.8 million parameters."""


def race(log: ResultLog, options: argparse.Namespace) -> None:
    """Record the loss over time, with the same number of steps per scheme."""
    for place in options.where or CLOCK_STEPS:
        with site(place) as session:
            steps = CLOCK_STEPS[place]
            print(f"clock: {place}, characters, {steps} steps, {session.size} ranks")
            took: dict[str, float] = {}
            for scheme in CLOCK_SCHEMES:
                log.look(is_first=True)
                answers = session.ask(
                    "learn", scheme=scheme, seed=0, steps=steps, **CLOCK_MODEL
                )
                log.look()
                require_same(scheme, answers)
                losses, seconds = mean_losses(answers), answers[0]["seconds"]
                took[scheme] = seconds[-1]
                end = statistics.fmean(losses[-steps // 10 :])
                text = f"{scheme:13} {seconds[-1]:7.1f} s, loss {end:.3f}"
                log.note(
                    "clock",
                    f"{text}, {took[GLOO] / seconds[-1]:.2f}x Gloo",
                    place=place,
                    scheme=scheme,
                    ranks=session.size,
                    seconds=seconds,
                    losses=[round(loss, 5) for loss in losses],
                )


def shape(options: argparse.Namespace) -> dict[str, int]:
    """Return the shape of the model whose steps are mostly communication."""
    return {"width": options.width, "layers": options.layers}


def draw(log: ResultLog, _options: argparse.Namespace) -> None:
    """Plot the latest results of all parts next to the records."""
    from compression_report import save_plot

    save_plot(log.path, log.path.with_suffix(".png"))


def write_tables(log: ResultLog, _options: argparse.Namespace) -> None:
    """Print the tables of docs/compression.md."""
    from compression_report import tables

    print(tables(log.path))


PARTS: dict[str, Callable[[ResultLog, argparse.Namespace], None]] = {
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
    """Run the named parts; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="+", choices=PARTS)
    parser.add_argument("--where", action="append", choices=PLACES)
    parser.add_argument("--mib", type=int, default=64, help="size of one all_reduce")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument(
        "--width", type=int, default=1024, help="width of the DDP model"
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, help="file for the records")
    options = parser.parse_args()
    today = RESULTS / f"compression-{time.strftime('%F')}.jsonl"
    log = ResultLog(options.out or today)
    for part in options.part:
        started_s = time.monotonic()
        PARTS[part](log, options)
        print(f"{part}: {time.monotonic() - started_s:.0f} s", flush=True)
    for what in log.missed:
        print(f"MISSED: {what}")
    return int(bool(log.missed))


if __name__ == "__main__":
    sys.exit(main())
