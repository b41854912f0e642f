"""What launchers say in the environment, and what we say when they say too little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.settings import (
    LinkSettings,
    helper_threads,
    shares_buckets,
    switch_interval_s,
    tensor_ports,
)
from ringleader.settings.launch import Launch, local_size
from ringleader.settings.tls_files import TlsFiles

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
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_the_names_of_other_launchers_are_read(rank: str, size: str) -> None:
    env = {**without("RANK", "WORLD_SIZE"), rank: "2", size: "3"}
    launch = Launch.from_environment(env)
    assert (launch.rank, launch.size) == (2, 3)


MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_FILE_LOCATION": "/tmp/ompi.15/1/0",
}


def test_ranks_of_mpirun_on_one_machine_meet_in_its_directory() -> None:
    launch = Launch.from_environment(MPIRUN)
    assert (launch.master, launch.directory) == ("127.0.0.1", "/tmp/ompi.15/1")
    place = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    launch = Launch.from_environment({**MPIRUN, **place})
    assert (launch.master, launch.port, launch.directory) == ("10.0.0.1", 29500, "")


def test_ranks_of_mpirun_on_several_machines_ask_mpi_where_they_meet() -> None:
    env = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    launch = Launch.from_environment(env)
    assert (launch.asks_mpi, launch.master, launch.directory) == (True, "", "")
    place = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    launch = Launch.from_environment({**env, **place})
    assert (launch.asks_mpi, launch.master, launch.port) == (False, "10.0.0.1", 29500)


HYDRA = {
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}


def test_mpich_and_intel_mpi_are_asked_as_well() -> None:
    launch = Launch.from_environment(HYDRA)
    assert (launch.rank, launch.size, launch.local_rank) == (3, 4, 1)
    assert (launch.asks_mpi, launch.master) == (True, "")
    launch = Launch.from_environment({**HYDRA, "MPI_LOCALNRANKS": "4"})
    assert (launch.asks_mpi, launch.master) == (True, "127.0.0.1")


def test_mpirun_inside_a_slurm_job_is_not_a_step_of_srun() -> None:
    """Its processes inherit SLURM_PROCID of the script, or of Hydra's proxy."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_NTASKS": "4"}
    script = {**job, "SLURM_PROCID": "0"}
    proxy = {**script, "SLURM_STEP_ID": "0"}
    env = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", **script}
    for launch in (
        Launch.from_environment(env),
        Launch.from_environment({**HYDRA, **proxy}),
    ):
        assert launch.asks_mpi
        assert launch.rank in (1, 3)
        assert launch.master == "a"  # where mpi4py is missing


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
    with pytest.raises(ConfigError, match=f"no rank {rank} in a world of {size}"):
        Launch.from_environment(env)


# -- how ranks are connected -------------------------------------------------------


def test_without_a_word_ranks_share_memory_where_they_can() -> None:
    assert LinkSettings.from_environment({}) == LinkSettings(
        transport="auto",
        connections=1,
        addresses=(),
        credentials="",
        ports=range(1),
    )


def test_the_environment_says_how_ranks_are_connected() -> None:
    env = {
        "RINGLEADER_TRANSPORT": "tcp",
        "RINGLEADER_CONNECTIONS": "4",
        "RINGLEADER_ADDRESS": "10.1.1.1",
        "RINGLEADER_CREDENTIALS": "/run/credentials",
        "RINGLEADER_PORTS": "29600-29602",
        "RINGLEADER_INTRA_HOST": "nccl",
        "RINGLEADER_CONNECT_TIMEOUT_S": "2.5",
        "RINGLEADER_CONNECT_TRIES": "3",
    }
    assert LinkSettings.from_environment(env) == LinkSettings(
        transport="tcp",
        connections=4,
        addresses=("10.1.1.1",),
        credentials="/run/credentials",
        ports=range(29600, 29603),
        intra_host="nccl",
        connect_timeout_s=2.5,
        connect_tries=3,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RINGLEADER_CONNECT_TRIES", "0"),
        ("RINGLEADER_CONNECT_TRIES", "x"),
        ("RINGLEADER_CONNECT_TIMEOUT_S", "0"),
        ("RINGLEADER_CONNECT_TIMEOUT_S", "nan"),
        ("RINGLEADER_CONNECT_TIMEOUT_S", "5 s"),
    ],
)
def test_limits_of_connections_that_are_none_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        LinkSettings.from_environment({name: text})


@pytest.mark.parametrize("text", ["x", "5-4", "0", "1-65536", "1-2-3", "-5"])
def test_ports_that_are_no_range_are_refused(text: str) -> None:
    assert tensor_ports({"RINGLEADER_PORTS": "80"}) == range(80, 81)
    with pytest.raises(ConfigError, match="RINGLEADER_PORTS is"):
        tensor_ports({"RINGLEADER_PORTS": text})


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ()),
        ("  ", ()),
        ("10.0.0.1,fd00::1", ("10.0.0.1", "fd00::1")),
        (" pc.local , 10.0.0.1 ", ("pc.local", "10.0.0.1")),
        ("10.0.0.1,10.0.0.2,10.0.0.1", ("10.0.0.1", "10.0.0.2")),
    ],
)
def test_a_machine_may_have_several_addresses(
    text: str, addresses: tuple[str, ...]
) -> None:
    wires = LinkSettings.from_environment({"RINGLEADER_ADDRESS": text})
    assert wires.addresses == addresses


