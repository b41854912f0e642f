"""``ringleader run`` on each machine of a virtual LAN runs the script on all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from ringleader.testing.node_process import NodeProcess, make_home
from tests.kit import agent_worker
from tests.kit.machines import RINGLEADER, TORCHRUN, Machines, status_of
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

SCRIPT = """
import sys, time, torch
import torch.distributed as dist

dist.init_process_group("ringleader")
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.full((4,), float(rank + 1), dtype=torch.float64)
dist.all_reduce(value)
assert bool((value == size * (size + 1) / 2).all()), value
beside = dist.new_group(backend="gloo")
dist.all_reduce(value, group=beside)
assert bool((value == size * size * (size + 1) / 2).all()), value
print(f"rank {rank}/{size} {sys.argv[1:]}", flush=True)
steps = torch.zeros(1)
while steps < float(sys.argv[1]):
    steps += 0.05
    dist.broadcast(steps, 0)
    time.sleep(0.05)
dist.destroy_process_group()
print("done", flush=True)
"""

UNCHANGED = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.full((2,), dist.get_rank() + 1.0)
dist.all_reduce(value)
# One argument: torchrun's "python -u" writes each of several on its own, and two
# ranks that share a pipe then mix their lines.
print(f"{type(dist.group.WORLD).__name__} {dist.get_backend()} {value[0].item()}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=3, rate="1gbit") as made:
        for host in made.hosts:
            host.name_is_loopback()  # as on every Debian machine
        yield made


@pytest.fixture
def machines(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> Iterator[Machines]:
    with Machines.with_script(net, tmp_path, warm_python, SCRIPT) as made:
        yield made


def test_one_command_on_each_machine_runs_the_script_on_all(machines: Machines) -> None:
    script = str(machines.folder / "train.py")
    runs = [machines.run(i, "--nodes", "2", script, "0") for i in range(2)]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
        assert any("/2 [" in line for line in run.lines)


@pytest.mark.slow
def test_the_others_go_on_without_a_lost_machine_and_readmit_it(
    machines: Machines,
) -> None:
    script = str(machines.folder / "train.py")
    flags = ("--min-nodes", "2", "--wait", "1", script)
    runs = [machines.run(i, *flags, "3600", f"own-{i}") for i in range(3)]
    for i, run in enumerate(runs):
        run.wait_for("/3 [")
        assert f"own-{i}" in "".join(run.lines), "arguments may differ per machine"

    seen = status_of(machines, 0)
    assert {row["name"] for row in seen["nodes"]} == {"m0", "m1", "m2"}
    assert all(row["jobs"] == ["default"] for row in seen["nodes"])

    before = [len(run.lines) for run in runs[:2]]
    machines.net.hosts[2].kill_all()
    marks = [
        run.wait_for("/2 [", after=number)
        for run, number in zip(runs, before, strict=False)
    ]
    back = machines.run(2, *flags, "3600")
    back.wait_for("/3 [")
    for run, mark in zip(runs, marks, strict=False):
        run.wait_for("/3 [", after=mark)


@pytest.mark.slow
def test_torchrun_finds_the_others_too(machines: Machines) -> None:
    script = str(machines.folder / "train.py")
    flags = ("--rdzv-backend=mdns", "--nnodes=2", "--rdzv-id=job", script, "1")
    runs = [machines.start(i, *TORCHRUN, *flags) for i in range(2)]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
        assert any("/2 [" in line for line in run.lines)


@pytest.mark.slow
def test_torchrun_with_its_own_store_as_documented(machines: Machines) -> None:
    script, first = str(machines.folder / "train.py"), machines.net.hosts[0].address
    store = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:29400")
    runs = [
        machines.start(
            i,
            *(*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *store),
            *("--rdzv-conf", f"is_host={int(i == 0)}"),
            *("--local-addr", machines.net.hosts[i].address, script, "1"),
            GLOO_SOCKET_IFNAME="eth0",
            RINGLEADER_PLAINTEXT="1",
        )
        for i in range(2)
    ]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
        assert any("/2 [" in line for line in run.lines)


@pytest.mark.slow
def test_a_firewall_needs_to_let_through_the_given_ports_only(
    machines: Machines,
) -> None:
    """One for the agent, one per rank for all its groups, and one for the store."""
    script, hosts = machines.folder / "ours.py", machines.net.hosts[:2]
    beside = 'dist.new_group(backend="gloo")'  # Gloo takes any port
    script.write_text(SCRIPT.replace(beside, "[dist.new_group() for _ in range(4)][3]"))
    flags = ("--nodes", "2", "--tensor-port", "29600-29601", str(script), "0")
    # With c10d, torchrun itself opens a store on any free port of rank 0.
    store = ("--nnodes=2", f"--master-addr={hosts[0].address}", "--master-port=29500")
    torchrun = (*TORCHRUN, *store)
    variables = {"RINGLEADER_PORTS": "29600", "RINGLEADER_PLAINTEXT": "1"}
    for host in hosts:
        host.block_high_ports()
    try:
        runs = [machines.run(i, *flags) for i in range(2)]
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
            assert any("/2 [" in line for line in run.lines)
        runs = [
            machines.start(
                i, *torchrun, f"--node-rank={i}", str(script), "0", **variables
            )
            for i in range(2)
        ]
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
            assert any("/2 [" in line for line in run.lines)
    finally:
        for host in hosts:
            host.unblock_high_ports()


JOIN = """
import ringleader
try:
    ringleader.join(nodes=2, timeout_s=8)
