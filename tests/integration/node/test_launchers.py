"""Programs that mpirun or Slurm start, with no variable of torch set by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.mpi_jobs import needs_mpirun, run_job
from tests.kit.slurm import Slurm, can_run_slurm

pytestmark = pytest.mark.slow

WITHIN_S = 500.0
PROGRAM = ("-m", "tests.kit.mpi_program")

AGENT = """#!/bin/bash
# Starts mpirun's daemon on a host of the LAN; each host has a name of its own.
host=$1
shift
case $host in
{cases}
esac
exec ip netns exec $name unshare --uts bash -c "hostname $name; $*"
"""


def check(said: str, size: int, local_ranks: list[int]) -> None:
    """Check what the programs ``backend`` and ``groups`` said on all ranks."""
    total = size * (size + 1) / 2
    lines = [line for line in said.splitlines() if " here: " in line]
    # mpirun may number the ranks of a machine in another order than those of the job.
    local = [int(line.split(" here: ")[0].split()[-1]) for line in lines]
    assert sorted(local) == local_ranks
    for rank in range(size):
        value = 2 * total if rank in (0, size - 1) else total
        found = [line for line in lines if line.startswith(f"rank {rank} of {size},")]
        assert [line.split(" here: ")[1] for line in found] == [str([value] * 4)]
        for turn in range(2):
            assert f"group {turn}, rank {rank} of {size}: {[total] * 3}" in said


@needs_mpirun
def test_bare_mpirun_forms_the_backend_and_groups() -> None:
    """Was: MASTER_ADDR expected, but not set."""
    done = run_job(3, *PROGRAM, "backend", "groups", within_s=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, 3, [0, 1, 2])


@needs_mpirun
@pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1])
def test_bare_mpirun_on_two_hosts_forms_the_backend_and_groups(tmp_path: Path) -> None:
    """Rank 0 tells by MPI where it is. Was: not set in the environment: MASTER_ADDR."""
    with lan(hosts=2) as net:
        cases = "\n".join(f"{h.address}) name={h.name};;" for h in net.hosts)
        agent = tmp_path / "agent"
        agent.write_text(AGENT.format(cases=cases))
        agent.chmod(0o755)
        first = net.hosts[0]
        done = run_job(
            2,
            *(*PROGRAM, "backend", "groups", "collectives"),
            within_s=WITHIN_S,
            before=[str(agent), first.address],
            options=[
                *("--prtemca", "plm_ssh_agent", str(agent)),
                *("--map-by", "node", "--bind-to", "none"),
                *("--host", ",".join(host.address for host in net.hosts)),
                *("-x", "RINGLEADER_PLAINTEXT=1"),
            ],
        )
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, 2, [0, 0])
    for rank in range(2):
        assert f"rank {rank} of 2 is done" in done.stdout  # over the link mpi


@pytest.mark.skipif(not can_run_slurm()[0], reason=can_run_slurm()[1])
def test_srun_of_a_real_slurm_forms_the_backend_and_groups(tmp_path: Path) -> None:
    with Slurm(tmp_path) as slurm:
        said = slurm.run(3, *PROGRAM, "backend", "groups", within_s=WITHIN_S)
    check(said, 3, [0, 1, 2])
