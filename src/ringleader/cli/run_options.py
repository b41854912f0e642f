"""Options of ``ringleader run`` about machines and output, and checks of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringleader.data.file_names import is_text
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError

MOST = 64
ACCELERATORS_S = 10.0

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="NAME,...",
        help="Run on these machines only, by name or id. Needs: ringleader up.",
    ),
]
Not = Annotated[
    str, typer.Option("--not", metavar="NAME,...", help="Do not run on these machines.")
]
Here = Annotated[
    bool,
    typer.Option(
        "--here",
        help="Run only this machine's part; type the command on the others, too.",
    ),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Start the job and return; see: ringleader jobs."),
]
FetchPath = Annotated[
    list[str] | None,
    typer.Option(
        "--fetch",
        metavar="PATH",
        help="Bring this file or folder, which rank 0 wrote, here at the end; "
        "repeatable.",
    ),
]
OnlyRank = Annotated[
    int | None,
    typer.Option("--only-rank", min=0, help="Show the output of this rank only."),
]
QuietRanks = Annotated[
    bool,
    typer.Option(
        "--quiet-ranks",
        help="Show no output of the ranks; it is kept, see: ringleader logs.",
    ),
]
NoSync = Annotated[
    bool,
    typer.Option(
        "--no-sync",
        help="Send no files: every machine has the program at the same path.",
    ),
]
SyncEnv = Annotated[
    bool,
    typer.Option(
        "--sync-env",
        help="Install what the project lists on machines that lack it, for this job.",
    ),
]
MaxNodes = Annotated[
    int | None,
    typer.Option(
        "--max-nodes",
        min=1,
        max=MOST,
        help="With --min-nodes, start at once when this many machines are here.",
    ),
]
Processes = Annotated[
    str,
    typer.Option(
        "--nproc-per-node",
        metavar="auto|K",
        help="Number of worker processes on each machine; auto: one per accelerator, "
        "or one.",
    ),
]


def sizes(
    nodes: int | None,
    min_nodes: int | None,
    max_nodes: int | None,
    *,
    survive: bool = False,
) -> tuple[int, int]:
    """Return the least and the largest number of machines that begin."""
    if nodes is not None and max_nodes is not None:
        raise ConfigError("--nodes excludes --max-nodes")
    if nodes is not None and min_nodes is not None and not survive:
        text = "--nodes excludes --min-nodes, but for --survive: it begins with"
        raise ConfigError(f"{text} --nodes machines and goes on with --min-nodes")
    if nodes is not None and min_nodes is not None and min_nodes > nodes:
        raise ConfigError(f"--min-nodes {min_nodes} is more than --nodes {nodes}")
    if nodes is not None:
        return nodes, nodes
    least = 2 if min_nodes is None else min_nodes
    if max_nodes is not None and max_nodes < least:
        raise ConfigError(f"--max-nodes {max_nodes} is less than --min-nodes {least}")
    return least, MOST if max_nodes is None else max_nodes


def num_processes(text: str) -> int:
    """Return the number of processes; 0 for ``auto``."""
    if text == "auto":
        return 0
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST:
        text = f"--nproc-per-node {text}: use auto, or a number from 1 to {MOST}"
        raise ConfigError(text)
    return int(text)


def processes_here() -> int:
    """Return one process for each accelerator of this machine, or one."""
    # Imported here: --help needs none of it.
    from ringleader.topology.node_profile import find_accelerators

    return len(find_accelerators(Deadline.after(ACCELERATORS_S))) or 1


def check_text(word: str) -> None:
    """Raise ``ConfigError`` unless a word can travel to another machine."""
    if not is_text(word):
        text = "is not valid UTF-8, so it cannot travel to other machines"
        raise ConfigError(f"{word!a} {text}; with --here it can be used")


def check_fetch(paths: list[str]) -> list[str]:
    """Return the paths; raises ``ConfigError`` for one outside the job's folder."""
    for path in paths:
        check_text(path)
        parts = Path(path).parts
        if Path(path).is_absolute() or ".." in parts or not parts:
            text = "name a file or a folder that the program writes, below its folder"
            raise ConfigError(f"--fetch {path}: {text}")
    return paths
