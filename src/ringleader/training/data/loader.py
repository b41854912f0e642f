"""Loader: the interface of classes that load the batches of quanta."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ringleader.training.data.assignment import StepTable
from ringleader.training.data.data_state import Quantum
from ringleader.training.data.progress import Progress


class Loaded(NamedTuple):
    """A quantum and its batch."""

    quantum: Quantum
    """With the samples that it really has; in streamed data they are known only now."""
    batch: Any


class Loader(Protocol):
    """Loads the batches of this member's quanta. For the training thread only."""

    def start(self) -> None:
        """Start what runs in the background, before the first link is opened."""

    def expect(self, progress: Progress, table: StepTable) -> None:
        """Take the table of a step that begins, or goes on in a new view."""

    def load(self, quantum: Quantum) -> Loaded:
        """Return the batch of a quantum."""

    def reads(self, indices: Iterable[int]) -> bytes:
        """Return what quanta of the step read of streamed data, for the sideband."""

    def close(self) -> None:
        """Stop what runs in the background."""