@pytest.mark.parametrize("text", [",", "10.0.0.1,", ",10.0.0.1", "a,,b"])
def test_a_list_of_addresses_with_a_hole_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write host,host"):
        LinkSettings.from_environment({"RINGLEADER_ADDRESS": text})


def test_certificates_and_plaintext_exclude_each_other() -> None:
    files = TlsFiles(Path("/ca"), Path("/cert"), Path("/key"))
    assert LinkSettings.from_environment(files.environment()).tls == files
    env = {**files.environment(), "RINGLEADER_PLAINTEXT": "1"}
    with pytest.raises(ConfigError, match="encrypted or not"):
        LinkSettings.from_environment(env)


@pytest.mark.parametrize(
    ("plaintext", "credentials"), [("1", ""), ("0", "/c"), ("", "/c")]
)
def test_links_are_plain_on_request_even_with_credentials(
    plaintext: str, credentials: str
) -> None:
    env = {"RINGLEADER_CREDENTIALS": "/c", "RINGLEADER_PLAINTEXT": plaintext}
    assert LinkSettings.from_environment(env).credentials == credentials


@pytest.mark.parametrize("text", ["yes", "true", "2", " 1"])
def test_nobody_gets_plain_links_by_a_typing_error(text: str) -> None:
    with pytest.raises(ConfigError, match=f"PLAINTEXT is '{text}'; use 1 or 0"):
        LinkSettings.from_environment({"RINGLEADER_PLAINTEXT": text})


@pytest.mark.parametrize("number", ["0", "-3"])
def test_no_connections_at_all_are_refused(number: str) -> None:
    with pytest.raises(ConfigError, match=f"CONNECTIONS is {number}; use 1 or more"):
        LinkSettings.from_environment({"RINGLEADER_CONNECTIONS": number})


@pytest.mark.parametrize("text", ["", "many", "1.5"])
def test_connections_are_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match=f"CONNECTIONS is '{text}', not a number"):
        LinkSettings.from_environment({"RINGLEADER_CONNECTIONS": text})


# -- how often threads hand over ---------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("0.002", 0.002), ("1", 1.0)]
)
def test_the_switch_interval_is_read_in_seconds(text: str, seconds: float) -> None:
    assert switch_interval_s({"RINGLEADER_SWITCH_INTERVAL_S": text}) == seconds


def test_without_a_word_threads_hand_over_much_sooner_than_python_does() -> None:
    assert 1e-6 <= switch_interval_s({}) <= 0.005 / 10


@pytest.mark.parametrize("text", ["", "often", "5ms"])
def test_a_switch_interval_that_is_no_number_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"_S is '{text}', not a number of seconds"):
        switch_interval_s({"RINGLEADER_SWITCH_INTERVAL_S": text})


@pytest.mark.parametrize("text", ["-0.1", "1.01", "inf", "nan"])
def test_a_switch_interval_beyond_reason_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"is {text}; use 0 to 1 s"):
        switch_interval_s({"RINGLEADER_SWITCH_INTERVAL_S": text})


@pytest.mark.parametrize(
    ("text", "count"), [("", None), ("auto", None), ("0", 0), ("3", 3)]
)
def test_helper_threads_are_a_number_or_auto(text: str, count: int | None) -> None:
    assert helper_threads({"RINGLEADER_HELPER_THREADS": text}) == count


@pytest.mark.parametrize("text", ["-1", "64", "many"])
def test_helper_threads_beyond_reason_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"RINGLEADER_HELPER_THREADS is '?{text}"):
        helper_threads({"RINGLEADER_HELPER_THREADS": text})


@pytest.mark.parametrize(("text", "is_on"), [("", True), ("1", True), ("0", False)])
def test_buckets_are_shared_unless_forbidden(text: str, is_on: bool) -> None:
    assert shares_buckets({"RINGLEADER_SHARED_BUCKETS": text}) is is_on


def test_another_word_about_shared_buckets_is_refused() -> None:
    with pytest.raises(ConfigError, match="RINGLEADER_SHARED_BUCKETS is 'no'; use 1"):
        shares_buckets({"RINGLEADER_SHARED_BUCKETS": "no"})


def test_the_launcher_knows_how_many_ranks_a_machine_has() -> None:
    assert local_size({"LOCAL_WORLD_SIZE": "4"}) == 4
    assert local_size({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == 2
    assert local_size({}) == 1


# -- what other backends need ------------------------------------------------------


def test_the_interface_is_told_to_other_backends_but_never_over_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    monkeypatch.setattr(settings, "_exported_interfaces", {})
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("TP_SOCKET_IFNAME", "wlan0")
    before = settings.export_interface("eth0")
    assert [os.environ[name] for name in names] == ["eth0", "=eth0", "wlan0"]
    settings.export_interface("eth1")  # the machine has moved to another network
    assert [os.environ[name] for name in names] == ["eth1", "=eth1", "wlan0"]
    settings.restore(before)
    assert [os.environ.get(name) for name in names] == [None, None, "wlan0"]
    settings.export_interface("eth2")
    assert [os.environ[name] for name in names] == ["eth2", "=eth2", "wlan0"]
