"""``ResidentRecord``: where the resident agent of this user is found on this machine.

The agent holds a lock for as long as it lives and writes the record while it does. A
record without an agent behind it, left by ``kill -9``, is harmless: nobody answers at
its socket, and the lock is free.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from ringleader.deadline import Deadline
from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import FileLock, Home, HomeWriter
from ringleader.node.protocol.agent_config import (
    AgentConfig,
    make_run_directory,
    run_directory,
)

RECORD = "resident.json"
LOCK = "resident.lock"
LOG = "resident.log"
"""What the agent prints."""
MAX_BYTES = 64 << 10
CLAIM_S = 1.0
"""``is_resident_alive`` holds the lock for a moment; longer means a living agent."""
_POLL_S = 0.02


class ResidentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What other commands of this user must know to use the agent."""

    pid: int
    version: str
    """Release of ringleader that it runs."""
    cluster: str
    """Title of the cluster that it is in."""
    socket: str
    """Name of its Unix socket in the same folder."""
    config: AgentConfig
    warm: str = ""
    """Name of its fork server with torch imported; empty: none, or not ready."""
    python: str = ""
    """Interpreter that it runs on."""
    tls: list[str] = []
    """Paths of the user's own certificates, if it uses them."""


def claim_resident(home: Path) -> FileLock:
    """Lock the place of the resident agent; raises ``ConfigError`` if it is taken."""
    with Home(home).writing():
        directory = make_run_directory(home)
        if not (directory / LOCK).exists():
            HomeWriter(directory).write(LOCK, Secret(b""))
    deadline = Deadline.after(CLAIM_S)
    while (held := Home(directory).try_lock(LOCK)) is None:
        if deadline.is_over():
            record = read_record(home)
            who = f" (process {record.pid})" if record else ""
            raise ConfigError(f"an agent of this user is up already{who}")
        time.sleep(_POLL_S)
    return held


def is_resident_alive(home: Path) -> bool:
    """Return whether a process holds the lock of the resident agent."""
    directory = run_directory(home)
    if not (directory / LOCK).exists():
        return False
    held = Home(directory).try_lock(LOCK)
    if held is None:
        return True
    held.close()
    return False


def write_record(home: Path, record: ResidentRecord) -> None:
    """Write the record; only the holder of the lock may."""
    body = msgspec.json.encode(record)
    HomeWriter(run_directory(home)).write(RECORD, Secret(body))


def remove_record(home: Path) -> None:
    """Remove the record; only the holder of the lock may."""
    with contextlib.suppress(ConfigError):
        HomeWriter(run_directory(home)).remove(RECORD)


def read_record(home: Path) -> ResidentRecord | None:
    """Return the record; None if there is none, or one that another release wrote."""
    found = Home(run_directory(home)).read(RECORD, MAX_BYTES)
    if found is None:
        return None
    try:
        return from_json(found.reveal(), ResidentRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
