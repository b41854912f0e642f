"""``JobSpec``: what a job runs, and where; equal on all of its machines."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec

from ringleader.ids import NodeId

MAX_MACHINES = 64
MAX_PROCESSES = 64
"""Worker processes of one machine: one per accelerator, or as many as the user says."""
MAX_WORDS = 1024
MAX_PATH = 4096
MAX_NAME = 96

Name = Annotated[
    str,
    msgspec.Meta(
        max_length=MAX_NAME,
        pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z",
    ),
]
"""Text that is shown in terminals of other machines: no control characters."""
JobId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")]
"""Also the name of a folder: no dots, no separators."""
Node = Annotated[NodeId, msgspec.Meta(pattern=r"\A[a-z2-7]{52}\Z")]
NodeOrNone = Annotated[NodeId, msgspec.Meta(pattern=r"\A([a-z2-7]{52})?\Z")]
"""Empty: none."""
Word = Annotated[str, msgspec.Meta(max_length=32 << 10, pattern=r"\A[^\x00]*\Z")]
"""One argument of a command."""
FolderPath = Annotated[str, msgspec.Meta(max_length=MAX_PATH, pattern=r"\A[^\x00]*\Z")]
Columns = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class JobMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that takes part in a job."""

    node: Node
    name: Name


class TerminalSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terminal of the command that started a job."""

    columns: Columns
    rows: Columns


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program, its arguments, and the machines that run it together."""

    id: JobId
    script: Word
    """Path of a script from ``folder``, or name of a module."""
    is_module: bool = False
    args: Annotated[list[Word], msgspec.Meta(max_length=MAX_WORDS)] = []
    options: Annotated[list[Word], msgspec.Meta(max_length=MAX_WORDS)] = []
    """Options of ``ringleader run`` for every machine."""
    folder: FolderPath = ""
    """Where the program runs: below the job's files, or with ``is_synced`` False an
    absolute path on every machine."""
    is_synced: bool = True
    """Whether the program's files travel; else those of each machine are used."""
    syncs_environment: bool = False
    """Whether a machine that lacks packages makes an environment for the job."""
    processes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PROCESSES)] = 0
    """Worker processes per machine; 0: one per accelerator, or one."""
    machines: Annotated[
        list[JobMachine], msgspec.Meta(min_length=1, max_length=MAX_MACHINES)
    ]
    """The first one has rank 0."""
    started_on: Name = ""
    """Name of the machine where the command was typed."""
    terminal: TerminalSize | None = None
    """Given if rank 0 shall write to a terminal of this size."""

    @property
    def title(self) -> str:
        """The command in one line, for people."""
        start = ["-m", self.script] if self.is_module else [self.script]
        text = shlex.join([*start, *self.args])
        return "".join(c if c.isprintable() else " " for c in text)[:200]
