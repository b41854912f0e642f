"""What is refused before a group over MPI is formed."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch._C._distributed_c10d import HashStore

import ringleader
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerRefused, PeerUnreachable, ProtocolError
from ringleader.groups import store_rendezvous
from ringleader.groups.formation import Options
from ringleader.groups.mpi_connector import check_size, parse_place
from ringleader.transport.mpi import library


def test_a_rank_of_mpi_is_a_number_within_its_world() -> None:
    assert parse_place("2", 1, 3) == 2
    for text in ("", "-1", "3", "x" * 5000, "1e3", "²", "9" * 50):
        with pytest.raises(ProtocolError, match=r"^rank 1: published .{1,90}$"):
            parse_place(text, 1, 3)


def test_processes_that_mpi_does_not_know_are_told_to_use_mpirun() -> None:
    check_size(4, 4)
    with pytest.raises(ConfigError, match="MPI sees 1 of the 4 ranks here; start with"):
        check_size(1, 4)


@pytest.mark.parametrize("level", ["SINGLE", "FUNNELED", "SERIALIZED"])
def test_an_mpi_for_one_thread_is_refused(level: str) -> None:
    levels = {"SINGLE": 0, "FUNNELED": 1, "SERIALIZED": 2, "MULTIPLE": 3}
    names = {f"THREAD_{name}": value for name, value in levels.items()}
    with pytest.raises(ConfigError, match=f"MPI_THREAD_{level}, and .*_MULTIPLE; let"):
        library.check_threads(
            SimpleNamespace(**names, Query_thread=lambda: levels[level])
        )
    library.check_threads(SimpleNamespace(**names, Query_thread=lambda: 3))


def test_what_mpi_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="connections= is for TCP"):
        Options(deadline=Deadline.after(1), transport="mpi", num_stripes=2)
    with pytest.raises(ConfigError, match="transport mpi has no peers="):
        ringleader.group(["a:1"], 0, transport="mpi")


def test_ranks_that_choose_other_transports_are_named() -> None:
    store, soon = HashStore(), Deadline.after(0.0)
    store.set_timeout(timedelta(seconds=1))
    store_rendezvous.publish_link(store, "0", "mpi", "7")
    store_rendezvous.publish(store, "1", ["10.0.0.1"], 5100, None)
    assert store_rendezvous.look_up_link(store, "0", "mpi", 0, soon) == "7"
    for kind, peer in (("mpi", 1), ("grpc", 0)):
        with pytest.raises(
            PeerRefused, match=f"rank {peer}: does not use the transport {kind}, and we"
        ):
            store_rendezvous.look_up_link(store, str(peer), kind, peer, soon)
    with pytest.raises(
        PeerRefused, match="rank 0: uses the transport 'mpi', and we do not"
    ):
        store_rendezvous.look_up(store, "0", 0, soon)
    with pytest.raises(PeerUnreachable, match="rank 2: did not join"):
        store_rendezvous.look_up_link(store, "2", "mpi", 2, soon)
