"""Removes old checkpoints, and what crashes left behind."""

from __future__ import annotations

from ringleader.checkpoint import catalog, manifest
from ringleader.checkpoint.storage import Storage


def remove_old(storage: Storage, keep: int, newest: str) -> list[str]:
    """Keep the newest checkpoints of this machine; return the folders removed.

    A folder without a manifest that is not newer than ``newest`` is of a save that did
    not finish. The manifest is removed first: a crash in between leaves a folder that
    nobody takes for a checkpoint.
    """
    names = catalog.folders(storage)
    unfinished = [n for n in names if storage.size(f"{n}/{manifest.NAME}") is None]
    finished = [n for n in names if n not in unfinished]
    torn = [name for name in unfinished if names.index(name) > names.index(newest)]
    doomed = [*torn, *_all_but_newest(finished, keep, newest)]
    for name in doomed:
        storage.remove(f"{name}/{manifest.NAME}")
        storage.remove(name)
    return doomed


def _all_but_newest(finished: list[str], keep: int, newest: str) -> list[str]:
    """Return the folders beyond ``keep``; the one just written always stays.

    Folders of later steps are of an abandoned run, from before a resume at an earlier
    step. They are kept like others, so that nothing is lost by a mistake.
    """
    return [name for name in finished[keep:] if name != newest]
