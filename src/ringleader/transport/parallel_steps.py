"""run_at_once: the steps of one operation in threads, which end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ringleader.deadline import Cancellation, Deadline

Step = Callable[[], None]


def run_at_once(steps: Sequence[Step], deadline: Deadline, stop: Cancellation) -> None:
    """Run all steps at the same time and return when all have ended.

    The first that fails cancels ``stop``, which must end the others, and its error is
    raised. Several that fail because time is up fail together: then the error is that
    of the first in ``steps``, on every run the same. The last step runs in this thread.
    """
    failures: dict[int, BaseException] = {}

    def run(index: int) -> None:
        try:
            steps[index]()
        except BaseException as exc:  # noqa: BLE001 - raised below
            failures[index] = exc
            stop.cancel("another connection of this group failed")

    threads = [
        threading.Thread(
            target=run, args=(i,), name=f"ringleader-dial-{i}", daemon=True
        )
        for i in range(len(steps) - 1)
    ]
    for thread in threads:
        thread.start()
    if steps:
        run(len(steps) - 1)
    try:
        _join(threads)
    except BaseException:  # Ctrl-C
        stop.cancel("interrupted")
        _join(threads)
        raise
    if failures:
        first = min(failures) if deadline.is_over() else next(iter(failures))
        raise failures[first]


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
