"""One attempt at the sum of all contributions: buckets in order, then the sideband.

Buckets start as soon as backward has filled them. Every bucket is one call of the
group, out of place; a call that has ended successfully is a bucket that is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ringleader.errors import RingleaderError
from ringleader.groups.work import Work
from ringleader.training.kill_points import reach


class Reducer(Protocol):
    """The calls of a group that an attempt makes."""

    def reduce_bucket(self, index: int) -> Work:
        """Start the sum of bucket ``index``."""

    def exchange_sideband(self, entry: Tensor) -> Work:
        """Start the exchange of the entries of all members."""


class Reduction:
    """One attempt. One thread at a time.

    ``done`` is called for every bucket that is held, once or twice, by any thread.
    """

    def __init__(
        self,
        reducer: Reducer,
        leaves: Sequence[tuple[int, ...]],
        done: Callable[[int], None],
    ) -> None:
        self._reducer = reducer
        self._missing = [set(each) for each in leaves]
        self._done = done
        self._works: list[tuple[int, Work]] = []
        self._buckets_of: dict[int, int] = {
            leaf: k for k, each in enumerate(leaves) for leaf in each
        }
        self._next = 0
        self.error: RingleaderError | None = None
        """Why no further bucket was started."""

    def parameter_ready(self, leaf: int) -> None:
        """Start the buckets that are complete, given that ``leaf`` is."""
        self._missing[self._buckets_of[leaf]].discard(leaf)
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._start(self._next)

    def finish(self, entry: Tensor) -> None:
        """Start what is left, and return when everything is held.

        Raises the error of the first call that failed; all calls have ended then.
        """
        while self._next < len(self._missing):
            self._start(self._next)
        if self.error is None:
            self._submit(0, lambda: self._reducer.exchange_sideband(entry))
        self.settle()
        if self.error is not None:
            raise self.error

    def settle(self) -> None:
        """Return when no call is running any more: buffers may be used again."""
        for bit, work in self._works:
            try:
                work.wait()
            except RingleaderError as exc:
                self.error = self.error or exc
            else:
                self._done(bit)  # callbacks of the work may come after this

    def _start(self, index: int) -> None:
        self._next += 1
        if self.error is None:
            reach(f"rs:{index}")
            self._submit(index + 1, lambda: self._reducer.reduce_bucket(index))

    def _submit(self, bit: int, call: Callable[[], Work]) -> None:
        try:
            work = call()
        except RingleaderError as exc:
            self.error = exc
            return
        self._works.append((bit, work))

        def ended() -> None:
            if work.error() is None:
                self._done(bit)
                reach(f"ag:{bit - 1}" if bit else "ag:sideband")

        work.when_done(ended)
