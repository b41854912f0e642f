"""Turns what torch knows about failed workers into a ``JobFailure``.

Pure functions: torch's description of a failure comes in, the report for the other
machines goes out.
"""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ringleader.node.protocol.job_failure import (
    MAX_ERROR,
    MAX_LINE,
    MAX_LINES,
    JobFailure,
    clean,
)

_HOPELESS = {
    *("ImportError", "ModuleNotFoundError"),
    *("SyntaxError", "IndentationError", "TabError"),
}
_CONSEQUENCES = {
    *("PeerError", "PeerLost", "PeerUnreachable", "GroupAborted", "DeadlineExceeded"),
    *("DistBackendError", "DistNetworkError", "DistStoreError"),
}
_BROKEN_CONNECTION = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|gloo.*connect"
    r"|connectFullMesh|application timeout caused pair closure|ncclRemoteError",
    re.IGNORECASE,
)
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)


class WorkerFailure(Protocol):
    """The part of torch's ``ProcessFailure`` that is used here."""

    exitcode: int
    message: Any
    """A text, or the contents of the error file."""
    timestamp: int


@dataclass(frozen=True, slots=True)
class _Description:
    error: str
    traceback: str

    @property
    def kind(self) -> str:
        """Name of the exception's class; empty without an exception."""
        name = self.error.partition(":")[0].rpartition(".")[2]
        return name if self.traceback and name.isidentifier() else ""

    @property
    def is_consequence(self) -> bool:
        return is_consequence(self.kind, self.error)

    @property
    def signature(self) -> str:
        """The exception's class with a digest of the lines it came through."""
        frames = _FRAME.findall(self.traceback)
        if not self.kind or not frames:
            return ""
        digest = hashlib.sha256(repr(frames).encode()).hexdigest()[:16]
        return clean(f"{self.kind}@{digest}", MAX_LINE)


def first_failure(
    failures: Mapping[int, WorkerFailure], job: str, round_id: str
) -> JobFailure:
    """Report the failure that caused the others, of the workers of this machine.

    ``failures`` are by rank. A worker that lost a peer failed because of another one.
    """
    found = {rank: _describe(failure) for rank, failure in failures.items()}
    rank = min(found, key=lambda r: (found[r].is_consequence, failures[r].timestamp, r))
    first, failure = found[rank], failures[rank]
    lines = [line for line in first.traceback.splitlines() if line.strip()]
    return JobFailure(
        job=job,
        round=round_id,
        rank=rank,
        exit_status=_status(failure),
        error=clean(first.error.strip().partition("\n")[0], MAX_ERROR),
        lines=[clean(line, MAX_LINE) for line in lines[-MAX_LINES:]],
        signature=first.signature,
        is_consequence=first.is_consequence,
    )


def _status(failure: WorkerFailure) -> int:
    """Return the exit status of a worker; 1 if it had raised before it was ended.

    The launcher terminates the others when it notices the first end, which may be that
    of a rank that lost this one.
    """
    if failure.exitcode == -signal.SIGTERM and _describe(failure).kind:
        return 1
    return failure.exitcode


def is_consequence(kind: str, error: str) -> bool:
    """Return whether an exception says that another rank was lost.

    ``kind`` is the name of its class, and ``error`` that with its message.
    """
    if kind == "SystemExit":
        return False
    return kind in _CONSEQUENCES or (
        bool(kind) and bool(_BROKEN_CONNECTION.search(error))
    )


def is_hopeless(failure: JobFailure) -> bool:
    """Return whether the program would fail in the same way if started again."""
    return failure.signature.partition("@")[0] in _HOPELESS


def describe(machine: str, failure: JobFailure) -> str:
    """Return a text for the user: machine, rank, error and the last lines."""
    listed = "".join(f"\n  | {line}" for line in failure.lines)
    return f"rank {failure.rank} on {machine} failed: {failure.error}{listed}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _describe(failure: WorkerFailure) -> _Description:
    message = failure.message
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else ""
        return _Description(str(message.get("message", "")), str(stack or ""))
    if failure.exitcode < 0:
        # Not torch's text: its process id may be that of a fork's client.
        return _Description(f"killed by {_signal_name(-failure.exitcode)}", "")
    return _Description(f"exit status {failure.exitcode} without an exception", "")
