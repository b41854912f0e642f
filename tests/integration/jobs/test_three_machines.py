"""One command on one machine runs a program on three, and ends as a user expects."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringleader.node.launch.resident_agent import find_resident, stop_resident
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import IMPATIENT, RINGLEADER, Command, Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

LIMIT_S = 600.0

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from modell import make_model
from daten.lesen import read_data

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = read_data(rank, size)
for step in range(5):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
norm = sum(p.square().sum() for p in model.parameters()).item()
print(f"rank {rank}/{size} norm {norm:.9f} {sys.argv[1:]} {dist.group.WORLD.name()}")
if rank == 0:
    os.makedirs("ergebnis", exist_ok=True)
    torch.save(model.module.state_dict(), "ergebnis/größe.pt")
dist.destroy_process_group()
"""
MODEL = """
import torch

def make_model():
    return torch.nn.Linear(4, 1)
"""
DATA = """
from pathlib import Path
import torch

def read_data(rank, size):
    rows = Path(__file__).with_name("zahlen.csv").read_text().split()
    table = torch.tensor([[float(n) for n in row.split(",")] for row in rows])
    return table[rank::size, :4], table[rank::size, 4:]
"""
LONG = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank}/{size} pid {os.getpid()}")
if sys.argv[1:] == ["raise"] and rank == 2:
    raise ValueError("boom on rank 2")
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""
UNTIL = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group()
who = f"rank {dist.get_rank()}/{dist.get_world_size()}"
print(f"{who} waits", flush=True)
is_time = torch.zeros(1)
while not is_time:
    is_time += os.path.exists(sys.argv[1])
    dist.all_reduce(is_time)
    time.sleep(0.05)
print(f"{who} goes")
dist.destroy_process_group()
"""


@dataclass(slots=True)
class Cluster:
    """Three machines that are up, with homes of their own.

    Jobs start warm, since a new interpreter imports for four seconds; but not on m1
    after its agent was killed.
    """

    machines: Machines
    project: Path

    def start(self, index: int, *words: str) -> Command:
        return self.machines.start(index, *RINGLEADER, *words)

    def ask(self, index: int, *words: str, status: int = 0) -> str:
        command = self.start(index, *words)
        assert command.end(LIMIT_S) == status, "".join(command.lines)
        return "".join(command.lines)

    def jobs(self, index: int) -> list[dict[str, Any]]:
        said = self.ask(index, "jobs", "--json")
        found: list[dict[str, Any]] = json.loads(said[said.index("[") :])
        return found

    def home(self, index: int) -> Path:
        return self.machines.folder / f"home{index}"

    def is_warm(self, index: int) -> bool:
        agent = find_resident(self.home(index))
        return agent is not None and bool(agent.warm)

    def nothing_is_left(self) -> None:
        """No process of a job remains on any machine."""
        wait_until(lambda: not workers(self.machines.folder))


def workers(folder: Path) -> list[int]:
    """Process ids of supervisors, launchers and workers of jobs below ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            place = os.readlink(path / "cwd")
        except OSError:
            continue
        is_supervisor = "jobs.machine.supervisor" in words and str(folder) in words
        is_in_job = place.startswith(f"{folder}/home") and "/jobs/" in place
        if is_supervisor or is_in_job:
            found.append(int(path.name))
    return found


def wait_until(is_true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(1.0)  # many ask by a command


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=3, rate="1gbit") as made:
        yield made


