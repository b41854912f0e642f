"""``SurvivalPolicy``: what a failure means with ``ringleader run --survive``.

Nothing that happens to another machine restarts the workers here. A worker that was
killed starts again as a newcomer; one that failed by its own error counts against
``--max-restarts`` and then ends the job on its machine only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ringleader.errors import RingleaderError
from ringleader.node.launch.failure_policy import (
    FailurePolicy,
    JobFailed,
    exit_status,
)
from ringleader.node.launch.failure_report import is_hopeless
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.local_requests import RoundStatus

STABLE_S = 20.0
"""A worker that lived this long does not flap."""
MAX_PAUSE_S = 60.0
_KILLED = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)
)
"""Signals that come from outside the program."""


def is_killed(failure: JobFailure) -> bool:
    """Return whether the worker was ended from outside, not by the program."""
    return -failure.exit_status in _KILLED


def next_pause_s(pause_s: float, lived_s: float) -> float:
    """Return how long to wait before a killed worker starts again.

    ``pause_s`` is the wait before its last life. One that is killed now and then
    starts at once; one that dies again and again waits longer each time.
    """
    if lived_s >= STABLE_S:
        return 0.0
    return min(MAX_PAUSE_S, max(1.0, 2 * pause_s))


class SurvivalPolicy(FailurePolicy):
    """Keeps this machine's worker in the run, whatever happens to the others."""

    def __init__(
        self,
        agent: AgentClient,
        job: str,
        say: Callable[[str], None],
        min_nodes: int,
    ) -> None:
        super().__init__(agent, job, say)
        self._min_nodes = min_nodes
        """The job ends if a machine fails and fewer are left."""
        self._pause_s = 0.0
        self._lives = 0
        self._gone: set[int] = set()

    def check(self) -> RoundStatus:
        """Ask the agent about the run; tell the user who failed, was lost, came back.

        Raises ``JobFailed`` if a machine has failed and too few are left.
        """
        status = self.ask()
        for rank, failure in status.failures.items():
            if self.is_news(rank, failure):
                how = "; the others go on" if failure.is_final else "; it starts again"
                self.say(f"{self.describe({rank: failure})}\nringleader: {how[2:]}")
        self._tell_gone(status)
        left = 1 + len(status.unfinished) + len(status.finished)
        final = {r: f for r, f in status.failures.items() if f.is_final}
        if final and left < self._min_nodes:
            text = f"{left} left, fewer than --min-nodes {self._min_nodes}"
            self.failed = JobFailed(f"{self.describe(final)}\n{text}")
            raise self.failed
        return status

    def _tell_gone(self, status: RoundStatus) -> None:
        gone = {rank for rank in status.gone if rank not in status.failures}
        for rank in sorted(gone - self._gone):
            self.say(f"{self.names([rank])} is lost; training goes on without it")
        for rank in sorted(self._gone & {*status.unfinished}):
            self.say(f"{self.names([rank])} is back")
        self._gone = gone

    def restarts_left(self, failure: JobFailure, left: int) -> int:
        """Return how many restarts torch may count down from, after a failure here.

        Raises ``JobFailed`` if the worker of this machine is not started again.
        """
        self.keeps_round = True
        if is_killed(failure):
            self._wait_before_restart(failure)
            return left + 1  # torch counts the restart that follows
        is_final = not left or is_hopeless(failure)
        text = self.tell_others(failure, is_final=is_final)
        if is_final:
            end = "this machine leaves the run; the others go on"
            status = exit_status(failure.exit_status)
            raise JobFailed(f"{text}\n{end}", status, is_here=True)
        self.say(f"{text}\nringleader: starting again, {left - 1} restarts left")
        return left

    def _wait_before_restart(self, failure: JobFailure) -> None:
        """Wait longer each time if the worker dies again and again."""
        name = signal.Signals(-failure.exit_status).name
        try:
            status = self.check()
        except RingleaderError as exc:
            text = "the agent of this machine has ended, so its worker cannot find the"
            text = f"{text} others: start the command again here ({exc})"
            raise JobFailed(text) from exc
        self.is_over = bool(status.finished) and not status.unfinished
        if self.is_over:
            self.say(f"the worker here was ended by {name}; the others have finished")
            return
        lived_s = time.monotonic() - self.began_s
        self._pause_s = next_pause_s(self._pause_s, lived_s) if self._lives else 0.0
        self._lives += 1
        when = f"in {self._pause_s:g} s" if self._pause_s else "now"
        text = f"the worker here was ended by {name} after {lived_s:.0f} s"
        self.say(f"{text}; starting it again {when}, as a newcomer")
        time.sleep(self._pause_s)

    def judge_end(self, status: RoundStatus) -> None:
        """Accept that machines were lost or failed: the run is finished."""
