"""Machines without multicast train together through a coordinator, and outlive it."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringleader.simulation.lan import can_make_faults, lan
from tests.kit import coordinator_watch
from tests.kit.machines import RINGLEADER, Command, Machines, status_of
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1]),
]

HEARTBEAT_S = 6.0
WAIT_S = 200.0
"""For a machine that is busy with other things."""

SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist

folder = sys.argv[1]
saved = f"{folder}/{os.environ['RINGLEADER_NAME']}.pt"
dist.init_process_group("ringleader")
rank, size = dist.get_rank(), dist.get_world_size()
for root in range(size):
    value = torch.full((3,), float(rank))
    dist.broadcast(value, root)
    assert bool((value == root).all()), (root, value)

def gradient(of_rank, step, weights):
    x = torch.sin(torch.arange(1.0, 5.0, dtype=torch.float64) * (of_rank + 1) + step)
    return (weights @ x - step % 7) * x

state = torch.load(saved) if os.path.exists(saved) else torch.zeros(5).double()
dist.broadcast(state, 0)
print(f"rank {rank}/{size} from step {int(state[0])}", flush=True)
while True:
    step, weights = int(state[0]), state[1:]
    exact = weights - 0.01 * sum(gradient(r, step, weights) for r in range(size)) / size
    end = torch.tensor([float(os.path.exists(f"{folder}/end"))])
    total = torch.cat([gradient(rank, step, weights), end])
    dist.all_reduce(total)
    weights = weights - 0.01 * total[:4] / size
    assert torch.allclose(weights, exact, rtol=1e-12, atol=1e-12), (weights, exact)
    state = torch.cat([torch.tensor([step + 1.0]), weights])
    torch.save(state, saved + ".new")
    os.replace(saved + ".new", saved)
    print(f"step {step + 1}", flush=True)
    if total[4]:
        break
    time.sleep(0.3)
dist.destroy_process_group()
"""