@pytest.fixture(scope="module")
def cluster(
    net: VirtualLan, tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("machines")
    project = folder / "Mein Projekt für Züge"
    (project / "daten").mkdir(parents=True)
    (project / "train.py").write_text(TRAIN)
    (project / "long.py").write_text(LONG)
    (project / "until.py").write_text(UNTIL)
    (project / "modell.py").write_text(MODEL)
    (project / "daten" / "__init__.py").write_text("")
    (project / "daten" / "lesen.py").write_text(DATA)
    rows = [",".join(str((i * k) % 7) for k in range(1, 6)) for i in range(60)]
    (project / "daten" / "zahlen.csv").write_text("\n".join(rows))
    machines = Machines(net, folder, warm_python)
    made = Cluster(machines, project)
    try:
        for index in range(3):
            made.ask(index, "up", "--jobs", "--wait", "0", "--warm")
        wait_until(lambda: all(made.is_warm(index) for index in range(3)))
        wait_until(lambda: len(known(made)) == 3)
        yield made
    finally:
        for index in range(3):
            stop_resident(made.home(index))
        machines.close()


def known(cluster: Cluster) -> list[dict[str, Any]]:
    """The machines that the first one sees and that accept jobs."""
    said = cluster.ask(0, "status", "--json")
    rows = json.loads(said[said.index("[") :])[0]["nodes"]
    return [row for row in rows if row["in_view"] and row["accepts_jobs"]]


@pytest.fixture(autouse=True)
def in_project(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cluster.project)


def job_of(run: Command) -> str:
    """The id of a job that a command has started."""
    number = run.wait_for("ringleader: job ", LIMIT_S)
    match = re.search(r"job (\S+) on ", run.lines[number])
    assert match is not None, run.lines[number]
    return match[1]


def test_one_command_trains_on_three_machines(cluster: Cluster) -> None:
    """Unchanged torchrun script, two local modules, a data file; results come home.

    It names no backend, so that it gets ours.
    """
    wanted = "--fetch", "ergebnis", "--trace", "ergebnis.json"
    said = cluster.ask(0, "run", *wanted, "train.py", "--x", "ä b")
    norms = re.findall(r"^(m\d):(\d) +\| rank \d/3 norm (\S+) (.*)$", said, re.M)
    assert sorted((m, r) for m, r, _, _ in norms)[0] == ("m0", "0"), said
    assert {m for m, *_ in norms} == {"m0", "m1", "m2"}, said
    assert len({norm for _, _, norm, _ in norms}) == 1, "all ranks have one model"
    assert "no worker formed a process group" not in said
    assert {args for *_, args in norms} == {"['--x', 'ä b'] ringleader"}
    assert (cluster.project / "ergebnis" / "größe.pt").stat().st_size > 500
    trace = json.loads((cluster.project / "ergebnis.json").read_text())
    steps = [e["pid"] for e in trace["traceEvents"] if e.get("cat") == "step"]
    assert sorted(steps) == sorted([0, 1, 2] * 5)
    (job,) = cluster.jobs(2)
    assert job["state"] == "succeeded"
    assert job["machines"] == dict.fromkeys(("m0", "m1", "m2"), "succeeded")
    assert [*job["written"]] == ["m0"], "the others have imported, no more"
    assert {each["name"] for each in job["written"]["m0"]} == {
        *("ergebnis/", "ergebnis.json"),
    }
    brought = cluster.machines.folder / "brought"
    assert "files of m0" in cluster.ask(2, "fetch", "--into", str(brought))
    model = cluster.project / "ergebnis" / "größe.pt"
    assert (brought / "ergebnis" / "größe.pt").read_bytes() == model.read_bytes()
    of_rank_1 = cluster.ask(1, "logs", "--rank", "1")
    assert "rank 1/3" in of_rank_1
    assert "rank 0/3" not in of_rank_1
    cluster.nothing_is_left()


def test_a_command_that_is_typed_on_two_machines_is_one_job(cluster: Cluster) -> None:
    """At the same moment, and a little later on the third."""
    stop = cluster.machines.folder / "typed twice"
    runs = [cluster.start(index, "run", "until.py", str(stop)) for index in (0, 1)]
    for each in runs:
        each.wait_for("rank 0/3 waits", LIMIT_S)
    runs.append(cluster.start(2, "run", "until.py", str(stop)))
    runs[-1].wait_for("rank 0/3 waits", LIMIT_S)
    running = [job for job in cluster.jobs(0) if job["state"] == "running"]
    assert len(running) == 1
    stop.touch()
    for each in runs:
        assert each.end(LIMIT_S) == 0, "".join(each.lines)
        assert "rank 2/3 goes" in "".join(each.lines)
    assert {job_of(each) for each in runs} == {running[0]["id"]}
    told = ["this is that job" in "".join(each.lines) for each in runs]
    assert sorted(told) == [False, True, True]
    cluster.nothing_is_left()


def test_a_failure_on_rank_2_is_shown_with_its_machine(cluster: Cluster) -> None:
    said = cluster.ask(0, "run", "long.py", "raise", status=1)
    error = said[said.rindex("ringleader: job ") :]
    assert re.search(r"failed: rank 2 on m\d failed: ValueError: boom on rank 2", error)
    assert said.count("ringleader: job ") == 2, "where it runs, and one clear message"
    assert cluster.jobs(1)[0]["state"] == "failed"
    cluster.nothing_is_left()


def pid_of(run: Command, rank: int) -> int:
    number = run.wait_for(f"rank {rank}/", LIMIT_S)
    return int(run.lines[number].split()[-1])


def test_a_killed_worker_ends_the_job(cluster: Cluster) -> None:
    run = cluster.start(0, "run", "--on", "m0,m2", "long.py")
    os.kill(pid_of(run, 1), signal.SIGKILL)
    assert run.end(LIMIT_S) == 128 + signal.SIGKILL, "".join(run.lines)
    assert "rank 1 on m" in "".join(run.lines)
    assert "SIGKILL" in "".join(run.lines)
    cluster.nothing_is_left()


def test_ctrl_c_stops_every_machine(cluster: Cluster) -> None:
    run = cluster.start(0, "run", "--quiet-ranks", "--on", "m1,m2", "long.py")
    job = job_of(run)
    run.wait_for("round of 2", LIMIT_S)
    run.signal(signal.SIGINT)
    assert run.end(LIMIT_S) == 130, "".join(run.lines)
    assert f"job {job} was stopped" in "".join(run.lines)
    assert "pid" not in "".join(run.lines), "--quiet-ranks"
    states = {each["id"]: each["state"] for each in cluster.jobs(0)}
    assert states[job] == "stopped"
    cluster.nothing_is_left()


def test_jobs_outlive_the_command_and_an_agent_and_are_two_at_once(
    cluster: Cluster,
) -> None:
    first = cluster.start(0, "run", "long.py")
    pid_of(first, 2)
    assert len(workers(cluster.machines.folder)) >= 9, "three on each machine"
    detached = cluster.ask(1, "run", "--detach", "--on", "m0,m1", "long.py")
    second = re.findall(r"job (\S+) on m1, m0", detached)[0]
    job = job_of(first)
    first.signal(signal.SIGKILL)
    assert first.end(LIMIT_S) == -signal.SIGKILL
    states = {each["id"]: each["state"] for each in cluster.jobs(2)}
    assert states[job] == states[second] == "running"

    attached = cluster.start(2, "attach", job)
    attached.wait_for("rank 0/3 pid", LIMIT_S)
    agent = find_resident(cluster.home(1))
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    attached.wait_for("/2 pid", LIMIT_S)  # it goes on without m1
    cluster.ask(1, "up", "--jobs", "--wait", "0")
    wait_until(lambda: len(known(cluster)) == 3)
    assert "has ended" in cluster.ask(1, "stop", job)
    assert attached.end(LIMIT_S) == 130, "".join(attached.lines)
    cluster.ask(0, "stop", "--now", second)
    cluster.nothing_is_left()


def test_a_cut_cable_of_the_starter_ends_its_command_and_not_the_job(
    cluster: Cluster,
) -> None:
    """It has no rank. The job ends while its cable is cut; later it knows how."""
    stop = cluster.machines.folder / "stop"
    on = ("--on", "m1,m2", "until.py", str(stop))
    run = cluster.machines.start(0, *IMPATIENT, "run", *on)
    job = job_of(run)
    run.wait_for("rank 1/2 waits", LIMIT_S)
    cluster.machines.net.cut(0)
    try:
        assert run.end(LIMIT_S) == 1, "".join(run.lines)
        said = "".join(run.lines)
        assert f"job {job}: no machine answers any more" in said
        assert f"ringleader attach {job}" in said
        assert state_of(cluster, 1, job) == "running"
        stop.touch()
        wait_until(lambda: state_of(cluster, 2, job) == "succeeded")
        assert "rank 1/2 goes" in cluster.ask(2, "logs", job)
    finally:
        cluster.machines.net.mend(0)
    wait_until(lambda: len(known(cluster)) == 3)
    wait_until(lambda: state_of(cluster, 0, job) == "succeeded")
    cluster.nothing_is_left()


def state_of(cluster: Cluster, index: int, job: str) -> str:
    """How a job stands, as one machine tells it."""
    found = {each["id"]: each["state"] for each in cluster.jobs(index)}
    return str(found.get(job))
