"""CallerObserver: what the threads that call a group do besides its collective calls.

``engine/observer.py`` tells how a call runs; this tells when the program is held up by
it. Without an observer nothing is measured and no clock is read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class CallerObserver(Protocol):
    """Follows all groups of this process, in the threads that use them."""

    def queued(self) -> None:
        """Note that this thread has left an operation to another one, and goes on."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Surround the time in which this thread waits for an operation."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Surround operations that run as one, and the computation between them."""
        ...

    def phase(self, name: str, *, holds_up: bool) -> AbstractContextManager[None]:
        """Surround a phase; if it ``holds_up`` the program, nothing is computed."""
        ...

    def phase_ended(self, name: str, since_s: float) -> None:
        """Note that a phase ends that began at ``since_s``, a time of ``now_s``."""
        ...


class Installed:
    """The observer of this process."""

    observer: CallerObserver | None = None


installed = Installed()


def phase(name: str, *, holds_up: bool = False) -> AbstractContextManager[None]:
    """Surround a phase of the program, for the observer if there is one."""
    if installed.observer is None:
        return nullcontext()
    return installed.observer.phase(name, holds_up=holds_up)
