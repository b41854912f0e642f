"""``open_store``: the torch store in which the ranks of a launcher meet.

It is at MASTER_ADDR:MASTER_PORT, served by rank 0 or by the launcher. mpirun sets
neither: on one machine its ranks meet in the directory of the job, where rank 0 leaves
the port of its store; on several machines rank 0 tells its addresses by MPI.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerUnreachable
from ringleader.groups import mpi_connector
from ringleader.groups.store_rendezvous import first_line
from ringleader.settings.launch import Launch
from ringleader.transport import tcp_socket
from ringleader.transport.dialer import MAX_ADDRESSES
from ringleader.transport.mpi import library
from ringleader.transport.name_lookups import no_name_lookups
from ringleader.transport.own_addresses import own_addresses

_POLL_S = 0.02


@dataclass(slots=True)
class _Meeting:
    """The store of this process's job, kept for all groups that it forms.

    A store of its own for each group would end while late ranks of the last group, or
    early ranks of the next one, still use it.
    """

    job: tuple[Launch, int] | None = None
    """The launch, and the process: a forked one needs a connection of its own."""
    store: TCPStore | None = None


_meeting = _Meeting()


def open_store(launch: Launch, deadline: Deadline) -> TCPStore:
    """Open the store, or connect to it; later calls return the same one.

    Raises ``ConfigError`` if rank 0 cannot serve it and ``PeerUnreachable`` if it is
    not there until the deadline.
    """
    job = (launch, os.getpid())
    if _meeting.store is None or _meeting.job != job:
        _meeting.store, _meeting.job = _open(launch, deadline), job
    return _meeting.store


def opened_store() -> TCPStore | None:
    """Return the store that this process has opened, if it has."""
    is_ours = _meeting.job is not None and _meeting.job[1] == os.getpid()
    return _meeting.store if is_ours else None


def _open(launch: Launch, deadline: Deadline) -> TCPStore:
    if launch.directory:
        return _meet(launch, Path(launch.directory), deadline)
    if launch.asks_mpi and (library.is_installed() or not launch.master):
        return _meet_by_mpi(launch, deadline)
    where = f"{launch.master}:{launch.port}"
    keeps_store = launch.rank == 0 and not launch.store_exists
    if not keeps_store:
        # TCPStore itself waits up to twice its timeout, and prints a stack trace.
        tcp_socket.dial((launch.master, launch.port), where, deadline).close()
    try:
        return _store(launch.master, launch.port, deadline, is_master=keeps_store)
    except (RuntimeError, ValueError) as exc:
        if keeps_store:
            text = f"rank 0 cannot serve the store at {where}; is there another rank 0?"
            raise ConfigError(f"{text} ({first_line(exc)})") from exc
        text = f"no store there: {first_line(exc)}"
        raise PeerUnreachable(where, text) from exc


def _store(
    host: str,
    port: int,
    deadline: Deadline,
    *,
    is_master: bool,
    listening: int | None = None,
) -> TCPStore:
    with no_name_lookups(host):
        return TCPStore(
            host,
            port,
            is_master=is_master,
            timeout=timedelta(seconds=max(1.0, deadline.left_s())),
            wait_for_workers=False,
            multi_tenant=listening is None,  # torch may have opened it, too
            master_listen_fd=listening,
        )


def _meet(launch: Launch, directory: Path, deadline: Deadline) -> TCPStore:
    """Serve the store and write its port, or wait for the port and connect."""
    file = directory / "ringleader"
    _check_private(directory)
    if launch.rank != 0:
        port = _wait_for_port(file, deadline)
        return _store(launch.master, port, deadline, is_master=False)
    listening = socket.create_server((launch.master, 0), backlog=launch.size)
    port = listening.getsockname()[1]
    store = _store(
        launch.master, port, deadline, is_master=True, listening=listening.detach()
    )
    draft = file.with_suffix(".new")
    draft.write_text(str(port))
    draft.replace(file)
    return store


def _meet_by_mpi(launch: Launch, deadline: Deadline) -> TCPStore:
    """Serve the store and tell its addresses by MPI, or hear of them and connect."""
    if not library.is_installed():
        text = "mpirun does not say on which machine rank 0 is, and mpi4py, which could"
        example = "mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=29500"
        raise ConfigError(
            f"{text}, is not installed; run: {library.INSTALL}, or start with {example}"
        )
    mpi_connector.check_size(library.load().COMM_WORLD.size, launch.size)
    if launch.rank == 0:
        listening = socket.create_server((launch.master, launch.port))
        port = listening.getsockname()[1]
        hosts = [launch.master] if launch.master else own_addresses()
        store = _store(
            hosts[0], port, deadline, is_master=True, listening=listening.detach()
        )
        library.share_address(
            ",".join(f"{host}:{port}" for host in hosts[:MAX_ADDRESSES]), deadline
        )
        return store
    told = library.share_address("", deadline).split(",")[:MAX_ADDRESSES]
    addresses = [tcp_socket.parse_address(each) for each in told]
    sock, (host, port) = tcp_socket.dial_any(addresses, 0, deadline)
    sock.close()
    return _store(host, port, deadline, is_master=False)


def _wait_for_port(file: Path, deadline: Deadline) -> int:
    while True:
        if file.exists():
            return int(file.read_text())
        if deadline.is_over():
            text = f"has not written {file}; does it call ringleader.group()?"
            raise PeerUnreachable(0, text)
        time.sleep(_POLL_S)


def _check_private(directory: Path) -> None:
    """Refuse a directory in which another user could put the address of a store."""
    try:
        found = directory.stat()
    except OSError as exc:
        text = f"mpirun's directory {directory} cannot be used ({exc.strerror})"
        raise ConfigError(f"{text}; set MASTER_ADDR and MASTER_PORT") from exc
    is_ours = found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        text = f"other users can write to mpirun's directory {directory}"
        raise ConfigError(f"{text}; set MASTER_ADDR and MASTER_PORT")
