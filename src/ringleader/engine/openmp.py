"""The number of threads that torch's operations use in the calling thread alone.

``torch.set_num_threads`` also changes the number for all threads that begin to use
torch later, so a library must not call it. OpenMP, which counts torch's threads, keeps
the number per thread; here it is set in the very library that torch has loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

SetThreads = Callable[[int], object]
"""Sets the number of threads of the calling thread."""

_MAPS = Path("/proc/self/maps")
_NAMES = ("libgomp", "libomp", "libiomp")


@cache
def find_set_threads() -> SetThreads | None:
    """Return the function that sets the number; None if there is none (not Linux).

    A process may have loaded several OpenMP libraries; the right one is the one that
    torch obeys.
    """
    for path in _libraries():
        try:
            set_threads = ctypes.CDLL(path).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        set_threads.argtypes, set_threads.restype = [ctypes.c_int], None
        if _is_obeyed(set_threads):
            return set_threads
    return None


def _libraries() -> list[str]:
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return [path for path in paths if Path(path).name.startswith(_NAMES)]


def _is_obeyed(set_threads: SetThreads) -> bool:
    own = torch.get_num_threads()
    set_threads(own + 1)
    is_obeyed = torch.get_num_threads() == own + 1
    set_threads(own)
    return is_obeyed
