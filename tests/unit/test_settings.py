"""What launchers say in the environment, and what we say when they say too little."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError
from ringleader.settings import Launch

FULL = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in FULL.items() if name not in names}


def test_the_names_of_torchrun_are_read() -> None:
    launch = Launch.from_environment(FULL)
    assert (launch.rank, launch.size) == (1, 4)
    assert (launch.master, launch.port) == ("10.0.0.1", 29500)
    assert not launch.store_exists
    assert launch.attempt == "0"


def test_torchrun_keeps_the_store_and_counts_restarts() -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"}
    launch = Launch.from_environment({**FULL, **agent})
    assert launch.store_exists
    assert launch.attempt == "3"


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_the_names_of_other_launchers_are_read(rank: str, size: str) -> None:
    env = {**without("RANK", "WORLD_SIZE"), rank: "2", size: "3"}
    launch = Launch.from_environment(env)
    assert (launch.rank, launch.size) == (2, 3)


def test_the_names_of_torch_come_first() -> None:
    env = {**FULL, "OMPI_COMM_WORLD_RANK": "3", "SLURM_NTASKS": "99"}
    launch = Launch.from_environment(env)
    assert (launch.rank, launch.size) == (1, 4)


@pytest.mark.parametrize("name", FULL)
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"not set in the environment: {name};"):
        Launch.from_environment(without(name))


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        Launch.from_environment({})


def test_a_group_of_one_needs_no_master() -> None:
    launch = Launch.from_environment({"RANK": "0", "WORLD_SIZE": "1"})
    assert (launch.rank, launch.size) == (0, 1)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_what_is_no_number_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '{value}', not a number"):
        Launch.from_environment({**FULL, name: value})


@pytest.mark.parametrize(("rank", "size"), [(4, 4), (-1, 4), (0, 0), (0, -2)])
def test_a_rank_outside_the_group_is_refused(rank: int, size: int) -> None:
    env = {**FULL, "RANK": str(rank), "WORLD_SIZE": str(size)}
    with pytest.raises(ConfigError, match=f"rank {rank} of {size}"):
        Launch.from_environment(env)
