"""``settle``: what stays of a job on this machine when it has ended.

While a job runs it has its own copy of the project. Then what is as it came is deleted,
but for the program itself: it is in the store, once for all jobs, and where the job was
started. What the program wrote stays until it is fetched, or the job is removed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

import msgspec

from ringleader.jobs.machine.job_folder import JobFolder
from ringleader.jobs.protocol.job_record import (
    MAX_WRITTEN,
    JobRecord,
    WrittenFiles,
    printable,
)
from ringleader.jobs.protocol.job_spec import MAX_NAME
from ringleader.project import drop_unchanged, find_written

KEPT_BYTES = 16 << 20
"""Files of the project that stay, the smallest first, so that one can see what ran."""


def settle(folder: JobFolder, record: JobRecord) -> JobRecord:
    """Return the record with what the program wrote, and what it takes on the disk."""
    manifest, written = folder.manifest(), dict[str, os.stat_result]()
    if manifest is not None:
        written = find_written(manifest, folder.work)
        drop_unchanged(manifest, folder.work, written, KEPT_BYTES)
    place = PurePosixPath(os.path.relpath(record.work, folder.work))
    return msgspec.structs.replace(
        record,
        written=_by_name(written, place) if manifest is not None else [],
        num_written=len(written),
        num_bytes=size_of(folder.path),
    )


def size_of(folder: Path) -> int:
    """Return the bytes that everything below ``folder`` takes on the disk."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                state = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if stat.S_ISREG(state.st_mode):
                total += getattr(state, "st_blocks", -(-state.st_size // 512)) * 512
    return total


def _by_name(
    written: dict[str, os.stat_result], place: PurePosixPath
) -> list[WrittenFiles]:
    """Return files, and folders with all that is in them, as the program names them.

    ``place`` is the folder in which it ran; all names are from the project's folder.
    """
    found: dict[str, list[int]] = {}
    for name, state in written.items():
        parts = PurePosixPath(os.path.relpath(name, place)).parts
        up = len([part for part in parts if part == ".."])
        top = "/".join(parts[: up + 1]) + ("/" if len(parts) > up + 1 else "")
        found.setdefault(top, []).append(state.st_size)
    largest = sorted(found, key=lambda top: -sum(found[top]))[:MAX_WRITTEN]
    return [
        WrittenFiles(
            printable(top, MAX_NAME).replace("\n", " "),
            len(found[top]),
            sum(found[top]),
        )
        for top in largest
    ]
