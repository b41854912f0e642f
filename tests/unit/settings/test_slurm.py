"""What Slurm says about a step, and where its tasks meet. No Slurm is needed here."""

from __future__ import annotations

import time

import pytest

from ringleader.errors import ConfigError
from ringleader.settings import slurm
from ringleader.settings.launch import Launch, lacks_torch_variables
from ringleader.settings.slurm import expand_nodes

STEP = {  # as srun of Slurm 22.05 set them
    "SLURM_JOB_ID": "41",
    "SLURM_JOB_NODELIST": "n[007-009],login1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "n[007-009]",
    "SLURM_STEP_NUM_TASKS": "6",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,m2.example.org", ["n1", "m2.example.org"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,03-04,7]", ["n1", "n03", "n04", "n7"]),
        ("a[1-2]b[0-1]", ["a1b0", "a1b1", "a2b0", "a2b1"]),
        ("gpu-[5]-ib,n[2,9]", ["gpu-5-ib", "n2", "n9"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_a_node_list_expands_in_its_order(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,",
        ",a",
        "n[",
        "n]",
        "n[]",
        "n[3-1]",
        "n[1-]",
        "n[a-b]",
        "n[[1]]",
        "n[1-9999999999]",
        "n[1-2",
        "a b",
        "a;rm -rf",
        "$(x)",
        "\0",
        "é",
        "n[1]]" * 5000,
    ],
)
def test_what_is_no_node_list_is_one_short_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^Slurm's node list is .*, not like") as err:
        expand_nodes(text)
    assert len(str(err.value)) < 150 + 3 * 60


@pytest.mark.parametrize(
    "text",
    ["n[0-99999999]", "n[0-65535],m", "n[0-999]m[0-999]", "[0-65535]" * 10_000],
)
def test_a_huge_node_list_is_refused_before_it_is_expanded(text: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(ConfigError, match="more than 65536 nodes"):
        expand_nodes(text)
    assert time.monotonic() - start_s < 60


def test_a_step_of_srun_meets_at_its_first_node() -> None:
    launch = Launch.from_environment(STEP)
    assert (launch.rank, launch.size, launch.local_rank) == (5, 6, 1)
    assert (launch.master, launch.port) == ("n007", slurm.port(STEP))
    assert not launch.asks_mpi
    assert lacks_torch_variables(STEP)


def test_the_address_of_the_launching_node_is_used_only_if_task_0_is_there() -> None:
    batch = {**STEP, "ENVIRONMENT": "BATCH"}
    assert slurm.master(batch) == "10.0.0.7"
    assert slurm.master({**batch, "SLURM_STEP_NODELIST": "n[008-009]"}) == "n008"
    assert slurm.master(STEP) == "n007"  # srun may run on a login node


def test_a_step_on_one_node_stays_inside_it() -> None:
    assert slurm.master({**STEP, "SLURM_STEP_NODELIST": "n008"}) == "127.0.0.1"


def test_jobs_and_steps_on_a_node_have_ports_of_their_own() -> None:
    ports = {
        slurm.port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(1000, 1190)
        for step in range(60)
    }
    assert len(ports) == 190 * 60
    assert all(port is not None and 1024 < port < 32768 for port in ports)


def test_what_the_user_or_torchrun_says_comes_first() -> None:
    place = {"MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "29500"}
    launch = Launch.from_environment({**STEP, **place, "RANK": "0", "WORLD_SIZE": "2"})
    assert (launch.rank, launch.size) == (0, 2)
    assert (launch.master, launch.port) == ("10.9.9.9", 29500)
    assert not lacks_torch_variables({**STEP, **place, "RANK": "0", "WORLD_SIZE": "2"})


def test_the_script_of_a_job_is_told_to_use_srun() -> None:
    script = {k: v for k, v in STEP.items() if "STEP" not in k}
    with pytest.raises(
        ConfigError, match="script of a Slurm job, not to its tasks; start it"
    ):
        Launch.from_environment({**script, "SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SLURM_PROCID", "x" * 9999, "SLURM_PROCID is 'xxx.*, not a number"),
        ("SLURM_PROCID", "6", "no rank 6 in a world of 6"),
        ("SLURM_PROCID", "-1", "no rank -1 in a world of 6"),
        ("SLURM_STEP_NUM_TASKS", "0", "no rank 5 in a world of 0"),
        ("SLURM_JOB_ID", "41; ls", "SLURM_JOB_ID is '41; ls', not a number"),
        ("SLURM_JOB_ID", "9" * 9999, "SLURM_JOB_ID is '999.*, not a number"),
        ("SLURM_STEP_NODELIST", "n[1", "node list is"),
    ],
)
def test_broken_values_are_one_sentence(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as err:
        Launch.from_environment({**STEP, name: value})
    assert len(str(err.value)) < 200
