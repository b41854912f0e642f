"""Starts jobs of mpirun for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")
ROOT = Path(__file__).parents[2]

needs_mpirun = pytest.mark.skipif(
    not MPIRUN.exists(), reason="needs mpirun: pip install 'ringleader[bench]'"
)

# The launcher that started the tests must not describe itself to their processes.
_FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def clean_environment() -> dict[str, str]:
    """The environment of the tests, without the variables of launchers."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}


def run_job(
    ranks: int,
    *argv: str,
    within_s: float,
    before: Sequence[str] = (),
    options: Sequence[str] = ("--oversubscribe",),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGV...`` in ``ranks`` processes of one mpirun.

    ``before`` are words before mpirun, ``options`` its own.
    """
    words = ["--allow-run-as-root", *options, "-n", str(ranks)]
    return subprocess.run(
        [*before, str(MPIRUN), *words, sys.executable, *argv],
        env={**clean_environment(), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
