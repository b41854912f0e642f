"""``warm_command``: a run as a fork of the resident agent's warm process."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from ringleader.node.launch import worker_main
from ringleader.node.launch.fork_server import fork_command
from ringleader.node.launch.resident_agent import find_resident


def warm_command(home: Path, words: list[str]) -> list[str] | None:
    """Return a command that does what ``ringleader WORDS`` does, in a warm fork.

    None if no resident agent has a warm process of this interpreter and release.
    """
    record = find_resident(home)
    if record is None or not record.warm or record.python != sys.executable:
        return None
    if record.version != metadata.version("ringleader"):
        return None
    module = ["-u", worker_main.__file__, "-m", "ringleader", *words]
    return fork_command(record.warm, [sys.executable, *module])


def become_warm_run(home: Path) -> None:
    """Replace this ``ringleader run`` by a warm fork; return if there is none.

    A process that has imported torch is one, or has no use for it.
    """
    if "torch" in sys.modules or sys.argv[1:2] != ["run"]:
        return
    given = sys.argv[2:]
    words = ["run", *(given if "--here" in given else ["--here", *given])]
    command = warm_command(home, words)
    if command is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)
