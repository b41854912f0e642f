"""``prune_jobs``: removes ended jobs of this machine, the oldest first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from ringleader.errors import ConfigError, ProtocolError
from ringleader.jobs.machine.job_end import settle, size_of
from ringleader.jobs.machine.job_folder import JobFolder, job_folders
from ringleader.jobs.protocol.job_record import JobRecord, JobState


def prune_jobs(directory: Path, kept: int, most_bytes: int) -> list[JobRecord]:
    """Remove ended jobs but for the newest ``kept``, and beyond ``most_bytes``.

    The newest of these stays, whatever it takes: it may have ended just now. Also
    removes what a killed agent left half prepared. Returns what it has removed.
    """
    ended: list[tuple[JobRecord, JobFolder]] = []
    for folder in job_folders(directory):
        try:
            record, stored = folder.read(), folder.stored()
        except (ConfigError, ProtocolError):
            continue  # another agent makes it just now, or a user put it here
        if record.state.is_over and stored.state == JobState.PREPARED:
            folder.remove()
        elif record.state.is_over:
            ended.append((_settled(folder, record, stored), folder))
    ended.sort(key=lambda each: each[0].created_s, reverse=True)
    removed, total = [], 0
    for number, (record, folder) in enumerate(ended):
        total += record.num_bytes
        if number >= kept or (number and total > most_bytes):
            folder.remove()
            removed.append(record)
    return removed


def _settled(folder: JobFolder, record: JobRecord, stored: JobRecord) -> JobRecord:
    """Return the record with its size; what a killed supervisor left to do is done."""
    if stored.state.is_over:
        if record.num_bytes:
            return record
        return msgspec.structs.replace(record, num_bytes=size_of(folder.path))
    record = settle(folder, record)
    with suppress(ConfigError):  # the disk is full: that is why we are here
        folder.write(record)
    return record
