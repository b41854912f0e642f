"""The commands of the recipes train, on hosts without multicast."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.machines import RINGLEADER, Command, Machines
from tests.kit.slurm import Slurm, can_run_slurm
from tests.kit.slurm_jobs import job_with_a_free_port
from tests.kit.warm_python import WarmPython

WITHIN_S = 500.0
ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "examples/recipes"
FORKING = ("-m", "tests.kit.warm_children")
RESULT = re.compile(r"2 processes, ringleader: accuracy 9\d\.\d%")


def shell_blocks(name: str) -> list[str]:
    """Return the shell programs of a YAML file: its block scalars, in their order."""
    found, lines = [], (RECIPES / name).read_text().splitlines()
    for number, line in enumerate(lines):
        if line.endswith("|"):
            indent = len(line) - len(line.lstrip())
            block = []
            for each in lines[number + 1 :]:
                if each.strip() and len(each) - len(each.lstrip()) <= indent:
                    break
                block.append(each)
            found.append(textwrap.dedent("\n".join(block)).strip())
    return found


def test_kubernetes_runs_what_docker_runs() -> None:
    ports = " --port 29471 --tensor-port 29600-29601"
    names = {"/run/secrets/ringleader/": "/run/secrets/", ports: ""}
    blocks = shell_blocks("kubernetes.yaml")
    for theirs, ours in {**names, "ringleader-coordinator:": "coordinator:"}.items():
        blocks = [block.replace(theirs, ours) for block in blocks]
    assert blocks == shell_blocks("compose.yaml")
    assert len(blocks) == 2


def test_dstack_runs_what_skypilot_runs() -> None:
    text = (RECIPES / "dstack.yml").read_text()
    commands = re.findall(r"^  - (.*ringleader (?:join|run).*)$", text, re.MULTILINE)
    block = shell_blocks("skypilot.yaml")[1]
    block = block.replace('"$head"', '"$DSTACK_MASTER_NODE_IP"')
    block = block.replace("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM")
    ours = [
        line for line in block.splitlines() if re.search("ringleader (join|run)", line)
    ]
    assert commands == ours


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    is_possible, reason = can_make_lan()
    if not is_possible:
        pytest.skip(reason)
    with lan(hosts=3, rate="1gbit") as made:
        for index in range(3):
            made.no_multicast(index)
        yield made


@pytest.fixture
def machines(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> Iterator[Machines]:
    made = Machines(net, tmp_path, warm_python)
    shutil.copy(RECIPES / "train.py", tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def phrase(machines: Machines) -> str:
    env = {**machines.environment(0), "RINGLEADER_HOME": str(machines.folder / "init")}
    made = subprocess.run(
        [*RINGLEADER, "init", "--json"], env=env, capture_output=True, check=True
    )
    return str(json.loads(made.stdout)["phrase"])


def start(machines: Machines, index: int, program: str, **variables: str) -> Command:
    """Run a shell program on a host that is in no cluster yet; it forks Python's."""
    home = machines.folder / f"fresh{index}"
    home.mkdir()
    return machines.start(
        index,
        *(sys.executable, *FORKING, "sh", "-ec", f"cd {machines.folder}\n{program}"),
        RINGLEADER_HOME=str(home / "ringleader"),
        HOME=str(home),
        PATH=f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        **variables,
    )


def expect_training(runs: list[Command]) -> None:
    for run in runs:
        assert run.end(WITHIN_S) == 0, "".join(run.lines)
    assert RESULT.search("".join(line for run in runs for line in run.lines))


@pytest.mark.slow
def test_docker_compose_and_kubernetes(machines: Machines, phrase: str) -> None:
    secret = machines.folder / "phrase"
    secret.write_text(phrase + "\n")
    address = machines.net.hosts[0].address
    names = {"/run/secrets/phrase": str(secret), "coordinator:7070": f"{address}:7070"}
    programs = shell_blocks("compose.yaml")
    for name, here in names.items():
        programs = [program.replace(name, here) for program in programs]
    coordinator, worker = programs
    start(machines, 0, coordinator)
    expect_training([start(machines, i, worker) for i in (1, 2)])


@pytest.mark.slow
def test_skypilot_and_dstack(machines: Machines, phrase: str) -> None:
    program = shell_blocks("skypilot.yaml")[1].replace("examples/recipes/", "")
    variables = {
        "SKYPILOT_NODE_IPS": "\n".join(host.address for host in machines.net.hosts[:2]),
        "SKYPILOT_NUM_NODES": "2",
        "RINGLEADER_PHRASE": phrase,
    }
    expect_training([start(machines, i, program, **variables) for i in (0, 1)])


SRUN = """#!{python}
import os, subprocess, sys
tasks = []
for task in range(2):
    own = {{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}}
    tasks.append(subprocess.Popen(sys.argv[1:], env={{**os.environ, **own}}))
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.mark.slow
def test_slurm_with_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    """``srun`` is replaced by what it would start, for machines without Slurm."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(0o755)
    monkeypatch.chdir(ROOT)
    job = warm_python.popen(
        *(*FORKING, "bash", RECIPES / "slurm.sh"),
        env={
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SLURM_JOB_ID": str(job_with_a_free_port()),
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_JOB_NODELIST": "localhost",
            "OMP_NUM_THREADS": "1",
        },
    )
    said, _ = job.communicate(timeout=WITHIN_S)
    assert job.returncode == 0, said
    assert RESULT.search(said)


@pytest.mark.slow
@pytest.mark.skipif(not can_run_slurm()[0], reason=can_run_slurm()[1])
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_a_real_slurm_of_two_nodes(tmp_path: Path) -> None:
    """The script as it is, but for the cores that this machine may not have; then with
    both tasks on one node."""
    on_one = ("--nodes=1", "--ntasks-per-node=2")
    with lan(hosts=2) as net, Slurm(tmp_path, net) as slurm:
        for where in ((), on_one):
            options = (*where, "--cpus-per-task=1")
            said = slurm.submit(RECIPES / "slurm.sh", *options, within_s=WITHIN_S)
            assert RESULT.search(said), said
