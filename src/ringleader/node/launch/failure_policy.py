"""``FailurePolicy``: what a failure means for the job, here and on other machines.

Failures of the program count against ``--max-restarts``; lost machines do not. A
failure that restarting cannot mend ends the job on all machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import RingleaderError
from ringleader.node.launch.failure_report import describe, is_hopeless
from ringleader.node.launch.rendezvous import ASK_S, check_round
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.local_requests import (
    FinishRound,
    ReportFailure,
    RoundEntered,
    RoundStatus,
)

POLL_S = 0.1
OTHERS_S = 300.0
"""How long a machine that has finished waits for the others."""
SAY_AFTER_S = 2.0
SHORT_ROUND_S = 60.0
CAUSE_S = 2.0
"""How long to wait for the report of a cause after that of a consequence."""
MAX_UNEXPLAINED = 3
"""How many short rounds in a row may end with a lost connection nobody explains."""


class JobFailed(Exception):
    """The job has failed on this or another machine and is not started again."""

    def __init__(
        self,
        text: str,
        exit_status: int = 1,
        *,
        is_here: bool = False,
        is_consequence: bool = False,
    ) -> None:
        super().__init__(text)
        self.exit_status = exit_status
        self.is_here = is_here
        """Whether the program failed on this machine."""
        self.is_consequence = is_consequence
        """Whether it failed because another machine was lost or failed before."""


class FailurePolicy:
    """Decides between restarting the workers and ending the job, for one job."""

    def __init__(
        self,
        agent: AgentClient,
        job: str,
        say: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._job = job
        self.say = say
        self._entered: RoundEntered | None = None
        self.began_s = 0.0
        self._signatures: set[str] = set()
        """Signatures of failures in earlier rounds, on any machine."""
        self._told: set[tuple[str, int, int, str]] = set()
        """Failures elsewhere that the user was told of."""
        self._names: list[str] = []
        self._cause: Deadline | None = None
        self._unexplained = 0
        self.keeps_round = False
        """The workers start again in the round they were in, as newcomers."""
        self.is_over = False
        """The other machines have finished what the workers here have not."""
        self.failed: JobFailed | None = None
        """How a failure on another machine has ended the job, if one has."""

    def begin(self, entered: RoundEntered) -> None:
        """Note the round that has begun."""
        self._entered = entered
        self._names = entered.names
        self.began_s = time.monotonic()
        self._cause = None

    @property
    def round(self) -> str:
        """Id of the current round."""
        return self._entered.round if self._entered else ""

    def check(self) -> RoundStatus:
        """Ask the agent about the round and tell the user what failed elsewhere.

        Raises ``JobFailed`` if a failure elsewhere has ended the job.
        """
        status = self.ask()
        final = {r: f for r, f in status.failures.items() if f.is_final}
        if final and self._is_cause_known(final.values()):
            self.failed = JobFailed(self.describe(final))
            raise self.failed
        for rank, failure in status.failures.items():
            if not failure.is_consequence and self.is_news(rank, failure):
                self._signatures.add(failure.signature)
                self.say(self.describe({rank: failure}))
        return status

    def ask(self) -> RoundStatus:
        """Ask the agent about the round."""
        status = check_round(self._agent, self._job)
        self._names = status.names or self._names
        return status

    def is_news(self, rank: int, failure: JobFailure) -> bool:
        """Return True the first time for each failure of the machine ``rank``."""
        key = (failure.round, rank, failure.rank, failure.error)
        is_new = key not in self._told
        self._told.add(key)
        return is_new

    def _is_cause_known(self, failures: Iterable[JobFailure]) -> bool:
        """Return whether one is no consequence of another, or enough time is over."""
        if not all(failure.is_consequence for failure in failures):
            return True
        self._cause = self._cause or Deadline.after(CAUSE_S)
        return self._cause.is_over()

    def restarts_left(self, failure: JobFailure, left: int) -> int:
        """Return how many restarts torch may count down from, after a failure here.

        Raises ``JobFailed`` if the job has ended.
        """
        if failure.is_consequence and self._is_explained(failure):
            return left + 1  # torch counts the restart that follows
        is_known = bool(failure.signature) and failure.signature in self._signatures
        is_final = not left or is_hopeless(failure) or is_known
        text = self.tell_others(failure, is_final=is_final)
        if is_final:
            raise JobFailed(
                text,
                exit_status(failure.exit_status),
                is_here=True,
                is_consequence=failure.is_consequence,
            )
        self._signatures.add(failure.signature)
        self.say(f"{text}\nringleader: starting again, {left - 1} restarts left")
        return left

    def tell_others(self, failure: JobFailure, *, is_final: bool) -> str:
        """Report a failure here to the other machines, and return its description."""
        try:
            self.report(failure, is_final=is_final)
        except RingleaderError as exc:
            self.say(f"the other machines do not know of the failure here: {exc}")
        return self.describe({self.rank: failure})

    def report(self, failure: JobFailure, *, is_final: bool) -> None:
        """Tell the other machines why a worker here has failed."""
        told = msgspec.structs.replace(failure, is_final=is_final)
        self._agent.ask(ReportFailure(told), Deadline.after(ASK_S))

    def _is_explained(self, failure: JobFailure) -> bool:
        """Return whether a machine was lost, or failed first, or leaves the round.

        A lost connection that nobody explains counts as a lost machine as well, unless
        it happens again and again.
        """
        lasted_s = time.monotonic() - self.began_s
        deadline = Deadline.after(self._entered.lost_after_s if self._entered else 0)
        while not deadline.is_over():
            try:
                status = self.check()
            except RingleaderError as exc:
                text = "the agent of this machine has ended, and so the connections of"
                text = f"{text} its workers: start the command again here ({exc})"
                raise JobFailed(text) from exc
            causes = [f for f in status.failures.values() if not f.is_consequence]
            if status.is_stale or status.gone or causes:
                return True
            time.sleep(POLL_S)
        if failure.signature.startswith("DeadlineExceeded@"):
            return False  # nobody is lost: the program waits for itself
        self._unexplained = 1 if lasted_s > SHORT_ROUND_S else self._unexplained + 1
        return self._unexplained < MAX_UNEXPLAINED

    def wait_for_others(self) -> None:
        """Stay in the round until all machines have finished it.

        Raises ``JobFailed`` if one of them fails or is lost before it has finished. If
        the agent has died, nobody can tell, and what was done here counts.
        """
        try:
            self._wait_for_others()
        except RingleaderError as exc:
            self.say(f"finished here; whether the others have is not known: {exc}")

    def _wait_for_others(self) -> None:
        self._agent.ask(FinishRound(self._job), Deadline.after(ASK_S))
        deadline, quiet = Deadline.after(OTHERS_S), Deadline.after(SAY_AFTER_S)
        status, is_said = self.check(), False
        while self.awaited(status) and not deadline.is_over():
            if quiet.is_over() and not is_said:
                names = self.names(self.awaited(status))
                self.say(f"finished here; waiting for {names} to finish")
                is_said = True
            time.sleep(POLL_S)
            status = self.check()
        if status.unfinished:
            names = self.names(status.unfinished)
            self.say(f"leaving: {names} had not finished after {OTHERS_S:g} s")
        else:
            self.judge_end(status)

    def awaited(self, status: RoundStatus) -> list[int]:
        """Return the ranks of the machines whose end this one waits for."""
        return status.unfinished

    def judge_end(self, status: RoundStatus) -> None:
        """Raise ``JobFailed`` if a machine has not finished what this one has."""
        if status.failures:
            raise JobFailed(self.describe(status.failures))
        if status.gone:
            names = self.names(status.gone)
            raise JobFailed(f"{names} left before the job was finished there")

    @property
    def rank(self) -> int:
        """Rank of this machine in the round."""
        return self._entered.rank if self._entered else 0

    def names(self, ranks: Iterable[int]) -> str:
        """Return the names of machines, for the user."""
        return ", ".join(self._names[r] for r in ranks if r < len(self._names))

    def describe(self, failures: Mapping[int, JobFailure]) -> str:
        """Describe the first failure that is no consequence of another."""
        rank = min(failures, key=lambda r: (failures[r].is_consequence, r))
        return describe(self.names([rank]) or "this machine", failures[rank])


def exit_status(code: int) -> int:
    """Return the exit status of a command whose worker ended with ``code``."""
    return 128 - code if code < 0 else code or 1  # shells report a signal so
