"""Asynchronous calls of a backward pass that its thread runs itself, at the end.

Where torch's threads take every core, a background thread that communicates during a
backward pass takes time from one of them, and all others wait for that one. At the end
of the pass they are all idle and share the work: see
docs/decisions/0023-communication-after-backward.md.

Nothing waits for the end of a pass for ever, see postponement.py. And the end of a pass
may not wait for ever for a rank that does something else first: it runs an operation
only once all ranks have issued it, and leaves it to the background thread after
PATIENCE_S. Every rank counts the operations that it has issued, in its segment of the
shared memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

import torch

from ringleader.deadline import Deadline
from ringleader.groups.caller_observer import installed
from ringleader.groups.job import Job
from ringleader.groups.postponement import Postponement
from ringleader.groups.work import Work
from ringleader.transport.crowded_cores import relax

PATIENCE_S = 0.05
"""How much later another rank may come to the same operation. DDP waits in any case; a
program that has other things to do after the pass loses this."""
SPINS, NAP_S = 200, 5e-5
"""Looks at the counters before sleeping between two of them."""


class PostponedCalls:
    """The operations that ranks have issued, and which the end of a pass may run."""

    def __init__(
        self,
        mine: memoryview,
        theirs: Sequence[memoryview],
        postponement: Postponement,
    ) -> None:
        """Begin to count, at the same operation on all ranks."""
        self._mine, self._theirs = mine, theirs
        self._postponement = postponement
        self._num_issued = 0
        self._pass = -1
        """The last backward pass that will call at its end."""

    def issue(self) -> int:
        """Count an operation of this rank and return its number."""
        self._num_issued += 1
        self._mine[0] = self._num_issued
        return self._num_issued

    def postpone(self, at_end: Callable[[], None]) -> bool:
        """Postpone an operation if this thread is in a backward pass, and return that.

        ``at_end`` is called in this thread when the pass has computed all gradients.
        """
        current = torch._C._current_graph_task_id()
        if current != -1 and current != self._pass:
            engine = torch.autograd.Variable._execution_engine
            try:
                engine.queue_callback(at_end)
            except RuntimeError:  # a pass that takes no callbacks
                current = -1
        self._pass = current
        if current == -1:
            self._postponement.end()
            return False
        self._postponement.begin()
        return True

    def run_issued(self, queue: deque[Job], run: Callable[[Work], None]) -> None:
        """Run the jobs of ``queue`` that all ranks have issued or issue soon.

        The others are left to the background thread.
        """
        patience, observer = Deadline.after(PATIENCE_S), installed.observer
        waiting = nullcontext() if observer is None else observer.waiting()
        with waiting, suppress(IndexError):  # the queue is empty
            while self._await_issued(queue[0].number, patience):
                run(queue[0].work)
        self._postponement.end()

    def _await_issued(self, number: int, patience: Deadline) -> bool:
        """Return whether all ranks have issued operation ``number`` in time."""
        num_looks = 0
        while not all(each[0] >= number for each in self._theirs):
            if patience.is_over():
                return False
            num_looks += 1
            if num_looks < SPINS:
                relax()
            else:
                time.sleep(NAP_S)
        return True
