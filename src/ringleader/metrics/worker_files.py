"""Files by which workers tell their values to the agent of their machine.

A worker writes ``PID.json`` into a folder of its user, at a low rate; readers drop what
is stale. A file of a process that was killed needs no other cleaning, and a group needs
neither a socket nor a decoder for this.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.metrics.snapshot import MAX_BYTES, Snapshot

EVERY_S = 2.0
"""Time between two files of a worker: fresh for Prometheus, which asks every 15 s as a
rule, and 1 ms of work each."""
STALE_S = 30.0
"""A file this old belongs to a worker that ended; its last values were seen by then."""
MAX_FILES = 1024
_NAME = re.compile(r"[0-9]{1,10}\.json")
_RANK = re.compile(r"[0-9]{1,6}|")


@dataclass(frozen=True, slots=True)
class WorkerValues:
    """What one worker published last."""

    pid: int
    rank: str
    """Its rank in the program; empty before its first group."""
    snapshot: Snapshot

    def labels(self) -> dict[str, str]:
        """The labels that tell this worker's series from others'."""
        return {"process": "worker", "rank": self.rank, "pid": str(self.pid)}


def write_file(folder: Path, rank: str, snapshot: Snapshot) -> None:
    """Publish the values of this process; OSError if that is not possible."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    head = json.dumps({"rank": rank}).encode()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(head + b"\n" + snapshot.to_json())
    fresh.replace(path)


def read_files(folder: Path) -> list[WorkerValues]:
    """The values of all workers that published lately; removes what is stale.

    A file that is not valid is left out: whoever can write there is this user.
    """
    found: list[WorkerValues] = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir())[:MAX_FILES]:
            with contextlib.suppress(OSError, ConfigError):
                if values := _read(path):
                    found.append(values)
    return found


def _read(path: Path) -> WorkerValues | None:
    age_s = time.time() - path.stat().st_mtime
    if age_s > STALE_S:
        path.unlink()
        return None
    if not _NAME.fullmatch(path.name):
        return None
    with path.open("rb") as file:
        head = file.readline(1024)
        data = file.read(MAX_BYTES + 1)
    try:
        rank = json.loads(head)["rank"]
    except (ValueError, TypeError, KeyError) as exc:
        raise ConfigError(f"metrics: {path} has no valid first line") from exc
    if not isinstance(rank, str) or not _RANK.fullmatch(rank):
        raise ConfigError(f"metrics: {path} names no rank")
    return WorkerValues(int(path.stem), rank, Snapshot.from_json(data))
