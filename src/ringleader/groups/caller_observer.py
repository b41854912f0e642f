"""CallerObserver: what the threads that call a group do besides its collective calls.

``engine/observer.py`` tells how a call runs; this tells when the program is held up by
it. Without an observer nothing is measured and no clock is read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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


class Installed:
    """The observer of this process."""

    observer: CallerObserver | None = None


installed = Installed()
