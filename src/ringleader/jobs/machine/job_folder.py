"""``JobFolder``: the files of a job on one machine, below ``~/.ringleader/jobs``.

``job.json`` is the record, ``files.json`` the list of the files that travelled.
``job.lock`` is locked while an agent prepares the job and then while its supervisor
lives. ``logs/`` has the output, ``work/`` the program's files, ``reserve`` holds room
on the disk. Nothing of a job lies anywhere else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringleader.errors import ConfigError, ProtocolError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import FileLock, Home
from ringleader.identity.storage.private_file import write_private
from ringleader.jobs.protocol.job_record import (
    MAX_RECORD_BYTES,
    JobRecord,
    JobState,
    decode_record,
    encode_record,
)
from ringleader.node.protocol.agent_config import run_directory
from ringleader.project import Manifest
from ringleader.project.blob_store import share_of_disk
from ringleader.project.manifest import decode
from ringleader.settings.jobs_limit import DEFAULT_MB, jobs_limit_bytes

KEPT_JOBS = 20
"""Ended jobs whose folders are kept; older ones are removed when a new one comes, and
those beyond ``kept_bytes``."""
DISK_PART = 5
"""At most this part of the disk is for ended jobs, unless the user says otherwise."""
RESERVE_BYTES = 64 << 10
"""Kept free for the record of a running job: some blocks of any file system."""
_FOLDER = "jobs"
_RECORD = "job.json"
_LOCK = "job.lock"
_RESERVE = "reserve"
_FILES = "files.json"


def jobs_directory(home: Path) -> Path:
    """Return the folder of this machine's jobs; machines may share a home."""
    return home / _FOLDER / run_directory(home).name


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one job."""

    path: Path

    @property
    def id(self) -> str:
        """The job."""
        return self.path.name

    @property
    def logs(self) -> Path:
        """Folder of the output."""
        return self.path / "logs"

    @property
    def work(self) -> Path:
        """Folder of the program's files; there is none if they do not travel."""
        return self.path / "work"

    @property
    def outcome(self) -> Path:
        """File in which the launcher says why the job failed."""
        return self.path / "outcome.json"

    @property
    def socket(self) -> Path:
        """Unix socket at which workers get their output."""
        return self.path / "output.sock"

    def keep_manifest(self, data: bytes) -> None:
        """Keep the list of the files that travelled, to know later what was written."""
        write_private(self.path / _FILES, Secret(data))

    def manifest(self) -> Manifest | None:
        """Return the files that travelled; None if none did."""
        try:
            return decode((self.path / _FILES).read_bytes())
        except (OSError, ValueError):
            return None

    def make(self) -> None:
        """Make the folder; raises ``ConfigError`` if the job exists or it cannot."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
            self.logs.mkdir(mode=0o700)
            (self.path / _LOCK).touch(mode=0o600)
        except FileExistsError as exc:
            raise ConfigError(f"there is a job {self.id} already") from exc
        except OSError as exc:
            self.remove()
            text = f"cannot make the job folder {self.path}: {exc.strerror}"
            raise ConfigError(text) from exc

    def remove(self) -> None:
        """Delete everything of the job."""
        shutil.rmtree(self.path, ignore_errors=True)

    def lock(self) -> FileLock | None:
        """Hold the lock of whoever looks after the job; None if somebody does."""
        return Home(self.path).try_lock(_LOCK)

    def is_watched(self) -> bool:
        """Return whether an agent prepares the job, or its supervisor is alive."""
        held = self.lock()
        if held is not None:
            held.close()
        return held is None

    def write(self, record: JobRecord) -> None:
        """Replace the record atomically."""
        write_private(self.path / _RECORD, Secret(encode_record(record)))

    def reserve(self) -> None:
        """Take room on the disk: a full one can still tell how the job ended."""
        path = self.path / _RESERVE
        try:
            with open(path, "wb", opener=_open_private) as file:
                file.write(bytes(RESERVE_BYTES))
        except OSError:
            path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give back what ``reserve`` took."""
        (self.path / _RESERVE).unlink(missing_ok=True)

    def stored(self) -> JobRecord:
        """Return the record as it was written last; raises ``ConfigError``."""
        try:
            with (self.path / _RECORD).open("rb") as file:
                data = file.read(MAX_RECORD_BYTES + 1)
        except OSError as exc:
            raise ConfigError(f"there is no job {self.id} on this machine") from exc
        if len(data) > MAX_RECORD_BYTES:
            raise ConfigError(f"{self.path / _RECORD}: too long for a record")
        return decode_record(data, str(self.path / _RECORD))

    def read(self) -> JobRecord:
        """Return how the job stands now; ``LOST`` if nobody looks after it."""
        record = self.stored()
        if record.state.is_over or self.is_watched():
            return record
        record = self.stored()  # it may have ended just now, in order
        if record.state.is_over:
            return record
        return msgspec.structs.replace(record, state=JobState.LOST)


def find_jobs(directory: Path) -> list[JobRecord]:
    """Return the records of all jobs of this machine, the newest first."""
    found = []
    for folder in job_folders(directory):
        with contextlib.suppress(ConfigError, ProtocolError):
            found.append(folder.read())
    return sorted(found, key=lambda record: record.created_s, reverse=True)


def interpreters_in_use(home: Path) -> set[Path]:
    """Return the interpreters of jobs that run, also on machines with the same home."""
    found = set[Path]()
    for host in (home / _FOLDER).glob("*"):
        for folder in job_folders(host):
            with contextlib.suppress(ConfigError, ProtocolError):
                record = folder.stored()
                if record.python and not record.state.is_over:
                    found.add(Path(record.python))
    return found


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def job_folders(directory: Path) -> list[JobFolder]:
    """Return the folders of all jobs of this machine."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [JobFolder(directory / name) for name in names]


def kept_bytes(directory: Path) -> int:
    """Return how much ended jobs may take on the disk of ``directory``."""
    given = jobs_limit_bytes()
    if given is not None:
        return given
    return share_of_disk(directory, DEFAULT_MB * 1_000_000, DISK_PART)
