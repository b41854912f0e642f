"""``JobFailure``: why the program failed on one machine, for all the others."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_ERROR = 300
MAX_LINES = 8
MAX_LINE = 160

_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z"
ErrorText = Annotated[str, msgspec.Meta(max_length=MAX_ERROR, pattern=_PRINTABLE)]
Line = Annotated[str, msgspec.Meta(max_length=MAX_LINE, pattern=_PRINTABLE)]


class JobFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first failure among the workers of one machine in one round."""

    job: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
    round: Annotated[str, msgspec.Meta(max_length=64, pattern=_PRINTABLE)]
    rank: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    """Rank of the worker among all workers of the job."""
    exit_status: Annotated[int, msgspec.Meta(ge=-256, le=1 << 32)]
    """Exit status of the worker; if negative, the signal that ended it."""
    error: ErrorText
    """Type and message of the exception, or the exit status in words."""
    lines: Annotated[list[Line], msgspec.Meta(max_length=MAX_LINES)] = []
    """The last lines of the traceback."""
    signature: Line = ""
    """Equal for the same exception raised at the same line; empty if unknown."""
    is_consequence: bool = False
    """The worker failed because it lost a peer; the cause is elsewhere."""
    is_final: bool = False
    """Restarting cannot help, or no restarts are left: the job has ended."""


def clean(text: str, limit: int) -> str:
    """Return at most ``limit`` printable characters of one line of ``text``."""
    text = text.expandtabs(4)[:limit].encode(errors="replace").decode()
    return "".join(c if c.isprintable() else " " for c in text)
