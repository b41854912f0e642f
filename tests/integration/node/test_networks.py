"""Machines in different networks, which only an overlay joins, as WireGuard or Nebula.

Each home is a LAN of its own. Both have the same addresses, as home networks do: that
of a machine in the other home belongs, here, to another machine or to this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringleader.node.launch.resident_agent import stop_resident
from ringleader.simulation.lan import can_make_lan, lan, long_cable
from tests.kit.machines import RINGLEADER, Command, Machines
from tests.kit.warm_python import WarmPython

pytestmark = pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
values = torch.arange(100_000, dtype=torch.float64) + 7 * rank
expected = sum(torch.arange(100_000, dtype=torch.float64) + 7 * r for r in range(size))
dist.all_reduce(values)
print("sum", torch.equal(values, expected), "of", size, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


SURVIVES = """
import torch
import ringleader

data = torch.utils.data.TensorDataset(torch.arange(80_000.0).reshape(-1, 1))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = ringleader.elastic(model, optimizer, data, global_batch=8, micro_batch=4)
for (x,) in run:
    run.backward(model(x / 80_000).square().mean())
    if run.step() and run.version % 10 == 0:
        print("made step", run.version, flush=True)
"""


@dataclass(slots=True)
class Homes:
    """One machine in each of two homes, m0 and m1."""

    machines: list[Machines]
    overlay: tuple[str, str]

    def start(self, index: int, *words: str) -> Command:
        """Start a command of ours on a machine, which knows the other's overlay."""
        return self.machines[index].start(
            0,
            *RINGLEADER,
            *words,
            RINGLEADER_NAME=f"m{index}",
            RINGLEADER_PEERS=self.overlay[1 - index],
        )

    def run(self, *words: str) -> list[Command]:
        """Start the script on both."""
        return [
            self.start(i, "run", words[0], str(each.folder / "train.py"), *words[1:])
            for i, each in enumerate(self.machines)
        ]

    def cut(self) -> None:
        """Drop the overlay."""
        self.machines[1].net.hosts[0].set_up("far0", is_up=False)


@pytest.fixture
def homes(tmp_path: Path, warm_python: WarmPython) -> Iterator[Homes]:
    with ExitStack() as stack:
        nets = [stack.enter_context(lan(hosts=1)) for _ in range(2)]
        assert len({net.hosts[0].address for net in nets}) == 1, "as said above"
        overlay = stack.enter_context(
            long_cable(*(net.hosts[0] for net in nets), round_trip_s=0.01)
        )
        root, made = os.urandom(32), []
        for index, net in enumerate(nets):
            folder = tmp_path / f"home{index}"
            folder.mkdir()
            machines = Machines.with_script(net, folder, warm_python, SCRIPT)
            made.append(stack.enter_context(machines))
            made[-1].root = root
        yield Homes(made, overlay)


def test_a_job_typed_in_one_home_sums_in_both(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(homes.machines[0].folder)
    try:
        for index in range(2):
            up = homes.start(index, "up", "--jobs", "--wait", "0")
            assert up.end() == 0, "".join(up.lines)
        run = homes.start(0, "run", "--nodes", "2", "train.py", "ringleader")
        assert run.end() == 0, "".join(run.lines)
    finally:
        for machines in homes.machines:
            stop_resident(machines.folder / "home0")
    sums = [line for line in run.lines if "sum True of 2" in line]
    assert len(sums) == 2, "".join(run.lines)


@pytest.mark.slow
def test_gloo_uses_the_overlay_too(homes: Homes) -> None:
    for run in homes.run("--nodes=2", "gloo"):
        assert run.end() == 0, "".join(run.lines)
        assert any("sum True of 2" in line for line in run.lines), run.lines


@pytest.mark.slow
def test_a_coordinator_on_the_overlay_is_enough(homes: Homes) -> None:
    """Neither machine names the other: each registers its address on the way there."""
    address = f"{homes.overlay[0]}:7070"
    coordinator = homes.start(0, "coordinator", "--listen", address)
    coordinator.wait_for(address)
    homes.overlay = ("", "")
    for run in homes.run(f"--coordinator={address}", "ringleader"):
        assert run.end() == 0, "".join(run.lines)
        assert any("sum True of 2" in line for line in run.lines), run.lines


@pytest.mark.slow
def test_both_homes_say_what_they_tried_when_the_overlay_is_cut(homes: Homes) -> None:
    runs = homes.run("--nodes=2", "ringleader")
    for run in runs:
        run.wait_for("round of 2")
    homes.cut()
    for index, run in enumerate(runs):
        run.wait_for(f"{homes.overlay[1 - index]}:29471: ")
        assert any(f"lost m{1 - index}" in line for line in run.lines), run.lines


@pytest.mark.slow
def test_a_run_that_survives_takes_in_a_machine_of_another_home(homes: Homes) -> None:
    """The first worker was told its addresses before the overlay carried anything."""
    for machines in homes.machines:
        (machines.folder / "train.py").write_text(SURVIVES)
    script = "train.py"
    flags = ("run", "--survive", "--min-nodes", "1", "--wait", "0")
    first = homes.start(0, *flags, str(homes.machines[0].folder / script))
    first.wait_for("made step")
    second = homes.start(1, *flags, str(homes.machines[1].folder / script))
    for run in (first, second):
        mark = run.wait_for("2 machines" if run is second else "m1 joined")
        run.wait_for("made step", after=mark)
