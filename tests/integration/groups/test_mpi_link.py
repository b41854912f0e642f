"""Groups over the link mpi, in one real job of mpirun."""

from __future__ import annotations

import re

import pytest

from tests.kit.mpi_jobs import needs_mpirun, run_job

WITHIN_S = 800.0


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_mpirun
def test_the_link_mpi_keeps_its_contract_computes_and_never_hangs() -> None:
    """One job for all: three interpreters with torch cost more than what they check."""
    done = run_job(
        3,
        *("-m", "tests.kit.mpi_program"),
        *("absent", "contract", "collectives", "aborted"),
        *("backend", "stopped", "finalized"),
        within_s=WITHIN_S,
        RINGLEADER_TRANSPORT="mpi",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    for rank in (0, 1):  # rank 2 forms no group at first, and another may be late
        assert re.search(
            f"rank {rank}: rank [^{rank}]: did not join over MPI within 1.0 s", said
        )
    for rank in range(3):
        assert f"rank {rank} is in a group of 3" in said
        assert f"rank {rank} of 3 is done" in said
        # Rank 1 called with another size. Who sees it first names the other.
        assert re.search(rf"^rank {rank}: rank \d: called all_reduce\(", said, re.M)
        # torch's group, then one of its first and last rank
        value = 6.0 if rank == 1 else 12.0
        lines = [line for line in said.splitlines() if " here: " in line]
        [line] = [line for line in lines if line.startswith(f"rank {rank} of 3, ")]
        assert line.endswith(f" here: {[value] * 4}")
    assert said.count("the contract holds") == 3
    for rank in (0, 1):  # else the job is late: see ``aborted``
        assert f"rank {rank} was woken: " in said
    assert said.count("MPI is finalized") == 3
    for rank in (0, 2):  # rank 1 was stopped in the middle of an all_reduce
        assert f"rank {rank} in time: rank 1: waited 8.0 s for it" in said, said