class Watch:
    """The workers at the coordinator, as they change."""

    def __init__(self, machines: Machines, address: str) -> None:
        home = machines.environment(0)["RINGLEADER_HOME"]
        script = coordinator_watch.__file__
        self.command = machines.start(0, sys.executable, script, address, home)

    def wait_for(self, ranks: set[int], after_s: float = 0.0) -> dict[str, Any]:
        """Return the first entry after a moment with exactly these ranks."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for line in list(self.command.lines):
                entry = json.loads(line)
                if (
                    entry["time_s"] >= after_s
                    and {*map(int, entry["workers"])} == ranks
                ):
                    return dict(entry)
            time.sleep(0.05)
        raise AssertionError(f"no ranks {ranks}:\n{''.join(self.command.lines)}")


def steps(run: Command) -> list[int]:
    found = (re.match(r"step (\d+)", line) for line in list(run.lines))
    return [int(match[1]) for match in found if match]


def num_rounds(run: Command) -> int:
    return sum("ringleader: round of" in line for line in list(run.lines))


def wait_for_steps(run: Command, more: int) -> None:
    before = len(steps(run))
    until_s = time.monotonic() + WAIT_S
    while len(steps(run)) < before + more:
        assert time.monotonic() < until_s, "".join(run.lines[-30:])
        time.sleep(0.05)


def rank_of(run: Command, size: int, after: int = 0) -> int:
    number = run.wait_for(f"/{size} from step", WAIT_S, after)
    found = re.search(r"rank (\d+)/", run.lines[number])
    assert found is not None
    return int(found[1])


@dataclass(slots=True)
class World:
    """Four machines that train, the coordinator and who watches it."""

    machines: Machines
    address: str
    coordinator: Command
    watch: Watch
    runs: list[Command]
    ranks: list[int]
    rounds: list[int]
    """How often each machine has begun a round until all four were there."""

    @classmethod
    def start(cls, machines: Machines) -> World:
        address = f"{machines.net.hosts[0].address}:7070"
        coordinator = serve(machines, address)
        coordinator.wait_for(address)
        runs = [train(machines, index, address) for index in range(4)]
        ranks = [rank_of(run, 4) for run in runs]
        rounds = [num_rounds(run) for run in runs]
        watch = Watch(machines, address)
        return cls(machines, address, coordinator, watch, runs, ranks, rounds)


def serve(machines: Machines, address: str) -> Command:
    flags = ("--listen", address, "--heartbeat-timeout", str(HEARTBEAT_S))
    return machines.start(0, *RINGLEADER, "coordinator", *flags)


def train(machines: Machines, index: int, address: str) -> Command:
    flags = ("--coordinator", address, "--min-nodes", "3", "--wait", "5")
    script = str(machines.folder / "train.py")
    return machines.run(index, *flags, script, str(machines.folder))


@pytest.fixture
def world(tmp_path: Path, warm_python: WarmPython) -> Iterator[World]:
    (tmp_path / "train.py").write_text(SCRIPT)
    with lan(hosts=4, rate="200mbit") as net:
        machines = Machines(net, tmp_path, warm_python)
        for index in range(4):
            net.no_multicast(index)
        try:
            yield World.start(machines)
        finally:
            machines.close()


def test_training_outlives_the_coordinator_and_a_worker(world: World) -> None:
    """ZF-7, ZF-8: heartbeats are sent, a restarted worker rejoins at its rank, and a
    broadcast from every root arrives everywhere."""
    assert sorted(world.ranks) == [0, 1, 2, 3]
    first = world.watch.wait_for({0, 1, 2, 3})
    kill_and_restart_the_coordinator(world, first["workers"])
    runs = kill_and_restart_a_worker(world)
    (world.machines.folder / "end").touch()
    end_s = time.monotonic()
    for run in runs:
        assert run.end() == 0, "".join(run.lines[-30:])
    world.watch.wait_for(set(), end_s)  # all have unregistered


def kill_and_restart_the_coordinator(world: World, workers: object) -> None:
    """Nobody but the user notices, and when it is back, everybody is registered."""
    world.coordinator.signal(signal.SIGKILL)
    world.coordinator.end()
    lost = f"coordinator {world.address} does not answer"
    for run in world.runs:
        run.wait_for(lost)
        wait_for_steps(run, 5)
    troubles = status_of(world.machines, 1)["troubles"]
    assert any(f"{lost} since" in trouble for trouble in troubles), troubles
    world.coordinator = serve(world.machines, world.address)
    back_s = time.monotonic()
    for run in world.runs:
        run.wait_for(f"coordinator {world.address} answers again")
    assert world.watch.wait_for({0, 1, 2, 3}, back_s)["workers"] == workers
    time.sleep(2.2 * HEARTBEAT_S)  # who sends no heartbeats is evicted by now
    assert json.loads(world.watch.command.lines[-1])["workers"] == workers
    for run, rounds in zip(world.runs, world.rounds, strict=True):
        assert num_rounds(run) == rounds, "nobody has restarted"
        found = steps(run)
        all_steps = list(range(found[0], found[0] + len(found)))
        assert found == all_steps, "no step is lost or repeated"


def kill_and_restart_a_worker(world: World) -> list[Command]:
    """It is evicted, the others train on, and it comes back at its rank."""
    runs, ranks, machines = world.runs, world.ranks, world.machines
    lost = next(index for index in (3, 2) if ranks[index] != 0)
    trained = steps(runs[lost])[-1]
    killed_s = time.monotonic()
    machines.net.hosts[lost].kill_all()
    world.watch.wait_for({0, 1, 2, 3} - {ranks[lost]}, killed_s)
    survivors = [index for index in range(4) if index != lost]
    marks = {index: runs[index].wait_for("/3 from step") for index in survivors}
    assert rank_of(runs[ranks.index(0)], 3) == 0, "a survivor keeps rank 0"
    back = train(machines, lost, world.address)
    assert rank_of(back, 4) == ranks[lost]
    for index in survivors:
        assert rank_of(runs[index], 4, marks[index]) == ranks[index]
    from_step = back.lines[back.wait_for("from step")].split()[-1]
    assert int(from_step) >= trained, "it goes on from the survivors' weights"
    return [back, *(runs[index] for index in survivors)]
