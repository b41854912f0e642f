"""An unmodified DistributedDataParallel script on three ranks, one of which is killed.

Real processes and kill -9. The survivors must finish as if nothing had happened, with
bit-identical parameters, which a reference in this process computes as well: the mean
over the then-living ranks, in every step.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ringleader.node.launch.resident_agent import find_resident, stop_resident
from ringleader.node.launch.survival_policy import SPLIT_STATUS
from ringleader.simulation.lan import can_make_lan, lan
from tests.kit import surviving_gathers, surviving_script
from tests.kit.machines import IMPATIENT, RINGLEADER, Command, Machines
from tests.kit.ranks_without_agent import environments
from tests.kit.surviving_script import Net, batch
from tests.kit.warm_python import WarmProcess, WarmPython

SIZE, STEPS = 3, 30
WITHIN_S = 400.0
SCRIPT = surviving_script.__file__


def start(
    warm: WarmPython, folder: Path, script: str = SCRIPT, word: str = str(STEPS)
) -> list[WarmProcess]:
    """Start all ranks, without an agent."""
    return [
        warm.popen(script, str(folder), word, env={**os.environ, **each})
        for each in environments(folder, SIZE)
    ]


@contextmanager
def machines_of(size: int, folder: Path, warm: WarmPython) -> Iterator[Machines]:
    with lan(hosts=size, rate="1gbit") as net:
        machines = Machines(net, folder, warm)
        try:
            yield machines
        finally:
            machines.close()


def train_on(
    machines: Machines, folder: Path, *flags: str, by: Sequence[str] = RINGLEADER
) -> list[Command]:
    """Run the script on every machine."""
    words = (*by, "run", *flags, SCRIPT, str(folder), str(STEPS))
    return [machines.start(host.number, *words) for host in machines.net.hosts]


def lines(folder: Path, rank: int) -> list[dict[str, list[float]]]:
    file = folder / f"{rank}.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def wait_for_step(folder: Path, step: int, size: int = SIZE) -> None:
    until_s = time.monotonic() + WITHIN_S
    while any(len(lines(folder, rank)) < step for rank in range(size)):
        assert time.monotonic() < until_s, "the ranks do not train"
        time.sleep(0.005)


def wait_for_line(commands: Sequence[Command], text: str) -> None:
    """Wait until one of them has printed it."""
    until_s = time.monotonic() + WITHIN_S
    while not any(text in line for command in commands for line in command.lines):
        assert time.monotonic() < until_s, f"no {text!r}"
        time.sleep(0.02)


# -- the reference ---------------------------------------------------------------------


def gradient(model: nn.Module, step: int, rank: int) -> list[Tensor]:
    x, y = batch(step, rank)
    loss = nn.functional.mse_loss(model(x), y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def reference(contributors: Sequence[Sequence[int]]) -> list[Tensor]:
    """The parameters after steps with these ranks, computed in one process."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, ranks in enumerate(contributors):
        each = [gradient(model, step, rank) for rank in ranks]
        for parameter, parts in zip(model.parameters(), zip(*each), strict=True):  # noqa: B905
            parameter.grad = torch.stack(parts).mean(0)
        optimizer.step()
    return list(model.parameters())


def possible_contributors(folder: Path, rank: int) -> Iterator[list[list[int]]]:
    """Who can have contributed to each step, by what the script saw after it.

    Only where somebody was lost is there a choice: before its gradient, or after.
    """
    seen = [line["present"] for line in lines(folder, rank) if "present" in line]
    alive = [[r for r in range(SIZE) if row[r]] for row in seen]
    assert len(alive) == STEPS
    before = [list(range(SIZE)), *alive[:-1]]
    choices = [[a] if a == b else [a, b] for a, b in zip(alive, before, strict=True)]
    yield from (list(each) for each in itertools.product(*choices))


def check(folder: Path, survivors: Sequence[int]) -> None:
    states = [torch.load(folder / f"{rank}.pt") for rank in survivors]
    names = [name for name, _ in Net().named_parameters()]
    for name in names:
        for state in states[1:]:
            assert torch.equal(state[name], states[0][name]), name
    differences = [
        max(
            float((states[0][name] - value).detach().abs().max())
            for name, value in zip(names, reference(contributors), strict=True)
        )
        for contributors in possible_contributors(folder, survivors[0])
    ]
    assert min(differences) < 1e-12, differences


# -- kills -----------------------------------------------------------------------------


