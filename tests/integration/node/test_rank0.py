"""A machine that comes later neither becomes rank 0 nor wipes the training."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringleader.deadline import Deadline
from ringleader.identity.node_key import NodeKey
from ringleader.identity.storage.home import Home
from ringleader.ids import NodeId, short
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import (
    EnterJob,
    Reply,
    RequestFailed,
    RoundComplete,
    RoundEntered,
)
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from ringleader.testing.node_process import make_home
from tests.kit.machines import Command, Machines
from tests.kit.warm_python import WarmPython

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def set_key(home: Path, *, below: NodeId | None) -> NodeId:
    """Give a machine a node id, smaller than another one."""
    key = NodeKey.ephemeral()
    while below is not None and key.node_id >= below:
        key = NodeKey.ephemeral()
    with Home(home).writing() as change:
        change.write("node_key", key.to_text())
    return key.node_id


class Node:
    """An agent with a node id of our choice, and its rank in the latest round."""

    def __init__(self, folder: Path, root: bytes, *, below: NodeId | None) -> None:
        home = make_home(folder, root)
        self.id = set_key(home, below=below)
        self.agent = AgentProcess.start(
            AgentConfig(
                home=str(home),
                interfaces=[LOOPBACK],
                profile="loopback",
                name=folder.name,
            )
        )

    def ask(self, nodes: int, rank0: str = "") -> None:
        request = EnterJob(
            job="job",
            min_nodes=nodes,
            max_nodes=nodes,
            wait_s=0,
            timeout_s=300,
            rank0=rank0,
        )
        self.agent.send(request, Deadline.after(60))

    def reply(self) -> Reply:
        while True:
            reply = self.agent.receive(Deadline.after(200))
            if isinstance(reply, RoundEntered | RequestFailed):
                return reply

    def enter(self) -> list[str]:
        """Wait for a round, enter it, and return the names in rank order."""
        entered = self.reply()
        assert isinstance(entered, RoundEntered), entered
        self.agent.ask(RoundComplete(entered.round), Deadline.after(60))
        return entered.names


def test_agents_keep_the_rank_0_of_the_last_round_or_take_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    root = os.urandom(32)
    with ExitStack() as stack:

        def start(name: str, below: NodeId | None) -> Node:
            node = Node(tmp_path / name, root, below=below)
            stack.callback(node.agent.close)
            return node

        old = start("old", None)
        old.ask(1)
        assert old.enter() == ["old"]
        new = start("new", old.id)
        for node in (old, new):
            node.ask(2)
        assert [node.enter() for node in (old, new)] == [["old", "new"]] * 2
        for node in (old, new):
            node.ask(2, rank0=short(new.id))
        assert [node.enter() for node in (old, new)] == [["new", "old"]] * 2
        for node, name in ((old, "old"), (new, "new")):
            node.ask(2, rank0=name)
        failed = new.reply()
        assert isinstance(failed, RequestFailed)
        assert "rank 0 is to be new here and old on old (" in failed.text


# -- training --------------------------------------------------------------------------

SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ringleader")
size, mine = dist.get_world_size(), os.environ["RINGLEADER_HOME"] + "/checkpoint.pt"
model = torch.nn.Linear(2, 1)
model.register_buffer("step", torch.zeros((), dtype=torch.int64))
if os.path.exists(mine):
    model.load_state_dict(torch.load(mine))
wrapped = DistributedDataParallel(model)
while model.step < int(sys.argv[1]):
    wrapped(torch.ones(1, 2)).sum().backward()
    model.step += 1
    torch.save(model.state_dict(), mine + ".new")
    os.replace(mine + ".new", mine)
    rank = dist.get_rank()
    print(f"step {model.step.item()} rank {rank} of {size}", flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    if not can_make_lan()[0]:
        pytest.skip(can_make_lan()[1])
    with lan(hosts=3) as made:
        yield made


def steps(command: Command, size: int) -> list[int]:
    """Return the steps that a machine has made in a world of ``size``."""
    pattern = re.compile(rf"^step (\d+) rank \d of {size}$", re.M)
    return [int(n) for n in pattern.findall("".join(command.lines))]


@pytest.mark.slow
def test_training_goes_on_where_it_was_when_a_fresh_machine_joins(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> None:
    machines = Machines(net, tmp_path, warm_python)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = ("--min-nodes", "2", "--wait", "0", str(script), "100000")
    below = None
    for index in range(3):  # the last one has the smallest id
        below = set_key(
            Path(machines.environment(index)["RINGLEADER_HOME"]), below=below
        )
    try:
        runs = [machines.run(index, *flags) for index in range(2)]
        for run in runs:
            run.wait_for("step 9 rank")
        runs.append(machines.run(2, *flags))
        for run in runs:
            run.wait_for("of 3\n")
        assert all(steps(run, 3)[0] > 9 for run in runs), [steps(r, 3) for r in runs]
        assert len({steps(run, 3)[0] for run in runs}) == 1
    finally:
        machines.close()
