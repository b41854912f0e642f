"""Batches that are read while the one before is computed."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ringleader.errors import DeadlineExceeded, InternalError
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.worker.trainer import Assignment, Trainer

T = TypeVar("T")

_AHEAD = 4
"""Batches that wait in memory: enough for uneven readers, little beside a model."""
_READ_S = 600.0
"""A disk that takes longer for one batch has failed."""
_LOOK_S = 0.2


class BatchPrefetcher:
    """The batches of one stint, in order; a thread reads ahead until closed."""

    def __init__(self, trainer: Trainer, assignment: Assignment) -> None:
        self.assignment = assignment
        self._trainer = trainer
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._read, name=f"feed {assignment.first_batch}", daemon=True
        )
        self._thread.start()

    def fits(self, assignment: Assignment) -> bool:
        """Whether these are the batches of ``stint``."""
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
        """Let the thread end; what it is reading is thrown away."""
        self._closed.set()

    def wait(self, within_s: float) -> None:
        """Until the thread has ended, or the time is over."""
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
                self._queue.put(item, timeout=_LOOK_S)
                return True
        return False


class BackgroundCall(Generic[T]):
    """A call that a thread of its own makes while we do something else."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._outcome: T | BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """What the call gave; raises what it raised. Its own deadlines bound it."""
        while self._thread.is_alive():  # in pieces: Ctrl-C must get through
            self._thread.join(_LOOK_S)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._outcome is None:
            raise InternalError("an errand ended without a word")
        return self._outcome

    def wait(self, within_s: float) -> None:
        """Until the call is over, or the time."""
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as exc:  # noqa: BLE001 - raised where the result is wanted
            self._outcome = exc
