"""``ringleader run --dry-run`` prints the plan of a pipeline and trains nothing."""

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
import ringleader

dist.init_process_group("ringleader")
layers = [torch.nn.Linear(8, 8) for _ in range(5)]
x = torch.ones(12, 8)
trainer = ringleader.parallelize(
    torch.nn.Sequential(*layers),
    "pipeline",
    optimizer=torch.optim.Adam,
    loss=torch.nn.functional.mse_loss,
    microbatches=3,
    example=(x, x),
)
trainer.step(x, x)
print("trained", flush=True)
"""


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_ends_with_success(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    home = make_home(tmp_path / "home", os.urandom(32))
    run = [sys.executable, "-m", "ringleader.cli.main", "run", "--nodes", "1"]
    done = subprocess.run(
        [*run, "--nproc-per-node", "2", "--dry-run", str(script)],
        env={**os.environ, "RINGLEADER_HOME": str(home), "RINGLEADER_NAME": "desk"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "pipeline of 5 layers over 2 ranks; 1f1b, 3 micro-batches of 4" in done.stdout
    )
    assert done.stdout.count("desk") == 2
    assert "Predicted:" in done.stdout
    assert done.stdout.rstrip().endswith("a dry run; nothing was trained")
    assert "Traceback" not in done.stderr
