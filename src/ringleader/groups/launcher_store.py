"""``open_store``: the torch store in which the ranks of a launcher meet.

It is at MASTER_ADDR:MASTER_PORT, served by rank 0 or by the launcher. mpirun sets
neither: on one machine its ranks meet in the directory of the job, where rank 0 leaves
the port of its store.
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
from ringleader.groups.store_rendezvous import first_line
from ringleader.settings import Launch
from ringleader.transport import tcp_socket
from ringleader.transport.name_lookups import no_name_lookups

_POLL_S = 0.02


@dataclass(slots=True)
class _Meeting:
    """Where the ranks of an mpirun meet next: each group has a file of its own.

    An attempt to form a group may fail on some ranks before others begin. So the number
    and the store stay until a group has formed.
    """

    number: int = 0
    store: TCPStore | None = None


_meeting = _Meeting()


def has_formed() -> None:
    """Note that a group has formed over the store: the next one gets another."""
    _meeting.number += 1
    _meeting.store = None


def open_store(launch: Launch, deadline: Deadline) -> TCPStore:
    """Open the store, or connect to it.

    Raises ``ConfigError`` if rank 0 cannot serve it and ``PeerUnreachable`` if it is
    not there until the deadline.
    """
    if launch.directory:
        store = _meeting.store or _meet(launch, Path(launch.directory), deadline)
        _meeting.store = store
        return store
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
            master_listen_fd=listening,
        )


def _meet(launch: Launch, directory: Path, deadline: Deadline) -> TCPStore:
    """Serve the store and write its port, or wait for the port and connect."""
    file = directory / f"ringleader-{_meeting.number}"
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
