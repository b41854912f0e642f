"""What ``ringleader run`` prints, with every torch of ``make test-torch``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringleader.testing.node_process import make_home

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ringleader")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
dist.destroy_process_group()
print("trained\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_a_run_that_succeeds_prints_the_program_s_lines_and_ours(
    tmp_path: Path,
) -> None:
    """Nothing else: no warnings, no objects that a library of torch calls leaked."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    home = make_home(tmp_path / "home", os.urandom(32))
    run = [sys.executable, "-m", "ringleader.cli.main", "run", "--nodes", "1"]
    done = subprocess.run(
        [*run, "--nproc-per-node", "2", str(script)],
        env={**os.environ, "RINGLEADER_HOME": str(home), "RINGLEADER_NAME": "m"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\ntrained\n"
    foreign = [e for e in done.stderr.splitlines() if not e.startswith("ringleader: ")]
    assert foreign == [], done.stderr
