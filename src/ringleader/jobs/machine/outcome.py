"""``report_outcome``: lets the launcher of a job say why it failed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.private_file import write_private
from ringleader.jobs.protocol.job_record import JobOutcome, printable
from ringleader.settings.job import job_settings

MAX_OUTCOME_BYTES = 64 << 10

_DECODER = msgspec.json.Decoder(JobOutcome)


def report_outcome(
    text: str, *, is_here: bool = False, is_consequence: bool = False
) -> None:
    """Tell the job's supervisor why it failed; does nothing outside of a job."""
    path = job_settings().outcome
    if not path:
        return
    outcome = JobOutcome(
        text=printable(text), is_here=is_here, is_consequence=is_consequence
    )
    with contextlib.suppress(ConfigError):  # the disk is full: it was printed, too
        write_private(Path(path), Secret(msgspec.json.encode(outcome)))


def read_outcome(path: Path) -> JobOutcome | None:
    """Return what the launcher reported; None if nothing, or nothing valid."""
    try:
        with path.open("rb") as file:
            return _DECODER.decode(file.read(MAX_OUTCOME_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
