"""A failure on one machine is told on all, and every wait of ``run`` can be ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.machines import Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

NEEDS_A_PACKAGE = """
import only_elsewhere
import torch.distributed as dist

dist.init_process_group("ringleader")
dist.barrier()
"""

FAILS_AT_THE_END = """
import os, signal, sys, time
import torch.distributed as dist

dist.init_process_group("ringleader")
dist.barrier()
rank = dist.get_rank()
dist.destroy_process_group()
print(f"rank {rank} trained", flush=True)
if sys.argv[1] == "raise" and rank == 1:
    raise ValueError("after \\x1b[31mtraining")
if sys.argv[1] == "stay" and rank == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("rank 1 stays", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def machines(tmp_path: Path, warm_python: WarmPython) -> Iterator[Machines]:
    with lan(hosts=3, rate="1gbit") as net:
        made = Machines(net, tmp_path, warm_python)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.slow
def test_a_missing_package_is_named_on_all_machines_and_ends_the_job(
    machines: Machines,
) -> None:
    script, package = machines.folder / "train.py", machines.folder / "packages"
    script.write_text(NEEDS_A_PACKAGE)
    package.mkdir()
    (package / "only_elsewhere.py").write_text("")
    path = os.pathsep.join([str(package), os.environ["PYTHONPATH"]])
    runs = [
        machines.run(0, "--nodes", "3", str(script), PYTHONPATH=path),
        machines.run(1, "--nodes", "3", str(script), PYTHONPATH=path),
        machines.run(2, "--nodes", "3", "--max-restarts", "5", str(script)),
    ]
    codes = [run.end() for run in runs]
    for run in runs:
        said = "".join(run.lines)
        assert "torch/distributed/elastic" not in said, "torch's words for the same"
        assert "on m2 failed: ModuleNotFoundError: No module named 'only_e" in said
        assert 'train.py", line 2' in said, said
        assert said.count("round of 3") == 1, said
    assert codes == [1, 1, 1]


@pytest.mark.slow
def test_a_machine_that_has_finished_waits_for_the_others_and_can_be_stopped(
    machines: Machines,
) -> None:
    script = machines.folder / "train.py"
    script.write_text(FAILS_AT_THE_END)
    runs = [machines.run(i, "--nodes", "2", str(script), "raise") for i in range(2)]
    assert [run.end() for run in runs] == [1, 1], "also where the workers succeeded"
    for run in runs:
        said = "".join(run.lines)
        assert "failed: ValueError: after  [31mtraining" in said, said
        assert "rank 1 on m" in said, said
        assert "<N/A>" not in said, said

    patience = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "900"}
    args = ("--nodes", "2", str(script), "stay")
    runs = [machines.run(i, *args, **patience) for i in range(2)]
    for run in runs:
        run.wait_for("trained")
    stays = next(run for run in runs if is_said(run.lines, "rank 1 trained"))
    waits = next(run for run in runs if run is not stays)
    waits.wait_for("finished here; waiting for m")
    waits.signal(signal.SIGINT)
    assert waits.end() == 128 + signal.SIGINT, "the first ends it in order"
    stays.wait_for("rank 1 stays")
    stays.signal(signal.SIGINT)
    stays.wait_for("SIGINT: ending the workers, within 900 s")
    stays.signal(signal.SIGINT)
    assert stays.end() == 128 + signal.SIGINT, "the second ends it at once"


def is_said(lines: list[str], text: str) -> bool:
    return any(text in line for line in lines)
