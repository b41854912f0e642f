"""Who starts again, who is reported, and when a run with ``--survive`` ends."""

from __future__ import annotations

import msgspec
import pytest

from ringleader.node.launch.failure_policy import JobFailed
from ringleader.node.launch.survival_policy import (
    SPLIT_STATUS,
    SurvivalPolicy,
    next_pause_s,
)
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.local_requests import RoundEntered, RoundStatus

FAILURE = JobFailure(
    job="job",
    round="r1",
    rank=0,
    exit_status=3,
    error="ValueError: nan",
    signature="ValueError@1",
)
KILLED = msgspec.structs.replace(FAILURE, exit_status=-9, error="SIGKILL", signature="")
FINAL = msgspec.structs.replace(FAILURE, is_final=True)
NAMES = ["attic", "barn", "cellar"]
ENTERED = RoundEntered(
    round="r1",
    rank=0,
    size=3,
    store_port=0,
    names=NAMES,
    credentials="",
    addresses=[],
    interface="",
    lost_after_s=0.05,
)


class Policy(SurvivalPolicy):
    """The policy, with a status in place of an agent."""

    def __init__(self, status: RoundStatus, min_nodes: int = 1) -> None:
        self.said: list[str] = []
        self.status = status
        self.reported: list[JobFailure] = []
        # No request reaches an agent: ``ask`` and ``report`` are replaced.
        super().__init__(
            AgentClient.__new__(AgentClient), "job", self.said.append, min_nodes
        )
        self.begin(ENTERED)

    def ask(self) -> RoundStatus:
        self._names = self.status.names
        return self.status

    def report(self, failure: JobFailure, *, is_final: bool) -> None:
        self.reported.append(msgspec.structs.replace(failure, is_final=is_final))

    def leave_round(self) -> None:
        self.status = msgspec.structs.replace(
            self.status, unfinished=[], finished=self.status.unfinished
        )


def status(**fields: object) -> RoundStatus:
    return RoundStatus(False, names=NAMES, **fields)  # type: ignore[arg-type]


def test_a_killed_worker_starts_again_and_does_not_count() -> None:
    policy = Policy(status(unfinished=[1, 2]))
    assert policy.restarts_left(KILLED, 0) == 1, "torch counts one restart"
    assert policy.keeps_round
    assert not policy.is_over
    assert not policy.reported
    assert "starting it again now" in policy.said[0]


def test_a_worker_that_is_killed_again_and_again_waits_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    policy = Policy(status(unfinished=[1]))
    for _ in range(9):
        policy.restarts_left(KILLED, 0)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert next_pause_s(60, lived_s=30) == 0, "it has recovered"


def test_a_killed_worker_does_not_begin_a_run_that_the_others_have_finished() -> None:
    policy = Policy(status(finished=[1], gone=[2]))
    policy.restarts_left(KILLED, 0)
    assert policy.is_over


def test_a_failing_program_counts_and_ends_on_its_machine_only() -> None:
    policy = Policy(status(unfinished=[1, 2]))
    assert policy.restarts_left(FAILURE, 1) == 1
    with pytest.raises(JobFailed, match="the others go on") as raised:
        policy.restarts_left(FAILURE, 0)
    assert raised.value.exit_status == 3
    assert [failure.is_final for failure in policy.reported] == [False, True]


def test_the_others_hear_of_it_once_by_name_and_go_on() -> None:
    policy = Policy(status(unfinished=[1], gone=[2], failures={2: FINAL}))
    policy.check()
    policy.check()
    assert len(policy.said) == 1
    assert "cellar" in policy.said[0]
    assert "ValueError: nan" in policy.said[0]


def test_the_run_ends_if_a_machine_failed_and_too_few_are_left() -> None:
    policy = Policy(status(unfinished=[1], gone=[2], failures={2: FINAL}), min_nodes=3)
    with pytest.raises(JobFailed, match="2 left, fewer than --min-nodes 3"):
        policy.check()
    lost = Policy(status(unfinished=[1], gone=[2]), min_nodes=3)
    lost.check()  # it may come back


def test_lost_machines_are_named_and_do_not_fail_the_run() -> None:
    policy = Policy(status(unfinished=[1], gone=[2]))
    policy.check()
    policy.check()
    policy.status = status(unfinished=[1, 2])
    policy.check()
    assert policy.said == [
        "cellar has left the job; training goes on without it",
        "cellar is back",
    ]
    policy.judge_end(status(gone=[1, 2]))


def test_an_agent_that_is_silent_is_no_lost_worker_and_its_return_is_told() -> None:
    policy = Policy(status(unfinished=[1], gone=[2], unreachable=[2]))
    policy.check()
    policy.check()
    policy.status = status(unfinished=[1], gone=[2])
    policy.check()
    assert policy.said == [
        "cellar is silent; training goes on, without it, unless its worker still runs",
        "cellar is back, but its agent has forgotten this job",
    ]


@pytest.mark.parametrize(
    "failure",
    [KILLED, msgspec.structs.replace(FAILURE, signature="Expelled@1")],
)
def test_a_worker_that_cannot_return_is_not_started_again(failure: JobFailure) -> None:
    policy = Policy(status(unfinished=[1, 2], can_return=False))
    policy.restarts_left(failure, 3)
    assert policy.is_over, "the others have finished it"
    assert "finished without this machine, by barn, cellar" in policy.said[-1]
    assert policy.reported[0].is_final
    alone = Policy(status(gone=[1, 2], can_return=False))
    with pytest.raises(JobFailed, match="no machine has finished the run"):
        alone.restarts_left(failure, 3)


def test_a_machine_that_has_lost_its_worker_does_not_count_as_failed() -> None:
    lost = msgspec.structs.replace(KILLED, is_final=True)
    fewer = status(unfinished=[1], gone=[2], failures={2: lost})
    Policy(fewer, min_nodes=3).check()


def test_two_models_are_named_with_a_status_of_their_own() -> None:
    one = {0: "0.a", 1: "0.a", 2: "0.a"}
    Policy(status(finished=[1, 2])).judge_end(status(histories=one))
    with pytest.raises(JobFailed, match="one by attic, barn, one by cellar") as raised:
        Policy(status()).judge_end(status(histories={**one, 2: "1.b"}))
    assert raised.value.exit_status == SPLIT_STATUS


def test_the_end_of_a_machine_that_fell_silent_a_moment_ago_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    silent = status(unfinished=[1], gone=[2], unreachable=[2])
    policy = Policy(silent)
    policy.check()
    assert policy.awaited(silent) == [1, 2]
    now_s[0] += 61
    assert policy.awaited(silent) == [1]
    policy.judge_end(silent)
    assert policy.said[-1].startswith("finished without cellar: silent")
