"""``JobRecord``: how a job stands on one machine, as kept in its ``job.json``.

A job moves one way: prepared, running, (stopping,) and one of the ends. The agent
writes the record until the job starts, then the job's supervisor does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.jobs.protocol.job_spec import JobSpec, Name, NodeOrNone

MAX_RECORD_BYTES = 1 << 20
MAX_FAILURE = 4096
MAX_WRITTEN = 20
"""Files and folders that a record names."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Sentence = Annotated[
    str,
    msgspec.Meta(
        max_length=MAX_FAILURE,
        pattern=r"\A[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z",
    ),
]
"""Text for a terminal; may have several lines."""


class JobState(StrEnum):
    """What a job does on one machine."""

    PREPARED = "prepared"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    """Its processes ended without saying how: killed, or the machine was switched
    off. Or its worker was lost, and the others have finished without it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job runs any more."""
        return self not in (JobState.PREPARED, JobState.RUNNING, JobState.STOPPING)


class JobOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a job failed, as the launcher of one machine says it."""

    text: Sentence = ""
    is_here: bool = False
    """Whether the program failed on this machine, not on another."""
    is_consequence: bool = False
    """Whether it failed because another machine was lost or failed before."""


class WrittenFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a program wrote, or a folder with all that it wrote there."""

    name: Name
    """From the folder in which the program ran; a folder ends with ``/``."""
    num_files: Count
    num_bytes: Count


class JobRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One job on one machine."""

    spec: JobSpec
    machine: Name
    """Name of the machine that this record is about."""
    state: JobState
    owner: NodeOrNone = NodeId("")
    """The other machine that started it, by its certificate; empty: the user of this
    machine did."""
    processes: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 1
    """Worker processes on this machine."""
    created_s: Seconds
    """Seconds since 1970, by the clock of this machine."""
    started_s: Seconds = 0.0
    ended_s: Seconds = 0.0
    exit_status: Annotated[int, msgspec.Meta(ge=-256, le=1 << 32)] = 0
    outcome: JobOutcome | None = None
    pid: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] = 0
    """Process id of the supervisor."""
    work: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Folder on that machine in which the program runs."""
    python: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Interpreter of the environment that was made for it; empty: the agent's."""
    import_folders: Annotated[list[str], msgspec.Meta(max_length=64)] = []
    """Folders of the project whose modules the program imports, for PYTHONPATH."""
    num_bytes: Count = 0
    """What its folder takes on the disk after its end; 0 before."""
    written: Annotated[list[WrittenFiles], msgspec.Meta(max_length=MAX_WRITTEN)] = []
    """The largest of what it wrote in the job's folder; known after its end."""
    num_written: Count = 0
    """How many files that are in all."""


_JSON = msgspec.json.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    """Return the content of ``job.json``."""
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def decode_record(data: bytes, where: str) -> JobRecord:
    """Decode a ``job.json``; raises ``ProtocolError`` that names ``where``."""
    try:
        return _JSON.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(where, f"is not the record of a job ({exc})") from exc


def printable(text: str, limit: int = MAX_FAILURE) -> str:
    """Return ``text`` without control characters, as a ``Sentence`` may be."""
    text = text.expandtabs(4).encode(errors="replace").decode()
    kept = (c if c.isprintable() or c == "\n" else " " for c in text)
    return "".join(kept)[:limit]
