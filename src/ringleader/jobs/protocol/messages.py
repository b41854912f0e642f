"""Messages between a command and the jobs service of one machine.

A conversation begins with one request. ``Prepare`` goes on: the machine answers
``ChunksNeeded`` and takes a ``Chunk`` for each, then answers ``Prepared`` and waits for
``Start``. If the connection ends before, the machine removes what it prepared.
Errors are ``RequestFailed`` of ``node.protocol.local_requests``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ringleader.errors import PeerRefused, PeerUnreachable, ProtocolError
from ringleader.jobs.protocol.job_record import Count, JobRecord, printable
from ringleader.jobs.protocol.job_spec import MAX_PATH, JobId, JobSpec
from ringleader.node.protocol.local_requests import RequestFailed
from ringleader.project.environment import EnvironmentFacts, EnvironmentNeeds
from ringleader.project.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES, Digest

PURPOSE = "jobs"
"""Name of the service of an agent."""
PART_BYTES = 256 << 10
"""Largest piece of a file or of output in one message."""
EVERYTHING = "."
"""``Fetch.path`` for all that a program wrote."""
MAX_CHUNKS = 1 << 18
MAX_MESSAGE_BYTES = MAX_MANIFEST_BYTES + (2 << 20)
"""A ``Prepare`` with the longest list of files."""
ENVIRONMENT_S = 1800.0
"""How long a machine may make an environment: packages of several gigabytes take this
long over a slow line."""

Position = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
LogName = Annotated[str, msgspec.Meta(pattern=r"\A(rank-[0-9]{1,6}|launcher)\Z")]
Part = Annotated[bytes, msgspec.Meta(max_length=PART_BYTES)]
FilePath = Annotated[str, msgspec.Meta(max_length=MAX_PATH, pattern=r"\A[^\x00]*\Z")]


class _Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A message that carries the name of its type."""


class Prepare(_Tagged, frozen=True, kw_only=True):
    """Make everything ready for a job, without running anything of it."""

    spec: JobSpec
    manifest: Annotated[bytes, msgspec.Meta(max_length=MAX_MANIFEST_BYTES)] = b""
    """The program's files, encoded by ``project.manifest``; empty: none travel."""
    needs: EnvironmentNeeds | None = None
    """What the program needs from the environment; None: not checked."""


class Chunk(_Tagged, frozen=True):
    """A piece of the program's files that the machine lacks."""

    digest: Digest
    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES)]


class Start(_Tagged, frozen=True):
    """Start the job that this connection has prepared. Reply: ``Started``."""


class ListJobs(_Tagged, frozen=True):
    """Ask for the jobs of this machine. Reply: ``JobList``."""


class Follow(_Tagged, frozen=True, kw_only=True):
    """Ask for the output of a job. Replies: ``Output`` and ``Changed``.

    Without ``is_live``, what there is; else until the job has ended here. The last
    reply is ``Changed``.
    """

    job: JobId
    positions: Annotated[dict[LogName, Position], msgspec.Meta(max_length=256)] = {}
    """Where to begin in each log; default: at the beginning."""
    is_live: bool = True
    tail_bytes: Position = 0
    """Begin so many bytes before the end of each log that has no position; 0: at its
    beginning."""


class Stop(_Tagged, frozen=True):
    """End a job on this machine. Reply: ``Changed``, at once."""

    job: JobId
    is_urgent: bool = False
    """Kill it instead of asking it to end."""


class Fetch(_Tagged, frozen=True):
    """Ask for files in the job's folder. Replies: ``FilePart``, then ``Done``."""

    job: JobId
    path: FilePath
    """A file or folder in the folder in which the program runs; ``EVERYTHING``: all
    that the program wrote in the folder of its project."""


class Prune(_Tagged, frozen=True):
    """Ask to remove ended jobs. Reply: ``Pruned``."""

    kept: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 0
    """How many of the newest stay."""


class ChunksNeeded(_Tagged, frozen=True):
    """The chunks that the machine lacks, in the order in which it wants them."""

    digests: Annotated[list[Digest], msgspec.Meta(max_length=MAX_CHUNKS)]


class Prepared(_Tagged, frozen=True):
    """Nothing is missing; ``Start`` will start so many processes."""

    processes: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    facts: EnvironmentFacts | None = None
    """What the machine has of what the program needs."""


class Started(_Tagged, frozen=True):
    """The job runs."""


class JobList(_Tagged, frozen=True):
    """The jobs of a machine, the newest first."""

    jobs: Annotated[list[JobRecord], msgspec.Meta(max_length=256)]


class Output(_Tagged, frozen=True):
    """What a rank, or the launcher, has printed."""

    log: LogName
    position: Position
    """Where ``data`` begins among all bytes of this log."""
    data: Part


class Changed(_Tagged, frozen=True):
    """How the job stands on this machine now."""

    record: JobRecord


class Done(_Tagged, frozen=True):
    """All was sent."""


class Pruned(_Tagged, frozen=True):
    """What ``Prune`` has removed."""

    num_jobs: Count
    num_bytes: Count
    """What the jobs took, and the files in the store that no job is prepared with."""


class FilePart(_Tagged, frozen=True):
    """A piece of a file that the program wrote; the pieces come in order."""

    name: FilePath
    """Path from the folder that ``Fetch.path`` is in, with ``/``."""
    data: Part
    is_last: bool


JobRequest = Prepare | Chunk | Start | ListJobs | Follow | Stop | Fetch | Prune
JobReply = (
    ChunksNeeded
    | Prepared
    | Started
    | JobList
    | Output
    | Changed
    | FilePart
    | Pruned
    | Done
    | RequestFailed
)

_REQUEST: msgspec.msgpack.Decoder[JobRequest] = msgspec.msgpack.Decoder(JobRequest)
_REPLY: msgspec.msgpack.Decoder[JobReply] = msgspec.msgpack.Decoder(JobReply)
_UNREACHABLE = ("PeerUnreachable", "PeerLost", "PeerUntrusted", "DeadlineExceeded")
"""Errors that our own agent reports when it dials a machine."""
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_job_request(body: bytes, who: str) -> JobRequest:
    """Decode a request; raises ``ProtocolError`` that names the sender."""
    try:
        return _REQUEST.decode(body)
    except _DAMAGED as exc:
        raise ProtocolError(who, f"sent an invalid job request ({exc})") from exc


def decode_job_reply(body: bytes, who: str) -> JobReply:
    """Decode a reply of machine ``who``.

    Raises ``ProtocolError`` if it is invalid, ``PeerUnreachable`` if our agent cannot
    reach the machine, and ``PeerRefused`` with the reason if the machine refuses.
    """
    try:
        reply = _REPLY.decode(body)
    except _DAMAGED as exc:
        raise ProtocolError(who, f"sent an invalid job reply ({exc})") from exc
    if isinstance(reply, RequestFailed):
        kind = PeerUnreachable if reply.error in _UNREACHABLE else PeerRefused
        raise kind(who, printable(reply.text))
    return reply
