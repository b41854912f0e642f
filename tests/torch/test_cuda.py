"""CUDA tensors on a real GPU; check_cuda.py has the checks and runs without pytest."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

CHECKS = "tests.torch.check_cuda"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize(("transport", "ranks"), [("auto", 2), ("auto", 4), ("tcp", 2)])
def test_cuda_tensors(transport: str, ranks: int) -> None:
    command = [sys.executable, "-m", CHECKS, transport, str(ranks)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
