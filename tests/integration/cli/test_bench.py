"""``ringleader bench`` with real processes: results, and failures that end in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from ringleader.cli.main import app

pytestmark = pytest.mark.timeout(110)

BENCH = [sys.executable, "-m", "ringleader.cli.main", "bench"]
ENDLESS = ["--ranks", "2", "--sizes", "1MiB", "--rounds", "100000"]


@pytest.mark.slow
def test_a_tiny_run_measures_ours_beside_gloo(tmp_path: Path) -> None:
    grid = ["--ranks", "2", "--sizes", "4,64KiB", "--rounds", "1", "--quick"]
    operations = ["--operations", "all_reduce,all_gather"]
    done = subprocess.run(
        [*BENCH, *grid, *operations, "--peers", "gloo", "--json", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
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
def test_a_killed_worker_ends_the_run_with_its_name() -> None:
    with endless("--peers", "gloo", "--operations", "all_reduce") as bench:
        worker(bench, "--rank 1").kill()
        begin_s = time.monotonic()
        assert bench.wait(timeout=20) == 1
        assert time.monotonic() - begin_s < 15

        assert bench.stderr is not None
        said = bench.stderr.read()
    assert "rank 1" in said
    assert "SIGKILL" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "peers"), [(signal.SIGINT, "gloo,mpi"), (signal.SIGTERM, "")]
)
def test_stopping_it_leaves_no_process(number: signal.Signals, peers: str) -> None:
    with endless("--peers", peers, "--operations", "all_reduce") as bench:
        family = psutil.Process(bench.pid).children(recursive=True)
        assert len(family) >= 2
        bench.send_signal(number)

        assert bench.wait(timeout=20) == 128 + number
        _, alive = psutil.wait_procs(family, timeout=10)
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
def endless(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run that measures until it is stopped; return once it measures."""
    with subprocess.Popen(
        [*BENCH, *ENDLESS, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    ) as bench:
        try:
            assert bench.stderr is not None
            for line in bench.stderr:  # ends with the process; pytest bounds the rest
                if "all_reduce 1 MiB" in line:
                    break
            assert bench.poll() is None, "it ended before it measured anything"
            yield bench
        finally:
            bench.kill()  # does nothing to a run that has ended


def hear_ctrl_c() -> None:
    """Restore SIGINT, which children of a background shell ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def worker(bench: subprocess.Popen[str], which: str) -> psutil.Process:
    family = psutil.Process(bench.pid).children(recursive=True)
    [found] = [p for p in family if which in " ".join(p.cmdline())]
    return found