except ringleader.DeadlineExceeded as error:
    print("in time:", error.peer, error)
"""


@pytest.mark.slow
def test_joining_without_others_ends_at_its_deadline(machines: Machines) -> None:
    alone = machines.start(0, sys.executable, "-c", JOIN)
    assert alone.end() == 0, "".join(alone.lines)
    text = "".join(alone.lines)
    assert "in time: job default job default: no round began" in text
    assert text.index("waiting for") < text.index("in time"), "it says why it waits"


@pytest.mark.slow
def test_a_script_without_launcher_finds_the_others_by_itself(
    machines: Machines,
) -> None:
    script = machines.folder / "alone.py"
    text = SCRIPT.replace('"ringleader"', '"ringleader", init_method="mdns://?nodes=2"')
    script.write_text(text)
    runs = [machines.start(i, sys.executable, str(script), "1") for i in range(2)]
    for run in runs:
        assert run.end() == 0, "".join(run.lines)
    ranks = sorted(line[:8] for run in runs for line in run.lines if "/2 [" in line)
    assert ranks == ["rank 0/2", "rank 1/2"]


@pytest.mark.slow
def test_an_unchanged_script_gets_our_backend_if_the_user_says_so(
    machines: Machines,
) -> None:
    """Two machines in a network, and torchrun on one: Gloo is asked for, we come."""
    script = machines.folder / "unchanged.py"
    script.write_text(UNCHANGED)
    runs = [
        machines.run(i, "--nodes", "2", "--backend", "ringleader", str(script))
        for i in range(2)
    ]
    alone = machines.start(
        2, *TORCHRUN, "--nproc-per-node=2", str(script), RINGLEADER_DEFAULT="1"
    )
    for command in (*runs, alone):
        assert command.end() == 0, "".join(command.lines)
        text = "".join(command.lines)
        assert "ringleader replaces gloo for cpu tensors (RINGLEADER_DEFAULT=1)" in text
        assert "RingleaderGroup gloo 3.0" in text
    refused = machines.run(0, "--backend", "nccl", str(script))
    assert refused.end() == 1
    assert "only ringleader can replace" in "".join(refused.lines)


@pytest.mark.slow
def test_another_program_is_refused_with_both_names(machines: Machines) -> None:
    """Also if only a module differs that the program imports."""
    folders = [machines.folder / str(number) for number in range(3)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        changed = "# changed\n" if number == 1 else ""
        (folder / "train.py").write_text(f"import helper\n{SCRIPT}{changed}")
        (folder / "helper.py").write_text("x = 2" if number == 2 else "x = 1")
    scripts = [str(folder / "train.py") for folder in folders]
    first = machines.run(0, "--nodes", "2", scripts[0], "1")
    first.wait_for("waiting for 1 more machine")
    said = []
    for index in (1, 2):  # one after the other: they differ from each other as well
        other = machines.run(index, "--nodes", "2", scripts[index], "1")
        assert other.end() == 1
        said.append(" ".join("".join(other.lines).split()))
    assert "script is" in said[0], said[0]
    assert "of the imported modules helper.py differ" in said[1], said[1]
    assert all("m0" in text and "--any-script" in text for text in said)
    first.wait_for("m1 is refused (different script)")
    first.wait_for("m2 is refused (different modules)")


@pytest.mark.slow
def test_a_machine_that_waits_says_why_and_how_long(machines: Machines) -> None:
    """The other machine has another secret: they hear each other and stay apart."""
    home = make_home(machines.folder / "stranger", os.urandom(32))
    agent = Path(agent_worker.__file__)
    stranger = NodeProcess.start(machines.net.hosts[1], home, agent, "m1")
    try:
        stranger.wait_for("up")
        script = str(machines.folder / "train.py")
        run = machines.run(0, "--nodes", "2", "--timeout", "500", script, "1")
        run.wait_for("1 here (m0); waiting for 1 more machine")
        mark = run.wait_for("still waiting, 4")
        assert "s left: 1 here (m0); waiting for 1 more machine" in run.lines[mark]
        run.wait_for("to find out why: ringleader doctor", after=mark)
        run.wait_for("no other node of this cluster is in sight", after=mark)
        # In a later report, if it was not heard by the first.
        run.wait_for("1 other node on this network with another secret", after=mark)
    finally:
        stranger.close()


def test_a_machine_in_no_cluster_is_told_what_to_do(
    machines: Machines, tmp_path: Path
) -> None:
    env = {**os.environ, "RINGLEADER_HOME": str(tmp_path / "nobody")}
    script = str(machines.folder / "train.py")
    done = subprocess.run(
        [*RINGLEADER, "run", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=env,
    )
    assert done.returncode == 1
    assert "ringleader init" in done.stderr
    assert "Traceback" not in done.stderr
