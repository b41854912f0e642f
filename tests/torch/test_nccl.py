"""NCCL beside ringleader and inside its hosts; check_nccl.py has the checks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ringleader.backend.availability import nccl_status

CAN_RUN, REASON = nccl_status()


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("gloo", marks=pytest.mark.slow),
        pytest.param("nccl", marks=pytest.mark.skipif(not CAN_RUN, reason=REASON)),
    ],
)
def test_both_backends_mean_the_same_side_by_side_and_in_layers(backend: str) -> None:
    """ZF-3, ZF-14: real processes; Gloo on the CPU takes the place of NCCL."""
    command = [sys.executable, "-m", "tests.torch.check_nccl", backend]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