def finish(ranks: list[WarmProcess], folder: Path, killed: int) -> None:
    survivors = [rank for rank in range(SIZE) if rank != killed]
    said, _ = ranks[killed].communicate(WITHIN_S)
    assert ranks[killed].returncode == -signal.SIGKILL, said
    for rank in survivors:
        said, _ = ranks[rank].communicate(WITHIN_S)
        assert ranks[rank].returncode == 0, said
        assert f"rank {killed} was lost; going on with 2 of 3 ranks" in said
        gathered = [float(r) for r in range(SIZE)]
        gathered[killed] = float((killed + 1) % SIZE)
        assert lines(folder, rank)[-1]["gathered"] == gathered
    check(folder, survivors)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_script_survives_kill_9_of_a_rank_at_a_random_moment(
    killed: int, warm_python: WarmPython, tmp_path: Path
) -> None:
    ranks = start(warm_python, tmp_path)
    wait_for_step(tmp_path, random.randrange(1, STEPS // 2))
    time.sleep(random.uniform(0, 0.05))
    ranks[killed].kill()
    (tmp_path / surviving_script.GO_ON).touch()
    finish(ranks, tmp_path, killed)


ENDING = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
from ringleader.backend import surviving_group

surviving_group.END_S = 0.0  # those that have ended wait for nobody
dist.init_process_group("ringleader")
dist.barrier()
rank, folder = dist.get_rank(), Path(sys.argv[1])
while rank == 0 and len(list(folder.glob("* has ended"))) < 2:
    time.sleep(0.01)
dist.destroy_process_group()
(folder / f"{rank} has ended").touch()
"""


def test_those_that_have_ended_are_not_lost(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    ranks = start(warm_python, tmp_path, str(script))
    for said, rank in [(each.communicate(WITHIN_S)[0], each) for each in ranks]:
        assert rank.returncode == 0, said
        assert "lost" not in said


def test_gathers_have_the_part_of_the_next_rank_in_place_of_a_lost_one(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    """Rank 1 dies between the lengths and the objects of all_gather_object."""
    ranks = start(warm_python, tmp_path, surviving_gathers.__file__, "gather")
    output = [each.communicate(WITHIN_S)[0] for each in ranks]
    for rank in (0, 2):
        said = output[rank]
        assert ranks[rank].returncode == 0, said
        told = "in place of lost rank 1, gathers have what rank 2 gives"
        assert said.count(told) == 1, said
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        objects = [surviving_gathers.the_object(r) for r in (0, 2, 2)]
        parts = [[float(r)] * 2 for r in (0, 2, 2)]
        assert found["all_gather_object"] == objects
        assert found["gather_object"] == (objects if rank == 0 else [None] * 3)
        assert found["all_gather"] == parts
        assert found["into_tensor"] == [v for part in parts for v in part]
        assert found["uneven"] == [[0.0] * 2, [2.0] * 3, [2.0] * 3]
        assert found["gather"] == (parts if rank == 2 else [])
        assert found["broadcast_object_list"] == objects[:1]
        reasons = {
            "fsdp": "needs the lost part of the model, which nobody else has",
            "reduce_scatter": "needs all ranks",
            "after it": "all_gather needs the lost part of the model",
        }
        for call, reason in reasons.items():
            assert "PeerLost: rank 1: was lost" in found["refused"][call]
            assert reason in found["refused"][call]


def test_the_lowest_rank_broadcasts_objects_in_place_of_a_lost_source(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    """Rank 1 dies between the lengths and the objects, which are longer than its."""
    ranks = start(warm_python, tmp_path, surviving_gathers.__file__, "broadcast")
    output = [each.communicate(WITHIN_S)[0] for each in ranks]
    for rank in (0, 2):
        said = output[rank]
        assert ranks[rank].returncode == 0, said
        assert said.count("lost rank 1, rank 0 broadcasts its objects") == 1, said
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        objects = {str(t): [surviving_gathers.the_object(0), t] for t in range(2)}
        assert found["objects"] == objects
        assert found["error"].startswith("PeerLost: rank 1: was lost")
        assert "needs its objects: rank 0 gives None" in found["error"]


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_a_killed_worker_is_not_replaced_and_the_others_finish_for_all(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    flags = ("--survive", "--nodes", str(SIZE), "--min-nodes", "1")
    with machines_of(SIZE, tmp_path, warm_python) as machines:
        commands = train_on(machines, tmp_path, *flags)
        wait_for_step(tmp_path, STEPS // 3)
        for killed in (1, 2):
            pid = int((tmp_path / f"{killed}.pid").read_text())
            os.kill(pid, signal.SIGKILL)
        (tmp_path / surviving_script.GO_ON).touch()
        for command in commands:
            assert command.end(WITHIN_S) == 0, "".join(command.lines)
    said = ["".join(command.lines) for command in commands]
    assert sum("has finished, process" in each for each in said) == 1
    lost = [each for each in said if "has finished, process" not in each]
    for each in lost:
        assert "without ringleader.elastic a worker cannot join again" in each
        assert "finished without this machine, by m" in each
        assert "starting it again" not in each
    assert [line for line in lines(tmp_path, 0) if "gathered" in line]


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
@pytest.mark.parametrize("partition", ["continue", "majority"])
def test_machines_that_trained_apart_say_so_unless_only_the_larger_side_goes_on(
    partition: str, warm_python: WarmPython, tmp_path: Path
) -> None:
    """The cable of one machine is cut in the middle and mended before the end."""
    flags = ("--survive", "--nodes", "2", "--partition", partition)
    with machines_of(2, tmp_path, warm_python) as machines:
        commands = train_on(machines, tmp_path, *flags)
        wait_for_step(tmp_path, STEPS // 3, 2)
        machines.net.cut(1)
        for command in commands:
            command.wait_for("is silent; training goes on")
        (tmp_path / surviving_script.GO_ON).touch()
        if partition == "continue":
            for command in commands:
                command.wait_for("has finished, process")
        else:
            wait_for_line(commands, "has finished, process")
            wait_for_line(commands, "waiting: these members are no majority")
        machines.net.mend(1)
        ends = [command.end(WITHIN_S) for command in commands]
    said = "".join(line for command in commands for line in command.lines)
    models = [torch.load(file)["first.weight"] for file in tmp_path.glob("*.pt")]
    if partition == "continue":
        assert not torch.equal(*models)
        assert ends == [SPLIT_STATUS] * 2, said
        assert said.count("2 different models were finished, one by m") == 2
    else:
        assert len(models) == 1
        assert ends == [0, 0], said
        assert said.count("finished without this machine, by m") == 1


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_an_agent_that_is_killed_is_no_lost_worker_and_its_return_is_told(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    flags = ("--here", "--survive", "--nodes", "2")
    with machines_of(2, tmp_path, warm_python) as machines:
        try:
            for index in range(2):
                up = machines.start(index, *RINGLEADER, "up", "--no-jobs")
                assert up.end() == 0, "".join(up.lines)
            commands = train_on(machines, tmp_path, *flags)
            wait_for_step(tmp_path, STEPS // 3, 2)
            agent = find_resident(tmp_path / "home1")
            assert agent is not None
            os.kill(agent.pid, signal.SIGKILL)
            commands[0].wait_for("m1 is silent; training goes on, without it, unless")
            up = machines.start(1, *RINGLEADER, "up", "--no-jobs")
            assert up.end() == 0, "".join(up.lines)
            commands[0].wait_for("m1 is back, but its agent has forgotten this job")
            (tmp_path / surviving_script.GO_ON).touch()
            ends = [command.end(WITHIN_S) for command in commands]
            said = "".join(line for command in commands for line in command.lines)
            assert ends == [0, 0], said
            assert "lost; going on" not in said
        finally:
            for index in range(2):
                stop_resident(tmp_path / f"home{index}")
    for rank in range(2):
        assert lines(tmp_path, rank)[STEPS - 1]["present"] == [1, 1]


@pytest.mark.slow
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_the_command_survives_the_loss_of_a_machine(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    """``ringleader run --survive`` on three machines; one of them loses its power."""
    flags = ("--survive", "--min-nodes", str(SIZE), "--wait", "0")
    with machines_of(SIZE, tmp_path, warm_python) as machines:
        commands = train_on(machines, tmp_path, *flags, by=IMPATIENT)
        wait_for_step(tmp_path, STEPS // 3)
        machines.net.hosts[0].kill_all()
        (tmp_path / surviving_script.GO_ON).touch()
        for command in commands[1:]:
            assert command.end(WITHIN_S) == 0, "".join(command.lines)
            said = "".join(command.lines)
            assert "was lost; going on with 2 of 3 ranks" in said
            assert "rank and world size stay as they were" in said, "the limits"
    survivors = [rank for rank in range(SIZE) if (tmp_path / f"{rank}.pt").exists()]
    assert len(survivors) == SIZE - 1
    check(tmp_path, survivors)
