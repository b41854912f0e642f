"""Two machines without a common folder train and are killed; three go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import Command, Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

# The weight after step n is n, whoever computes it.
SCRIPT = """
import sys, time, torch, ringleader
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ringleader")
model = nn.Linear(3, 5, bias=False)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
resumable = ringleader.resume()
done = resumable.load(model, optimizer).step if resumable else 0
model = DistributedDataParallel(model)
weight = model.module.weight
assert bool((weight == done).all()), (done, weight)
print(f"begins after {done} with {dist.get_world_size()}", flush=True)
for step in range(done + 1, int(sys.argv[1]) + 1):
    optimizer.zero_grad()
    (-model(torch.eye(3))).sum().backward()  # every gradient is -1
    optimizer.step()
    ringleader.checkpoint.save(ringleader.checkpoint.folder(), step, model, optimizer)
    print(f"saved {step}", flush=True)
    time.sleep(0.05)
assert bool((weight == int(sys.argv[1])).all()), weight
print("done", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def machines(tmp_path: Path, warm_python: WarmPython) -> Iterator[Machines]:
    net: VirtualLan
    with lan(hosts=3, rate="1gbit") as net:
        made = Machines(net, tmp_path, warm_python)
        yield made
        made.close()


def test_three_machines_continue_what_two_began(machines: Machines) -> None:
    script = machines.folder / "train.py"
    script.write_text(SCRIPT)

    def run(index: int, nodes: int, steps: int) -> Command:
        folder = str(machines.folder / f"disk{index}")
        args = ("--nodes", str(nodes), "--checkpoint", folder, str(script), str(steps))
        return machines.run(index, *args)

    first = [run(index, 2, 100_000) for index in range(2)]
    first[0].wait_for("saved 5")
    for index in range(2):
        machines.net.hosts[index].kill_all()
    for command in first:
        command.end()
    told = "".join(first[0].lines + first[1].lines)
    newest = max(int(step) for step in re.findall(r"saved (\d+)", told))
    runs = [run(index, 3, newest + 5) for index in range(3)]
    for command in runs:
        assert command.end() == 0, "".join(command.lines)
        begun = re.search(r"begins after (\d+) with 3", "".join(command.lines))
        assert begun is not None
        assert int(begun[1]) in (newest, newest + 1)  # the last may not have been told
        assert "done\n" in command.lines
