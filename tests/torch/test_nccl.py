"""NCCL beside ringleader and inside its hosts; check_nccl.py has the checks."""

from __future__ import annotations

import pytest

from ringleader.backend.availability import nccl_status
from tests.kit.warm_python import WarmPython

CAN_RUN, REASON = nccl_status()


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("gloo", marks=pytest.mark.slow),
        pytest.param("nccl", marks=pytest.mark.skipif(not CAN_RUN, reason=REASON)),
    ],
)
def test_both_backends_mean_the_same_side_by_side_and_in_layers(
    backend: str, warm_python: WarmPython
) -> None:
    """ZF-3, ZF-14, FT-16: real processes; Gloo on the CPU takes the place of NCCL."""
    check = warm_python.popen("-m", "tests.torch.check_nccl", backend)
    said, _ = check.communicate(timeout=500)
    assert check.returncode == 0, said
