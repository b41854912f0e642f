"""Groups from the environment that launchers set, in real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

import ringleader
from ringleader.groups import group_registry
from ringleader.groups.group import Group
from ringleader.groups.share_cores import share_cores
from ringleader.testing.processes import ForkServer, Ready, spawn_ranks
from ringleader.transport.free_ports import free_ports
from tests.kit.slurm_jobs import job_with_a_free_port
from tests.kit.warm_python import WarmPython

WITHIN_S = 200.0

SCRIPT = """
import torch
import ringleader

with ringleader.group(timeout_s=90) as group:
    tensor = torch.full((3,), float(group.rank + 1))
    group.all_reduce(tensor)
    print(f"rank {group.rank} of {group.size}: {tensor.tolist()}")
"""

# Whatever started this test must not speak through us.
_FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}


def join(
    group: Group, _: Ready, envs: list[dict[str, object]], timeout_s: float, late: int
) -> str:
    """What one process, whose environment is its own, has to say of its group.

    The processes know each other from the test already: the one that is ``late`` begins
    when it hears of a refusal.
    """
    if group.rank == late:
        group.recv(torch.zeros(1), None, timeout_s=WITHIN_S)
    env = {name: str(value) for name, value in envs[group.rank].items()}
    for name in os.environ.keys() - clean().keys():
        del os.environ[name]
    os.environ.update(env)
    try:
        with ringleader.group(timeout_s=timeout_s) as made:
            tensor = torch.full((3,), float(made.rank + 1))
            made.all_reduce(tensor)
            return f"rank {made.rank} of {made.size}: {tensor.tolist()}"
    except ringleader.RingleaderError as exc:
        if late >= 0:
            group.send(torch.zeros(1), late)
        return f"{type(exc).__name__} {exc}"


Run = Callable[..., list[str]]


@pytest.fixture
def run_all(fork_server: ForkServer) -> Run:
    """Run a process per environment; what each says."""

    def run(
        *envs: dict[str, object], timeout_s: float = 60.0, late: int = -1
    ) -> list[str]:
        with spawn_ranks(
            len(envs), join, list(envs), timeout_s, late, fork_server=fork_server
        ) as ranks:
            return [rank.result(WITHIN_S) for rank in ranks]

    return run


def meeting() -> dict[str, object]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}


def test_a_group_forms_from_the_names_of_torchrun_and_of_mpirun(run_all: Run) -> None:
    place = meeting()
    torchrun = {**place, "RANK": 0, "WORLD_SIZE": 2}
    mpirun = {**place, "OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}
    outputs = run_all(torchrun, mpirun)
    assert outputs == [f"rank {r} of 2: [3.0, 3.0, 3.0]" for r in range(2)]


def test_a_group_of_one_and_a_process_that_lacks_variables(run_all: Run) -> None:
    alone, lost = run_all({"RANK": 0, "WORLD_SIZE": 1}, {"RANK": 1})
    assert alone == "rank 0 of 1: [1.0, 1.0, 1.0]"
    assert lost.startswith("ConfigError not set in the environment: WORLD_SIZE")
    assert "use a launcher, or pass peers= and rank=" in lost


def test_of_two_processes_with_one_rank_the_second_is_refused(run_all: Run) -> None:
    place = meeting()
    claims = [{**place, "RANK": rank, "WORLD_SIZE": 3} for rank in (0, 1, 1, 2)]
    outputs = run_all(*claims, late=3)
    refused = [text for text in outputs if text.startswith("ConfigError")]
    assert refused == ["ConfigError two processes have rank 1; every one needs its own"]
    formed = sorted(text for text in outputs if text not in refused)
    assert formed == [f"rank {r} of 3: [6.0, 6.0, 6.0]" for r in range(3)]


def test_a_master_nobody_keeps_and_a_rank_that_never_comes_are_named(
    run_all: Run,
) -> None:
    """Two groups of two, of which one process each was started."""
    nowhere, lonely = meeting(), meeting()
    dials, keeps = run_all(
        {**nowhere, "RANK": 1, "WORLD_SIZE": 2},
        {**lonely, "RANK": 0, "WORLD_SIZE": 2},
        timeout_s=1.0,
    )
    where = f"127.0.0.1:{nowhere['MASTER_PORT']}"
    assert dials.startswith(f"PeerUnreachable {where}: ")
    assert keeps.startswith("PeerUnreachable rank 1: did not join within 1.0 s")


@pytest.mark.slow
def test_a_script_started_by_torchrun_finds_its_group(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["--standalone", "--nproc-per-node", "2", "--tee", "3"]
    torchrun = ("-m", "tests.kit.warm_children", "-m", "torch.distributed.run")
    process = warm_python.popen(*torchrun, *options, script, env=clean())
    said, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, said
    for rank in range(2):
        assert f"rank {rank} of 2: [3.0, 3.0, 3.0]" in said


def test_a_group_forms_from_the_names_of_slurm(run_all: Run) -> None:
    """With a port of its own for each job: two run at the same time."""
    first, second = job_with_a_free_port(), job_with_a_free_port()
    envs = [
        {
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NODELIST": "n[017]",
            "SLURM_LOCALID": rank,
            "SLURM_NTASKS": 2,
            "SLURM_PROCID": rank,
            "SLURM_STEP_ID": 0,
        }
        for job in (first, second)
        for rank in range(2)
    ]
    outputs = run_all(*envs)
    assert outputs == [f"rank {r} of 2: [3.0, 3.0, 3.0]" for r in (0, 1, 0, 1)]


def join_again(group: Group, _: Ready, folder: str) -> str:
    """Rank 0 tries it alone, then both do, then rank 1 fails at the end of an attempt.

    The test has made ``group`` before.
    """
    os.environ.update(
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
        OMPI_COMM_WORLD_RANK=str(group.rank),
        OMPI_FILE_LOCATION=f"{folder}/{group.rank}",
    )
    if group.rank == 0:
        with pytest.raises(ringleader.PeerUnreachable):
            ringleader.group(timeout_s=0.2)
    group.barrier()
    said = ""
    for turn in range(3):
        with ringleader.group(timeout_s=60.0) as made:
            said += f"rank {made.rank} of {made.size} "
        if turn == 1:
            with suppress(ringleader.ConfigError), fails_at_the_end(group.rank == 1):
                ringleader.group(timeout_s=60.0).close()
            group.barrier()
    return said


@contextmanager
def fails_at_the_end(is_here: bool) -> Iterator[None]:
    """Let forming fail here after all ranks have connected: the others succeed."""

    def share_and_fail(*args: object) -> None:
        share_cores(*args)  # type: ignore[arg-type]
        raise ringleader.ConfigError("on purpose")

    with pytest.MonkeyPatch.context() as patch:
        if is_here:
            patch.setattr(group_registry, "share_cores", share_and_fail)
        yield


def test_ranks_of_mpirun_meet_after_an_attempt_of_one_has_failed(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    """Was: each went on to another number, and they never met again."""
    (job := tmp_path / "job").mkdir(mode=0o700)
    with spawn_ranks(2, join_again, str(job), fork_server=fork_server) as ranks:
        said = [rank.result(WITHIN_S) for rank in ranks]
    assert said == ["rank 0 of 2 " * 3, "rank 1 of 2 " * 3]


def test_a_directory_that_others_can_write_is_refused(
    run_all: Run, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    job.chmod(0o777)
    size = {"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_SIZE": 2}
    [said] = run_all(
        {**size, "OMPI_COMM_WORLD_RANK": 1, "OMPI_FILE_LOCATION": job / "1"}
    )
    assert said.startswith("ConfigError other users can write to mpirun's directory")
