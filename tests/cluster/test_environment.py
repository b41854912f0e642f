"""Groups from the environment that launchers set, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ringleader.deadline import Deadline
from ringleader.testing.inprocess import free_ports

pytestmark = pytest.mark.timeout(100)

WITHIN_S = 60.0

SCRIPT = """
import sys
import torch
import ringleader

try:
    group = ringleader.group(timeout_s=float(sys.argv[1]))
except ringleader.RingleaderError as exc:
    print(type(exc).__name__, exc)
else:
    with group:
        tensor = torch.full((3,), float(group.rank + 1))
        group.all_reduce(tensor)
        print(f"rank {group.rank} of {group.size}: {tensor.tolist()}")
"""

# Whatever started this test must not speak through us.
_FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def start(env: dict[str, object], timeout_s: float) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(timeout_s)],
        env={**clean, **{name: str(value) for name, value in env.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_all(
    environments: Sequence[dict[str, object]],
    timeout_s: float = 20.0,
    late: Sequence[dict[str, object]] = (),
) -> list[str]:
    """What each process prints. The ``late`` ones start when another has ended."""
    processes = [start(env, timeout_s) for env in environments]
    try:
        deadline = Deadline.after(WITHIN_S)
        while late and all(process.poll() is None for process in processes):
            assert not deadline.is_over(), "nobody has ended"
            time.sleep(0.02)
        processes += [start(env, timeout_s) for env in late]
        outputs = [process.communicate(timeout=WITHIN_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [output.strip() for output, _ in outputs]


def meeting() -> dict[str, object]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}


def test_a_group_forms_from_the_names_of_torchrun_and_of_mpirun() -> None:
    place = meeting()
    torchrun = {**place, "RANK": 0, "WORLD_SIZE": 2}
    mpirun = {**place, "OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}
    outputs = run_all([torchrun, mpirun])
    assert outputs == [f"rank {r} of 2: [3.0, 3.0, 3.0]" for r in range(2)]


def test_a_group_of_one_and_a_process_that_lacks_variables() -> None:
    alone, lost = run_all([{"RANK": 0, "WORLD_SIZE": 1}, {"RANK": 1}])
    assert alone == "rank 0 of 1: [1.0, 1.0, 1.0]"
    assert lost.startswith("ConfigError not set in the environment: WORLD_SIZE")
    assert "use a launcher, or pass peers= and rank=" in lost


def test_of_two_processes_with_one_rank_the_second_is_refused() -> None:
    place = meeting()
    claims = [{**place, "RANK": rank, "WORLD_SIZE": 3} for rank in (0, 1, 1, 2)]
    outputs = run_all(claims[:3], late=claims[3:])
    refused = [text for text in outputs if text.startswith("ConfigError")]
    assert refused == ["ConfigError two processes say they are rank 1"]
    formed = sorted(text for text in outputs if text not in refused)
    assert formed == [f"rank {r} of 3: [6.0, 6.0, 6.0]" for r in range(3)]


def test_a_master_nobody_keeps_and_a_rank_that_never_comes_are_named() -> None:
    """Two groups of two, of which one process each was started."""
    nowhere, lonely = meeting(), meeting()
    dials, keeps = run_all(
        [
            {**nowhere, "RANK": 1, "WORLD_SIZE": 2},
            {**lonely, "RANK": 0, "WORLD_SIZE": 2},
        ],
        timeout_s=2.0,
    )
    where = f"127.0.0.1:{nowhere['MASTER_PORT']}"
    assert dials.startswith(f"PeerUnreachable {where}: ")
    assert keeps.startswith("PeerUnreachable rank 1: did not join within 2.0 s")


def test_a_script_started_by_torchrun_finds_its_group(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["--standalone", "--nproc-per-node", "2", "--tee", "3"]
    argv = [sys.executable, "-m", "torch.distributed.run", *options, str(script), "30"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    done = subprocess.run(
        argv, env=clean, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2: [3.0, 3.0, 3.0]" in done.stdout
