"""``ringleader run --trace``: an unchanged script on machines of a virtual LAN."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import Machines
from tests.kit.warm_python import WarmPython

needs_lan = pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])

SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ringleader")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(256, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    model(torch.ones(4, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if len(sys.argv) > 2 and step == 2 and rank == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""

ELASTIC = """
import torch, ringleader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(96, 4), torch.ones(96, 1))
run = ringleader.elastic(model, optimizer, data, global_batch=16, micro_batch=4)
for x, y in run:
    run.backward(torch.nn.functional.mse_loss(model(x), y))
    run.step()
"""

ALONE = """
import sys, time
import torch
from ringleader.node.launch.torch_entry_points import autoload

autoload()  # as importing torch does in a worker
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(3):
    parameter.square().sum().backward()
    optimizer.step()
print("trained", flush=True)
if sys.argv[1] == "stay":
    time.sleep(3600)
"""


@pytest.fixture
def net() -> Iterator[VirtualLan]:
    with lan(hosts=3, rate="1gbit") as made:
        yield made


@pytest.fixture
def machines(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> Iterator[Machines]:
    with Machines.with_script(net, tmp_path, warm_python, SCRIPT) as made:
        yield made


def ranks_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    found = json.loads(path.read_text())["otherData"]["ringleader"]["ranks"]
    return found


def steps_of(path: Path) -> dict[int, int]:
    """Number of steps of each rank in a file."""
    events = json.loads(path.read_text())["traceEvents"]
    ranks = [event["pid"] for event in events if event.get("cat") == "step"]
    return {rank: ranks.count(rank) for rank in set(ranks)}


def phases_of(path: Path) -> dict[int, set[str]]:
    """Names of the phases of each rank in a file."""
    found: dict[int, set[str]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "span":
            found.setdefault(event["pid"], set()).add(event["name"])
    return found


def sums_of(path: Path) -> dict[int, tuple[float, float]]:
    """Time of the parts of all steps of each rank, and of the steps themselves."""
    events = json.loads(path.read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if _is_row(e)}

    def total(rank: int, row: str) -> float:
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
        return float(sum(e["dur"] for e in mine if rows[rank, e["tid"]] == row))

    ranks = {rank for rank, _ in rows}
    return {rank: (total(rank, "script"), total(rank, "steps")) for rank in ranks}


def _is_row(event: dict[str, Any]) -> bool:
    return bool(event["ph"] == "M" and event["name"] == "thread_name")


@needs_lan
@pytest.mark.slow
def test_the_sentence_names_the_machine_whose_link_is_slow(machines: Machines) -> None:
    machines.net.set_rate(1, "4mbit")
    script, path = machines.folder / "train.py", machines.folder / "out.json"
    options = ["--nodes", "3", "--rank0", "m0", "--trace", str(path)]
    runs = [machines.run(i, *options, str(script), "3") for i in range(3)]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
    said = "".join(runs[0].lines)
    sentence = next(line for line in runs[0].lines if "of the step for" in line)
    assert "of the step for `m1`'s Ethernet (" in sentence, said
    assert "--compress int8" in sentence
    assert steps_of(path) == {0: 3, 1: 3, 2: 3}
    assert [each["is_complete"] for each in ranks_of(path)] == [True] * 3
    assert sorted(each["machine"] for each in ranks_of(path)) == ["m0", "m1", "m2"]
    for run in runs[1:]:
        assert "of the step" not in "".join(run.lines), "only rank 0 prints it"


@needs_lan
@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_a_trace_that_says_so(machines: Machines) -> None:
    script, path = machines.folder / "train.py", machines.folder / "out.json"
    options = ["--nodes", "3", "--rank0", "m0", "--trace", str(path)]
    runs = [
        machines.run(
            i,
            *options,
            str(script),
            "100000",
            "2",
            TORCH_ELASTIC_SHUTDOWN_TIMEOUT="300",  # the machine may be busy
        )
        for i in range(3)
    ]
    for run in runs:
        assert run.end() != 0, "".join(run.lines)
    found = ranks_of(path)
    assert not found[2]["is_complete"]
    assert steps_of(path)[0] >= 3
    assert "the trace ends early; it died" in "".join(runs[0].lines)


@needs_lan
@pytest.mark.slow
def test_the_members_of_an_elastic_run_are_in_one_trace(machines: Machines) -> None:
    script, path = machines.folder / "train.py", machines.folder / "out.json"
    script.write_text(ELASTIC)
    options = ["--nodes", "2", "--rank0", "m0", "--survive", "--trace", str(path)]
    runs = [machines.run(i, *options, str(script)) for i in range(2)]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
    # A busy machine may be lost for a while; then the other one trains alone.
    assert steps_of(path)[0] > 0, "".join(runs[0].lines)
    assert [each["machine"] for each in ranks_of(path)] == ["m0", "m1"]
    assert {"quantum", "update", "optimizer", "view change"} <= phases_of(path)[0]
    for parts_us, steps_us in sums_of(path).values():
        assert parts_us == pytest.approx(steps_us, rel=0.02)


@pytest.mark.parametrize("ending", ["end", "stay"])
def test_a_worker_writes_its_trace_however_it_ends(
    ending: str, tmp_path: Path, warm_python: WarmPython
) -> None:
    script, path = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(ALONE)
    variables = {"RANK": "0", "WORLD_SIZE": "1", "RINGLEADER_TRACE": str(path)}
    process = warm_python.popen(str(script), ending, env={**os.environ, **variables})
    try:
        assert process.stdout is not None
        assert "trained" in process.stdout.readline()
        if ending == "stay":
            process.send_signal(SIGTERM)
        code = process.wait(60)
        said = process.stdout.read()
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
    assert code == (128 + SIGTERM if ending == "stay" else 0), said
    assert steps_of(path) == {0: 3}, said
    assert "every rank computes" in said
    assert ranks_of(path)[0]["is_complete"]
