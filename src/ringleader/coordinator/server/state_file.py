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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

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

T = TypeVar("T")

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

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        report: Callable[[str], None],
    ) -> None:
        self.path = path
        self._connection = connection
        self._report = report
        self._is_behind = False
        """True after a failure: the next change stores everything."""

    @classmethod
    def open(
        cls,
        path: Path,
        build: Callable[[Iterable[Action]], T],
        report: Callable[[str], None],
    ) -> tuple[StateFile, T]:
        """Open or make a state file; return it and what ``build`` made of its content.

        A damaged file, also one that ``build`` refuses with ValueError, is renamed and
        a new one is made: workers register again. ConfigError if the file cannot be
        used at all, or another process uses it. ``report`` is told of trouble.
        """
        try:
            return _open(path, build, report)
        except (sqlite3.DatabaseError, ValueError) as exc:
            if isinstance(exc, ConfigError) or not _is_damage(exc):
                raise ConfigError(f"{path}: {_why(exc)}") from None
            aside = _set_aside(path)
            text = f"{path} was damaged ({exc}) and is now {aside.name}"
            report(f"{text}; workers register again by themselves")
            return _open(path, build, report)

    def save(
        self, actions: Iterable[Action], everything: Callable[[], Iterable[Action]]
    ) -> None:
        """Store changes. If that fails, report it once; serving goes on.

        ``everything`` is stored instead after an earlier failure.
        """
        try:
            with self._connection:
                if self._is_behind:
                    self._connection.execute("DELETE FROM workers")
                    self._connection.execute("DELETE FROM checkpoints")
                    actions = everything()
                for action in actions:
                    _save(self._connection, action)
        except sqlite3.Error as exc:
            if not self._is_behind:
                text = f"{self.path}: cannot store the state: {exc}; serving goes on"
                self._report(f"{text}, but a restart would lose what changes now")
            self._is_behind = True
        else:
            if self._is_behind:
                self._report(f"{self.path}: the state is stored again")
            self._is_behind = False

    def close(self) -> None:
        """Close the file; it is complete at any time, also without this."""
        self._connection.close()


def _open(
    path: Path,
    build: Callable[[Iterable[Action]], T],
    report: Callable[[str], None],
) -> tuple[StateFile, T]:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as exc:
        raise ConfigError(f"cannot be opened: {exc.strerror}") from None
    connection = sqlite3.connect(path, timeout=0.5)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _check(connection)
        return StateFile(path, connection, report), build(_content(connection))
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


def _is_damage(exc: Exception) -> bool:
    """Return whether the content is wrong, and not the disk, the rights or a lock."""
    if not isinstance(exc, sqlite3.OperationalError):
        return True
    code = exc.sqlite_errorcode & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)


def _why(exc: Exception) -> str:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return "another coordinator uses it; stop that one, or choose another --state"
    return f"cannot be used: {exc}" if code else str(exc)


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
