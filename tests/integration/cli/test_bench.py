"""``ringleader bench`` with real processes: results, and failures that end in time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from ringleader.cli.main import app
from tests.kit.warm_python import WarmProcess, WarmPython

FORKING = ("-m", "tests.kit.warm_children")
BENCH = (*FORKING, "-m", "ringleader.cli.main", "bench")
ENDLESS = ["--ranks", "2", "--sizes", "1MiB", "--rounds", "100000"]


@pytest.mark.slow
def test_a_tiny_run_measures_ours_beside_gloo(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    line = (
        "ringleader bench --ranks 2 --sizes 4,64KiB --rounds 1 --quick --peers gloo"
        f" --operations all_reduce,all_gather --json --out {tmp_path} 2>/dev/null"
    )
    bench = warm_python.popen(*FORKING, "sh", "-c", line)
    said, _ = bench.communicate(timeout=400)

    assert bench.returncode == 0, said
    whole = json.loads(said)
    found = {(r["engine"], r["operation"], r["bytes"]) for r in whole["results"]}
    assert found == {
        (engine, operation, size)
        for engine in ("shm", "tcp", "gloo")
        for operation in ("all_reduce", "all_gather")
        for size in (4, 65536)
    }
    assert all(result["median_s"] > 0 for result in whole["results"])
    assert whole["machine"]["cores"] == os.cpu_count()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".json",
        ".md",
        ".png",
    ]


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_with_its_name(warm_python: WarmPython) -> None:
    flags = ("--peers", "gloo", "--operations", "all_reduce")
    with endless(warm_python, *flags) as bench:
        worker(bench, "--rank 1").kill()
        assert bench.wait(timeout=100) == 1
        said = bench.stdout.read()
    assert "rank 1" in said
    assert "SIGKILL" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "peers"), [(signal.SIGINT, "gloo,mpi"), (signal.SIGTERM, "")]
)
def test_stopping_it_leaves_no_process(
    number: signal.Signals, peers: str, warm_python: WarmPython
) -> None:
    flags = ("--peers", peers, "--operations", "all_reduce")
    with endless(warm_python, *flags) as bench:
        family = psutil.Process(bench.pid).children(recursive=True)
        assert len(family) >= 2
        bench.send_signal(number)

        assert bench.wait(timeout=100) == 128 + number
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--operations", "sort"], "sort"),
        (["--sizes", "64Q"], "64Q"),
        (["--ranks", "one"], "ranks"),
        (["--transport", "", "--peers", ""], "nothing to measure"),
    ],
)
def test_flags_that_make_no_sense_are_explained(flags: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", *flags])

    assert done.exit_code == 2
    assert said in done.stderr


@contextmanager
def endless(python: WarmPython, *flags: str) -> Iterator[WarmProcess]:
    """Start a run that measures until it is stopped; return once it measures."""
    bench = python.popen(*BENCH, *ENDLESS, *flags)
    try:
        for line in bench.stdout:  # ends with the process; pytest bounds the rest
            if "all_reduce 1 MiB" in line:
                break
        assert bench.poll() is None, "it ended before it measured anything"
        yield bench
    finally:
        bench.kill()  # does nothing to a run that has ended
        bench.communicate()


def worker(bench: WarmProcess, which: str) -> psutil.Process:
    family = psutil.Process(bench.pid).children(recursive=True)
    [found] = [p for p in family if which in " ".join(p.cmdline())]
    return found
