"""Reads batches ahead, and makes other calls, in threads beside the computation."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from msgspec.structs import replace

from ringleader.errors import DeadlineExceeded, InternalError
from ringleader.paramserver.protocol.messages import Assignment
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.worker.trainer import Trainer

T = TypeVar("T")

_AHEAD = 4
"""Batches kept in memory: enough for uneven readers, little compared with a model."""
_READ_S = 600.0
"""Longest time to read one batch; a disk that takes longer has failed."""
_POLL_S = 0.2


class BatchPrefetcher:
    """Iterates over the batches of an assignment, which a thread reads ahead."""

    def __init__(self, trainer: Trainer, assignment: Assignment) -> None:
        self.assignment = assignment
        self._trainer = trainer
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        name = f"prefetch {assignment.first_batch}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)

    @classmethod
    def start(cls, trainer: Trainer, assignment: Assignment) -> Self:
        """Start reading the batches of ``assignment``."""
        prefetcher = cls(trainer, assignment)
        prefetcher._thread.start()
        return prefetcher

    def is_for(self, assignment: Assignment) -> bool:
        """Return whether these are the batches of ``assignment``."""
        return (self.assignment.batches, self.assignment.batch_size) == (
            assignment.batches,
            assignment.batch_size,
        )

    def __iter__(self) -> Iterator[Batch]:
        for number in self.assignment.batches:
            try:
                item = self._queue.get(timeout=_READ_S)
            except queue.Empty:
                text = f"batch {number} was not read within {_READ_S:.0f} s"
                raise DeadlineExceeded("the dataset", text) from None
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Tell the thread to end; the batch that it is reading is discarded."""
        self._closed.set()

    def wait(self, within_s: float) -> None:
        """Wait until the thread has ended, or the time is over."""
        self._thread.join(within_s)

    def _read(self) -> None:
        try:
            for batch in self._trainer.gather(self.assignment):
                if not self._put(batch):
                    return
        except Exception as exc:  # noqa: BLE001 - raised where the batch is wanted
            self._put(exc)

    def _put(self, item: Batch | BaseException) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=_POLL_S)
                return True
        return False


def likely_next(assignment: Assignment) -> Assignment:
    """Return what the worker gets in the next round if no worker joins or leaves."""
    first = assignment.first_batch + assignment.shards * assignment.steps
    return replace(assignment, version=assignment.version + 1, first_batch=first)


class BackgroundCall(Generic[T]):
    """A call that a thread of its own makes."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._outcome: T | BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @classmethod
    def start(cls, call: Callable[[], T], name: str) -> Self:
        """Start ``call`` in a thread called ``name``."""
        started = cls(call, name)
        started._thread.start()
        return started

    def result(self) -> T:
        """Wait for the call, which has deadlines; return its result or raise."""
        while self._thread.is_alive():  # in short waits: Ctrl-C must get through
            self._thread.join(_POLL_S)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._outcome is None:
            raise InternalError(f"{self._thread.name} ended without a result")
        return self._outcome

    def wait(self, within_s: float) -> None:
        """Wait until the call has ended, or the time is over."""
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as exc:  # noqa: BLE001 - raised where the result is wanted
            self._outcome = exc
