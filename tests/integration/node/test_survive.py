"""``ringleader run --survive``: nobody restarts, newcomers join, failures are named.

The program stands for ``ringleader.elastic``: it tells what the agent tells it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import IMPATIENT, Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.slow,
]

SCRIPT = """
import asyncio, os, pathlib, secrets, sys, time
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.node.launch.agent_peers import AgentPeers
from ringleader.settings.run import run_settings

end = pathlib.Path(__file__).with_name("end")
run = run_settings()
me = Member(time.time_ns() // 10**6, NodeId("a" * 52), secrets.token_hex(8))
print(f"worker {os.getpid()} rank {os.environ['RANK']} joiner {run.is_joiner}")

async def tell():
    async for found in AgentPeers(run.job, run.agent).follow(me, 5000):
        of = found.expected
        lives = sorted(f"{p.name}{'-' * p.has_ended}" for p in found.others)
        print(f"sees {' '.join(lives)} of {of} {found.is_joiner}", flush=True)

async def work():
    telling = asyncio.create_task(tell())
    while not end.exists():
        await asyncio.sleep(0.02)
        if telling.done():
            telling.result()
        if "fail" in sys.argv:
            raise ValueError("the answer is not a number")
    telling.cancel()

asyncio.run(work())
"""


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=3, rate="1gbit") as made:
        yield made


@pytest.fixture
def machines(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> Iterator[Machines]:
    with Machines.with_script(net, tmp_path, warm_python, SCRIPT) as made:
        yield made


def test_nobody_restarts_and_newcomers_join(machines: Machines) -> None:
    script = str(machines.folder / "train.py")
    flags = ("--survive", "--min-nodes", "2", "--max-nodes", "2", script)
    first, second = [machines.start(i, *IMPATIENT, "run", *flags) for i in range(2)]
    first.wait_for("sees m1 of 2 False")
    born = second.lines[second.wait_for("joiner False")]

    worker = re.search(r"worker (\d+)", born)
    assert worker is not None
    os.kill(int(worker[1]), signal.SIGKILL)
    second.wait_for("ended by SIGKILL after")
    second.wait_for("rank 0 joiner True")
    second.wait_for("sees m0 of 1 True")
    first.wait_for("sees m1 m1- of 2 False")  # the end of the first life is proven

    third = machines.run(2, *flags)
    third.wait_for("joining the run, which has begun")
    third.wait_for("sees m0 m1 m1- of 1 True")
    first.wait_for("sees m1 m1- m2 of")
    machines.net.hosts[2].kill_all()
    first.wait_for("m2 is silent; training goes on, without it, unless")

    failing = machines.run(2, *flags, "fail")
    assert failing.end() == 1
    assert "this machine leaves the run" in "".join(failing.lines)
    first.wait_for("on m2 failed: ValueError: the answer is not a number")

    (machines.folder / "end").touch()
    for command in (first, second):
        assert command.end() == 0, "".join(command.lines)
    assert sum(line.startswith("worker ") for line in first.lines) == 1, "no restart"


TRAINING = """
import pathlib, sys, time
import torch
import ringleader

place = pathlib.Path(__file__).parent
name, go_on, is_over = sys.argv[1], place / "go on", place / "over"
if name == "again":
    while not is_over.exists():
        time.sleep(0.02)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(12, 1))
run = ringleader.elastic(model, optimizer, data, global_batch=4, micro_batch=1)
for (x,) in run:
    run.backward(model(x).mean())
    if run.step():
        print(f"made step {run.version}", flush=True)
    while run.version == 1 and not go_on.exists():
        time.sleep(0.02)
print("made all", flush=True)
is_over.touch()
"""


def test_a_machine_that_returns_when_all_is_done_trains_nothing(
    machines: Machines,
) -> None:
    script = machines.folder / "elastic.py"
    script.write_text(TRAINING)
    flags = ("--survive", "--min-nodes", "2", "--wait", "0", str(script))
    first = machines.start(0, *IMPATIENT, "run", *flags, "a")
    second = machines.run(1, *flags, "b")
    for each in (first, second):
        each.wait_for("made step 1")
    machines.net.hosts[1].kill_all()
    first.wait_for("m1 is silent; training goes on, without it, unless")
    again = machines.run(1, *flags, "again")
    again.wait_for("joining the run, which has begun")
    (machines.folder / "go on").touch()
    assert again.end() == 0, "".join(again.lines)
    said = "".join(again.lines)
    assert "the other machines have finished this run; nothing is left" in said
    assert "made" not in said, "the script ended there"
    assert first.end() == 0, "".join(first.lines)
