"""Saves a run as JSON, markdown and a plot, with all that is needed to repeat it."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime
from pathlib import Path

from ringleader.cli.bench.bench_plan import BenchPlan
from ringleader.cli.bench.bench_run import BenchOutcome
from ringleader.cli.bench.measurement import Results, check_auto
from ringleader.cli.bench.system_info import describe
from ringleader.cli.bench.table import auto_table, markdown, result_tables
from ringleader.cli.json_socket import Message

FORMAT = 1
"""Version of the JSON layout; incremented when a field changes its meaning."""

HOW = (
    "float32. Time per call: the time of a batch of back-to-back calls after a "
    "barrier, on its slowest rank, divided by the number of calls; median over the "
    "rounds. The libraries take turns in every round, in reversed order every other "
    "round; every result was first checked for exact values. Size: the largest tensor "
    "of a rank. shm and tcp: Ringleader over shared memory and over TCP; MPI: OpenMPI; "
    "xGloo: Gloo's time divided by ours (above 1 Ringleader is faster)."
)


def document(plan: BenchPlan, outcome: BenchOutcome, started: datetime) -> Message:
    """Return all data of a run, ready for json.dumps."""
    return {
        "format": FORMAT,
        "started": started.isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": {**describe(), "libraries": dict(outcome.versions)},
        "how": HOW,
        "rounds": plan.rounds,
        "batch_s": plan.batch_s,
        "notes": list(outcome.notes),
        "results": [found.to_json() for found in outcome.results.all()],
    }


def save(
    whole: Message, outcome: BenchOutcome, started: datetime, directory: Path
) -> list[Path]:
    """Write a .json, .md and .png file into ``directory``; return their paths."""
    from ringleader.cli.bench.plot import (
        save_plot,
    )  # importing matplotlib takes a second

    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"bench-{started:%Y-%m-%d-%H%M%S}"
    paths = [stem.with_suffix(suffix) for suffix in (".json", ".md", ".png")]
    paths[0].write_text(json.dumps(whole, indent=1) + "\n")
    paths[1].write_text(text(whole, outcome.results))
    save_plot(outcome.results, _headline(whole), paths[2])
    return paths


def text(whole: Message, results: Results) -> str:
    """Return the markdown page: machine, command, method and tables."""
    notes = whole["notes"]
    assert isinstance(notes, list), "document() makes a list of notes"
    lines = [
        f"# {_headline(whole)}",
        "",
        f"`{whole['command']}`",
        "",
        str(whole["how"]),
    ]
    lines += ["", *(f"- {note}" for note in notes), ""]
    lines += [markdown(content) for content in result_tables(results)]
    checks = check_auto(results)
    if checks:
        lines.append(markdown(auto_table(checks)))
    return "\n".join(lines)


def _headline(whole: Message) -> str:
    machine = whole["machine"]
    assert isinstance(machine, dict), "document() describes the machine"
    memory = machine["memory_bytes"]
    ram = f", {memory / (1 << 30):.0f} GiB" if isinstance(memory, int) else ""
    where = f"{machine['cpu']}, {machine['cores']} cores{ram}"
    return f"Collectives on {where}, {str(whole['started'])[:10]}"
