"""``ringleader run --dry-run`` prints the plan of a pipeline and trains nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringleader.testing.node_process import make_home
from tests.kit.warm_python import WarmPython

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
def test_a_dry_run_prints_the_plan_and_ends_with_success(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    home = make_home(tmp_path / "home", os.urandom(32))
    run = ("-m", "ringleader.cli.main", "run", "--nodes", "1", "--nproc-per-node", "2")
    env = {**os.environ, "RINGLEADER_HOME": str(home), "RINGLEADER_NAME": "desk"}
    process = warm_python.popen(*run, "--dry-run", script, env=env)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    plan = said[said.index("pipeline of 5 layers") :]
    assert plan.startswith("pipeline of 5 layers over 2 ranks; 1f1b, 3 micro-batches")
    assert plan.count("desk") == 2
    assert "Predicted:" in plan
    assert "\nringleader: this was a dry run; nothing was trained\n" in plan
    assert "\ntrained\n" not in plan
    assert "Traceback" not in said
