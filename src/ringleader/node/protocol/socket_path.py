"""Addresses of Unix sockets whose path is longer than an address may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 103
"""The longest path on macOS; Linux takes 107."""
_DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path of ``path`` that fits into an address, where the system has one.

    Linux has: a path that begins at an open directory. It is valid in the context only.
    """
    if len(os.fsencode(path)) <= MAX_BYTES or not _DESCRIPTORS.exists():
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield str(_DESCRIPTORS / str(directory) / path.name)
    finally:
        os.close(directory)
