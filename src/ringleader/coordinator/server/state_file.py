"""StateFile keeps the registry in SQLite, so that a restart loses nobody.

Heartbeats are not stored: after a start every worker has some time to send one. Commits
do not wait for the disk. A crash of the process loses nothing; a power cut may lose the
last changes, which workers repair by registering again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringleader.coordinator.registry import limits
from ringleader.coordinator.registry.events import (
    Action,
    ForgetCheckpoint,
    ForgetNamespace,
    ForgetWorker,
    SaveCheckpoint,
    SaveWorker,
)
from ringleader.coordinator.registry.records import Checkpoint, Namespace, Worker
from ringleader.errors import ConfigError

_VERSION = 1
_SCHEMA = """
CREATE TABLE workers (
  key_hash BLOB NOT NULL, job TEXT NOT NULL, worker_id TEXT NOT NULL,
  rank INTEGER NOT NULL, incarnation TEXT NOT NULL, addresses TEXT NOT NULL,
  is_registered INTEGER NOT NULL, PRIMARY KEY (key_hash, job, worker_id));
CREATE TABLE checkpoints (
  key_hash BLOB NOT NULL, job TEXT NOT NULL, step INTEGER NOT NULL,
  path TEXT NOT NULL, participants TEXT NOT NULL, done TEXT NOT NULL,
  started_at_s REAL NOT NULL, completed_at_s REAL NOT NULL,
  PRIMARY KEY (key_hash, job, step));
"""


class StateFile:
    """The state file of one coordinator. Use it from one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.trouble = ""
        """Why the last change could not be stored; empty if it was."""

    @classmethod
    def open(cls, path: Path) -> tuple[StateFile, list[Action], str]:
        """Open or make a state file; return it, its content and a warning.

        A damaged file is renamed, and a new one is made: workers register again.
        ConfigError if the file cannot be used at all, or another process uses it.
        """
        try:
            return *_open(path), ""
        except (sqlite3.DatabaseError, ValueError) as exc:
            if isinstance(exc, sqlite3.OperationalError) and not _is_damage(exc):
                raise ConfigError(f"{path}: {_why(exc)}") from None
            aside = _set_aside(path)
            text = f"{path} was damaged ({exc}) and is now {aside.name}"
            made, content = _open(path)
            return made, content, f"{text}; workers register again by themselves"

    def save(self, actions: Sequence[Action]) -> None:
        """Store changes. If the disk is full, ``trouble`` says so; serving goes on."""
        try:
            with self._connection:
                for action in actions:
                    _save(self._connection, action)
        except sqlite3.Error as exc:
            self.trouble = f"{self.path}: cannot store the state: {exc}"
        else:
            self.trouble = ""

    def close(self) -> None:
        """Close the file; it is complete at any time, also without this."""
        self._connection.close()


def _open(path: Path) -> tuple[StateFile, list[Action]]:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be opened: {exc.strerror}") from None
    connection = sqlite3.connect(path, timeout=2.0)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _check(connection)
        return StateFile(path, connection), list(_content(connection))
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection) -> None:
    """Raise ValueError if the file is damaged; make the tables if it is new."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise ValueError(str(found).splitlines()[-1])
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == _VERSION:
        return
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version or tables:
        raise ValueError(f"state of version {version}, expected {_VERSION}")
    connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={_VERSION};COMMIT;")


def _is_damage(exc: sqlite3.OperationalError) -> bool:
    return exc.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)


def _why(exc: sqlite3.OperationalError) -> str:
    if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
        return "another coordinator uses it; stop that one, or choose another --state"
    return f"cannot be used: {exc}"


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        os.replace(path, aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as exc:
        text = f"{path}: damaged, and cannot be renamed: {exc.strerror}"
        raise ConfigError(f"{text}; delete it") from None
    return aside


def _content(connection: sqlite3.Connection) -> Iterator[Action]:
    """Read everything; ValueError if a row is not what we write."""
    columns = "key_hash, job, worker_id, rank, incarnation, addresses, is_registered"
    order = "ORDER BY rowid"
    for row in connection.execute(f"SELECT {columns} FROM workers {order}"):
        yield _worker(row)
    columns = "key_hash, job, step, path, participants, done, started_at_s"
    columns += ", completed_at_s"
    order = "ORDER BY started_at_s"
    for row in connection.execute(f"SELECT {columns} FROM checkpoints {order}"):
        yield _checkpoint(row)


def _worker(row: tuple[Any, ...]) -> SaveWorker:
    key_hash, job, worker_id, rank, incarnation, addresses, is_registered = row
    if not 0 <= int(rank) < limits.MAX_WORKERS:
        raise ValueError(f"rank {rank}")
    worker = Worker(
        int(rank),
        limits.check_id("worker_id", worker_id),
        limits.check_id("incarnation", incarnation),
        limits.check_addresses(json.loads(addresses)),
    )
    return SaveWorker(Namespace(key_hash, job), worker, bool(is_registered))


def _checkpoint(row: tuple[Any, ...]) -> SaveCheckpoint:
    key_hash, job, step, path, participants, done, started_at_s, completed_at_s = row
    ranks = {str(name): int(rank) for name, rank in json.loads(participants).items()}
    checkpoint = Checkpoint(
        limits.check_step(int(step)),
        limits.check_path(path),
        ranks,
        float(started_at_s),
        set(json.loads(done)) & ranks.keys(),
        float(completed_at_s),
    )
    return SaveCheckpoint(Namespace(key_hash, job), checkpoint)


def _save(connection: sqlite3.Connection, action: Action) -> None:
    name = (action.namespace.key_hash, action.namespace.job)
    where = "WHERE key_hash = ? AND job = ?"
    match action:
        case SaveWorker(_, worker, is_registered):
            connection.execute(
                "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *name,
                    worker.worker_id,
                    worker.rank,
                    worker.incarnation,
                    json.dumps(worker.addresses),
                    is_registered,
                ),
            )
        case ForgetWorker(_, worker_id):
            connection.execute(
                f"DELETE FROM workers {where} AND worker_id = ?", (*name, worker_id)
            )
        case SaveCheckpoint(_, checkpoint):
            connection.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *name,
                    checkpoint.step,
                    checkpoint.path,
                    json.dumps(checkpoint.participants),
                    json.dumps(sorted(checkpoint.done)),
                    checkpoint.started_at_s,
                    checkpoint.completed_at_s,
                ),
            )
        case ForgetCheckpoint(_, step):
            connection.execute(
                f"DELETE FROM checkpoints {where} AND step = ?", (*name, step)
            )
        case ForgetNamespace():
            connection.execute(f"DELETE FROM workers {where}", name)
            connection.execute(f"DELETE FROM checkpoints {where}", name)
