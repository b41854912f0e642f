"""PyTorch's own tests of torch.distributed pass on our backend."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.warm_python import WarmPython

DRIVER = """
import os, sys
os.setsid()
from tests.conformance.driver import main
sys.exit(main())
"""

PASSED_AT_LEAST = 124
"""Number of 285 tests at three ranks; the others need CUDA, more ranks, or are disabled
upstream. Gloo passes 120 of these 124; it declines the list form of an uneven
all_to_all."""

LIMIT_S = 150.0
"""Bound on one test; the slowest waits five seconds for a timeout."""

SPAWN_LIMIT_S = 250.0
"""There, every rank imports torch first, which a busy machine may do in 25 s."""

JOBS = 2
"""Tests at once: one waits for a timeout or for its store while the other works."""

START_S = 150.0
"""Time for the driver beside its tests: importing them on a busy machine."""

SPAWNED = "DistributedDataParallelCPU"
"""One, because every rank of a spawned test imports torch and its tests: 5 s each."""

ON_TWO_RANKS = (
    "all_reduce_max|all_gather|all_to_all_single_unequal_split|gather|"
    "send_recv_any_source|isend|DistributedDataParallelCPU|"
    "batch_isend_irecv_gloo|all_gather_object_default_pg"
)

ON_FOUR_RANKS = (
    "gather_object|gather_object_subgroup|new_subgroups_with_group_param|"
    "all_reduce_group_sum|all_to_all_full_group|broadcast_group|reduce_full_group_max|"
    "DistributedDataParallelCPU|scatter_group"
)


def outcomes(
    python: WarmPython,
    folder: Path,
    *,
    world_size: int,
    start: str,
    names: str,
    within_s: float,
) -> list[dict[str, str]]:
    """Run the driver and return its report; kill it and its ranks if it hangs."""
    report = folder / "outcomes.json"
    limit_s = LIMIT_S if start == "fork" else SPAWN_LIMIT_S
    options = ["--start", start, "-k", names, "--limit", str(limit_s)]
    options += ["--within", str(within_s), "--json", str(report)]
    options += ["--logs", str(folder / "logs"), "--jobs", str(JOBS)]
    process = python.popen("-c", DRIVER, "--world-size", str(world_size), *options)
    try:
        said, _ = process.communicate(within_s + START_S)
    except subprocess.TimeoutExpired as exc:
        pytest.fail(f"the driver has not ended:\n{exc.stdout!r}")
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert report.exists(), said
    found: list[dict[str, str]] = json.loads(report.read_text())
    return found


def assert_passed(found: list[dict[str, str]], at_least: int) -> None:
    failures = [f"{o['name']}: {o['reason']}" for o in found if o["status"] == "failed"]
    assert not failures, "\n".join(failures)
    passed = sum(o["status"] == "passed" for o in found)
    assert passed >= at_least, f"{passed} passed; upstream or a gate has changed"


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_the_whole_suite_passes_on_three_ranks(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """It takes a minute beside three other workers on two cores."""
    found = outcomes(
        warm_python, tmp_path, world_size=3, start="fork", names="", within_s=1500
    )
    assert_passed(found, PASSED_AT_LEAST)


@pytest.mark.parametrize(
    ("world_size", "start", "names"),
    [
        pytest.param(2, "fork", ON_TWO_RANKS, id="2-fork"),
        pytest.param(4, "fork", ON_FOUR_RANKS, id="4-fork", marks=pytest.mark.slow),
        pytest.param(2, "spawn", SPAWNED, id="2-spawn", marks=pytest.mark.slow),
    ],
)
def test_a_selection_passes_in_other_worlds(
    tmp_path: Path, warm_python: WarmPython, world_size: int, start: str, names: str
) -> None:
    found = outcomes(
        warm_python,
        tmp_path,
        world_size=world_size,
        start=start,
        names=f"^test_({names})$",
        within_s=400,
    )
    assert_passed(found, len(names.split("|")))
