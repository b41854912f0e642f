"""``SurvivalPolicy``: what a failure means with ``ringleader run --survive``.

Nothing that happens to another machine restarts the workers here. A worker that was
killed starts again as a newcomer, if its program can join a run that goes on; else its
machine waits until the others have finished. One that failed by its own error counts
against ``--max-restarts`` and then ends the job on its machine only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress

from ringleader.deadline import Deadline
from ringleader.errors import RingleaderError
from ringleader.node.launch.failure_policy import (
    POLL_S,
    FailurePolicy,
    JobFailed,
    exit_status,
)
from ringleader.node.launch.failure_report import is_hopeless
from ringleader.node.launch.rendezvous import ASK_S
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.local_requests import FinishRound, RoundStatus

STABLE_S = 20.0
"""A worker that lived this long does not flap."""
MAX_PAUSE_S = 60.0
SILENT_S = 60.0
"""A machine that has been silent for longer is not waited for at the end."""
SPLIT_STATUS = 3
"""Exit status if machines have trained apart and finished different models."""
_KILLED = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)
)
"""Signals that come from outside the program."""


_UNLESS = "without it, unless its worker still runs"
_KEEP_ONE = (
    "these machines have trained apart. Keep one model; with --partition majority, or "
    "elastic(partition='majority'), only the larger side goes on"
)
_MAYBE_ANOTHER = "and if its worker trained on alone, with a model of its own"
_CANNOT_RETURN = (
    "without ringleader.elastic a worker cannot join again; waiting for the others"
)


def is_killed(failure: JobFailure) -> bool:
    """Return whether the worker was ended from outside, not by the program."""
    return -failure.exit_status in _KILLED


def is_loss(failure: JobFailure) -> bool:
    """Return whether the others have lost the worker: not for an error of its own."""
    return is_killed(failure) or failure.signature.startswith("Expelled@")


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
        self._silent_since_s: dict[int, float] = {}
        """The ranks of machines of which nothing is heard."""
        self._can_return = True
        """Whether a new life of the worker here could join the run."""

    def check(self) -> RoundStatus:
        """Ask the agent about the run; tell the user who failed, was lost, came back.

        Raises ``JobFailed`` if a machine has failed and too few are left.
        """
        status = self.ask()
        self._can_return = status.can_return
        for rank, failure in status.failures.items():
            if self.is_news(rank, failure):
                how = "; the others go on" if failure.is_final else "; it starts again"
                self.say(f"{self.describe({rank: failure})}\nringleader: {how[2:]}")
        self._tell_gone(status)
        left = 1 + len(status.unfinished) + len(status.finished)
        failures = status.failures.items()
        final = {r: f for r, f in failures if f.is_final and not is_loss(f)}
        if final and left < self._min_nodes:
            text = f"{left} left, fewer than --min-nodes {self._min_nodes}"
            self.failed = JobFailed(f"{self.describe(final)}\n{text}")
            raise self.failed
        return status

    def _tell_gone(self, status: RoundStatus) -> None:
        """Say who is gone and who is back, as far as it is known.

        An agent that is silent may have ended alone: its worker may train on.
        """
        for rank in status.gone:
            is_silent = rank in status.unreachable
            was_gone, was_silent = rank in self._gone, rank in self._silent_since_s
            if is_silent:
                self._silent_since_s.setdefault(rank, time.monotonic())
            else:
                self._silent_since_s.pop(rank, None)
            if (was_gone and was_silent == is_silent) or rank in status.failures:
                continue
            name = self.names([rank])
            if is_silent:
                self.say(f"{name} is silent; training goes on, {_UNLESS}")
            elif was_silent:
                self.say(f"{name} is back, but its agent has forgotten this job")
            else:
                self.say(f"{name} has left the job; training goes on without it")
        for rank in sorted(self._gone & {*status.unfinished}):
            self.say(f"{self.names([rank])} is back")
        for rank in self._silent_since_s.keys() - {*status.gone}:
            del self._silent_since_s[rank]
        self._gone = {*status.gone}

    def restarts_left(self, failure: JobFailure, left: int) -> int:
        """Return how many restarts torch may count down from, after a failure here.

        Raises ``JobFailed`` if the worker of this machine is not started again.
        """
        self.keeps_round = True
        with suppress(RingleaderError):  # without the agent nobody is asked
            self.check()
        if is_loss(failure) and not self._can_return:
            self._watch_others(failure)
            return left + 1  # torch counts the restart that follows
        if is_killed(failure):
            self._wait_before_restart(failure)
            return left + 1
        is_final = not left or is_hopeless(failure) or not self._can_return
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
        status = self._ask_after_loss()
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

    def _ask_after_loss(self) -> RoundStatus:
        try:
            return self.check()
        except RingleaderError as exc:
            text = "the agent of this machine has ended, so its worker cannot find the"
            text = f"{text} others: start the command again here ({exc})"
            raise JobFailed(text) from exc

    def _watch_others(self, failure: JobFailure) -> None:
        """Wait until the others have finished what a worker here cannot take up again.

        Raises ``JobFailed`` if none of them finishes it.
        """
        self._ask_after_loss()
        text = self.tell_others(failure, is_final=True)
        self.leave_round()
        self.say(f"{text}\nringleader: {_CANNOT_RETURN}")
        while (status := self._ask_after_loss()).unfinished:
            time.sleep(POLL_S)
        if not status.finished:
            text = f"{text}\nno machine has finished the run"
            raise JobFailed(text, exit_status(failure.exit_status), is_here=True)
        self.say(f"finished without this machine, by {self.names(status.finished)}")
        self.is_over = True

    def leave_round(self) -> None:
        """Tell the others not to wait for this machine."""
        request = FinishRound(self._job, ok=False)
        self._agent.ask(request, Deadline.after(ASK_S))

    def wait_for_others(self) -> None:
        """As without ``--survive``, unless the others have finished without us."""
        if not self.is_over:
            super().wait_for_others()

    def awaited(self, status: RoundStatus) -> list[int]:
        """Wait also for a machine that fell silent a moment ago.

        A cable may be cut: then its worker trains on alone, and ends with a model of
        its own, which both sides have to be told.
        """
        recent_s = time.monotonic() - SILENT_S
        silent = [r for r, at_s in self._silent_since_s.items() if at_s > recent_s]
        return sorted([*status.unfinished, *silent])

    def judge_end(self, status: RoundStatus) -> None:
        """Accept that machines were lost or failed: the run is finished.

        Raises ``JobFailed`` if machines have finished it with different models.
        """
        models: dict[str, list[int]] = {}
        for rank, history in sorted(status.histories.items()):
            models.setdefault(history, []).append(rank)
        if len(models) > 1:
            sides = ", ".join(f"one by {self.names(r)}" for r in models.values())
            text = f"{len(models)} different models were finished, {sides}"
            raise JobFailed(f"{text}; {_KEEP_ONE}", SPLIT_STATUS, is_here=True)
        if status.unreachable:
            names = self.names(status.unreachable)
            self.say(f"finished without {names}: silent, {_MAYBE_ANOTHER}")
