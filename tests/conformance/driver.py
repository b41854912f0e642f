"""Run PyTorch's own tests of torch.distributed on a backend, one after another.

    python -m tests.conformance.driver --backend ringleader --world-size 3

The exit code is 0 if none failed. The output of the ranks of each test goes into a file
of its own; everything temporary lies outside the repository.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ringleader.deadline import Deadline
from tests.conformance import upstream

_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Timeout|Exit)\b.*$", re.M)
_NESTED = "exited with error code"  # upstream wraps a rank's traceback in its own error


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one test."""

    name: str
    status: str  # passed, skipped or failed
    took_s: float
    reason: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, report; the exit code."""
    options = parser().parse_args(arguments)
    trial = upstream.Trial(
        backend=options.backend,
        world_size=options.world_size,
        start=options.start,
        limit_s=options.limit,
    )
    report = options.json and options.json.absolute()
    logs = Path(options.logs or tempfile.mkdtemp(prefix="conformance-")).absolute()
    logs.mkdir(parents=True, exist_ok=True)
    with scratch_folder():
        suite = upstream.load(trial)
        gc.freeze()  # a collection in a rank would touch, and so copy, every page
        outcomes = run(
            suite, options.k, logs, Deadline.after(options.within), options.jobs
        )
    say(summary(trial, outcomes, logs))
    if report:
        report.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    return any(each.status == "failed" for each in outcomes)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    summary, _, _ = (__doc__ or "").partition("\n")
    made = argparse.ArgumentParser(description=summary)
    made.add_argument("--backend", default="ringleader")
    made.add_argument("--world-size", type=int, default=3, metavar="N")
    made.add_argument("--start", choices=["fork", "spawn"], default="fork")
    made.add_argument("-k", default="", metavar="REGEX", help="only tests like this")
    made.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="tests that run at once"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write outcomes here")
    made.add_argument("--logs", type=Path, metavar="FOLDER", help="what ranks print")
    made.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="bound on one test"
    )
    made.add_argument(
        "--within", type=float, default=600.0, metavar="S", help="bound on all tests"
    )
    return made


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Upstream leaves temporary files behind; let them be in one folder, then gone."""
    logging.disable(logging.WARNING)
    folder = tempfile.mkdtemp(prefix="suite-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def run(
    suite: type[upstream.OnRanks],
    pattern: str,
    logs: Path,
    deadline: Deadline,
    jobs: int = 1,
) -> list[Outcome]:
    """The outcomes of the tests whose names match; one line for each as it ends.

    Some tests wait for timeouts. With several jobs others run meanwhile, each in a fork
    of this process, which has imported everything.
    """
    names = unittest.defaultTestLoader.getTestCaseNames(suite)
    chosen = [name for name in names if re.search(pattern, name)]
    if jobs == 1:
        return run_share(suite, chosen, logs, deadline)
    context = multiprocessing.get_context("fork")
    with contextlib.ExitStack() as stack:
        ends = []
        for first in range(jobs):
            ours, theirs = context.Pipe(duplex=False)
            stack.enter_context(ours)

            def work(share: list[str], pipe: Connection) -> None:
                pipe.send(run_share(suite, share, logs, deadline))

            with theirs:
                process = context.Process(
                    target=work, args=(chosen[first::jobs], theirs)
                )
                process.start()
            stack.callback(process.join)
            ends.append(ours)
        return sorted((o for end in ends for o in end.recv()), key=lambda o: o.name)


def run_share(
    suite: type[upstream.OnRanks], chosen: list[str], logs: Path, deadline: Deadline
) -> list[Outcome]:
    """The outcomes of these tests, one after another."""
    outcomes = []
    for number, name in enumerate(chosen, 1):
        if deadline.is_over():
            why = f"not started: {deadline.after_s:g} s for all tests are over"
            outcome = Outcome(name, "failed", 0.0, why)
        else:
            outcome = run_one(suite(name), name, logs / f"{name}.log")
        outcomes.append(outcome)
        if outcome.status != "skipped":
            say(f"[{number}/{len(chosen)}] {line(outcome)}")
    return outcomes


def run_one(test: unittest.TestCase, name: str, log: Path) -> Outcome:
    """Run it; what its ranks print, and the traceback if it fails, are in ``log``."""
    result = unittest.TestResult()
    started_s = time.monotonic()
    with output_in(log):
        test.run(result)
        for _, text in (*result.errors, *result.failures):
            sys.stderr.write(text)
    took_s = round(time.monotonic() - started_s, 2)
    if not log.stat().st_size:
        log.unlink()
    if result.errors or result.failures:
        _, text = (*result.errors, *result.failures)[0]
        return Outcome(name, "failed", took_s, telling_line(text))
    if result.skipped:
        return Outcome(name, "skipped", took_s, result.skipped[0][1])
    return Outcome(name, "passed", took_s)


@contextlib.contextmanager
def output_in(log: Path) -> Iterator[None]:
    """Descriptors 1 and 2 are ``log`` meanwhile, also in processes started there."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for ours, standard in zip(saved, (1, 2), strict=True):
            os.dup2(ours, standard)
            os.close(ours)


def telling_line(trace: str) -> str:
    """The line that names the first error in the traceback of several processes."""
    lines = _ERROR_LINE.findall(trace)
    told = [each for each in lines if _NESTED not in each] or lines
    return (told or trace.strip().splitlines())[0]


def line(outcome: Outcome) -> str:
    """One outcome for people."""
    text = f"{outcome.status} {outcome.name} {outcome.took_s:.2f} s"
    return f"{text}: {outcome.reason}" if outcome.reason else text


def summary(trial: upstream.Trial, outcomes: Sequence[Outcome], logs: Path) -> str:
    """The counts, and every failure once more at the end."""
    counts = Counter(each.status for each in outcomes)
    took_s = sum(each.took_s for each in outcomes)
    what = f"{trial.backend}, {trial.world_size} ranks, {trial.start}"
    numbers = ", ".join(f"{counts[s]} {s}" for s in ("passed", "skipped", "failed"))
    failures = [line(each) for each in outcomes if each.status == "failed"]
    where = [f"logs in {logs}"]
    return "\n".join([f"{what}: {numbers} in {took_s:.0f} s", *failures, *where])


def say(text: str) -> None:
    """Print at once: somebody may be watching."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
