"""``write_trace``: writes a recording as a file that Perfetto and Chrome open."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ringleader.tracing.analysis.chrome_trace import chrome_events
from ringleader.tracing.analysis.events import Recording


def write_trace(recording: Recording, path: Path) -> None:
    """Write the file whole or not at all."""
    ranks = [
        {
            "rank": trace.rank,
            "machine": trace.machine,
            "is_complete": trace.is_complete,
            "dropped_events": trace.num_dropped,
            "clock_error_us": trace.clock_error_ns / 1000,
        }
        for _, trace in sorted(recording.ranks.items())
    ]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            about = json.dumps({"ringleader": {"ranks": ranks}})
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {about},\n')
            file.write('"traceEvents": [\n')
            comma = ""
            for event in chrome_events(recording):
                file.write(f"{comma}{json.dumps(event)}")
                comma = ",\n"
            file.write("\n]}\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def next_free(path: Path, since_s: float) -> Path:
    """Return ``path``, with a number if it was written after ``since_s``.

    The workers of a run may start several times; none overwrites the trace of others.
    """
    number, free = 1, path
    while free.exists() and free.stat().st_mtime >= since_s:
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free
