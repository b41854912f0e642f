"""Which processes have started a process."""

from __future__ import annotations


def ancestors(pid: int) -> frozenset[int]:
    """Return the ids of the processes above ``pid``; empty if it has ended."""
    import psutil  # slow to import, and only agents look

    try:
        return frozenset(each.pid for each in psutil.Process(pid).parents())
    except psutil.Error:
        return frozenset()
