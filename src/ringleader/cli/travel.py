"""What of a command line does not travel to the other machines, in sentences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MAX_TOLD = 5
"""Sentences about arguments: a command may name a thousand files."""
HELP = (
    "put it into the project, give a path that every machine has, or let the program "
    "call ringleader.fetch with the absolute path here"
)
_MISSING = re.compile(r"(?:FileNotFoundError|NotADirectoryError): .*?'([^'\n]+)'")


def travelling_folder(folder: str, here: Path, home: Path) -> str:
    """Return a folder that each machine has of its own, as all of them understand it.

    Below the home folder it is ``~/...``: users have different homes. A relative one is
    that of the user, not one in the job's folder, which is gone with the job.
    """
    if "://" in folder:
        return folder
    path = Path(os.path.abspath(here / os.path.expanduser(folder)))
    if path != home and path.is_relative_to(home):
        return f"~/{path.relative_to(home).as_posix()}"
    return str(path)


def staying_arguments(
    args: Sequence[str], here: Path, root: Path, names: Iterable[str]
) -> list[str]:
    """Return a sentence for each argument that names something here and stays here.

    ``names`` are the files that travel, below ``root``; the program finds them where it
    runs if its arguments are relative.
    """
    travelling = {root / name for name in names}
    above = {folder for path in travelling for folder in path.parents}
    told = []
    for word in _paths(args):
        path = Path(os.path.normpath(here / word))
        if not os.path.exists(path):
            continue
        if os.path.isabs(word):
            told.append(f"{word}: every machine uses its own; it does not travel")
        elif not path.is_relative_to(root):
            text = f"{word} does not travel: it lies outside of the project {root}"
            told.append(f"{text}; {HELP}")
        elif path not in travelling and path not in above:
            told.append(
                f"{word} does not travel: Git ignores it, or it is empty; {HELP}"
            )
    return list(dict.fromkeys(told))[:MAX_TOLD]


def explain_missing(failure: str, here: Path) -> str:
    """Return what to do about a file that the program did not find; '': it found all.

    ``failure`` is what is known of the error; ``here`` where the command was typed.
    """
    missing = _MISSING.search(failure)
    if missing is None:
        return ""
    path = missing[1]
    if os.path.exists(here / path):
        text = f"{path} is here, but not on that machine, or not in the job's folder"
    else:
        text = f"{path} is not in the job's folder"
    copy = "the program runs in a copy of its project, without what Git ignores"
    return f"{text}: {copy}; {HELP}"


def _paths(args: Sequence[str]) -> Iterator[str]:
    """Yield the words, and values of ``--name=value``, that may be paths."""
    for word in args:
        value = word.partition("=")[2] if word.startswith("-") else word
        if value and "\0" not in value:
            yield value
