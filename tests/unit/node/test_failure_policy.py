"""Which failures restart the workers, which count, and which end the job."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from ringleader.node.launch import failure_policy
from ringleader.node.launch.failure_policy import FailurePolicy, JobFailed
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.local_requests import (
    CheckRound,
    Reply,
    ReportFailure,
    Request,
    RequestDone,
    RoundEntered,
    RoundStatus,
    decode_request,
)

FAILURE = JobFailure(
    job="job",
    round="r1",
    rank=1,
    exit_status=3,
    error="ValueError: nan",
    lines=["x"],
    signature="ValueError@1",
)
LOST = msgspec.structs.replace(
    FAILURE, error="PeerLost: x", signature="PeerLost@1", is_consequence=True
)
ENTERED = RoundEntered(
    round="r1",
    rank=0,
    size=2,
    store_port=0,
    names=["attic", "barn"],
    credentials="",
    addresses=[],
    interface="",
    lost_after_s=0.05,
)
WORKING = RoundStatus(False, unfinished=[1])


class Agent:
    """The other end of a policy's socket: answers with statuses, the last for ever."""

    def __init__(self, statuses: Sequence[RoundStatus]) -> None:
        self.statuses = list(statuses)
        self.requests: list[Request] = []

    def serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as stream:
            while prefix := stream.read(framing.PREFIX_BYTES):
                body = stream.read(int.from_bytes(prefix, "little"))
                self.requests.append(decode_request(body))
                sock.sendall(framing.pack(self.answer(self.requests[-1])))

    def answer(self, request: Request) -> Reply:
        if not isinstance(request, CheckRound):
            return RequestDone()
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    @property
    def reported(self) -> list[JobFailure]:
        return [r.failure for r in self.requests if isinstance(r, ReportFailure)]


@contextmanager
def policy(*statuses: RoundStatus) -> Iterator[tuple[FailurePolicy, Agent, list[str]]]:
    said: list[str] = []
    ours, theirs = socket.socketpair()
    agent = Agent(statuses)
    thread = threading.Thread(target=agent.serve, args=(theirs,))
    thread.start()
    client = AgentClient(ours)
    try:
        made = FailurePolicy(client, "job", said.append)
        made.begin(ENTERED)
        yield made, agent, said
    finally:
        client.close()
        thread.join()


def told(failure: JobFailure, *, is_final: bool) -> RoundStatus:
    failure = msgspec.structs.replace(failure, is_final=is_final)
    return RoundStatus(False, unfinished=[1], failures={1: failure})


def test_a_failure_of_the_program_counts_and_is_told_to_the_others() -> None:
    with policy(WORKING) as (made, agent, said):
        assert made.restarts_left(FAILURE, 2) == 2, "torch counts it down"
        assert agent.reported == [FAILURE]
        assert "rank 1 on attic failed: ValueError: nan" in said[0]
        with pytest.raises(JobFailed) as ended:
            made.restarts_left(FAILURE, 1)
        assert ended.value.exit_status == 3
        assert agent.reported[-1].is_final, "the same exception at the same line"


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (FAILURE, 0),
        (msgspec.structs.replace(FAILURE, signature="ImportError@1"), 5),
        (msgspec.structs.replace(FAILURE, exit_status=-9, signature=""), 0),
    ],
)
def test_without_restarts_or_hope_the_job_ends(failure: JobFailure, left: int) -> None:
    with policy(WORKING) as (made, agent, _), pytest.raises(JobFailed) as ended:
        made.restarts_left(failure, left)
    assert agent.reported[0].is_final
    assert ended.value.exit_status == (137 if failure.exit_status < 0 else 3)


@pytest.mark.parametrize(
    "status",
    [
        RoundStatus(True, "1 lost", gone=[1]),
        RoundStatus(True, "other machines wait"),
        told(FAILURE, is_final=False),
        WORKING,  # a connection broke, and both machines live
    ],
)
def test_a_lost_machine_does_not_count(status: RoundStatus) -> None:
    with policy(WORKING, status) as (made, agent, _):
        assert made.restarts_left(LOST, 0) == 1
        assert not agent.reported


def test_connections_that_break_again_and_again_count() -> None:
    with policy(WORKING) as (made, agent, _):
        for _round in range(failure_policy.MAX_UNEXPLAINED - 1):
            assert made.restarts_left(LOST, 0) == 1
        with pytest.raises(JobFailed):
            made.restarts_left(LOST, 0)
        assert agent.reported[0].is_consequence


def test_a_deadline_that_no_lost_machine_explains_counts() -> None:
    late = msgspec.structs.replace(LOST, signature="DeadlineExceeded@1")
    with policy(WORKING) as (made, _, _), pytest.raises(JobFailed):
        made.restarts_left(late, 0)


def test_a_final_failure_elsewhere_ends_the_job_here() -> None:
    text = "rank 1 on barn failed: ValueError: nan"
    with policy(told(FAILURE, is_final=True)) as (made, _, _):
        with pytest.raises(JobFailed, match=text):
            made.check()
        with pytest.raises(JobFailed, match=text):
            made.restarts_left(LOST, 5)
    with policy(told(FAILURE, is_final=False)) as (made, _, said):
        assert made.check().unfinished == [1]
        made.check()
        assert len(said) == 1, "told once"
        assert text in said[0]


def test_a_consequence_elsewhere_waits_for_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = told(LOST, is_final=True)
    with policy(status, told(FAILURE, is_final=True)) as (made, _, _):
        made.check()
        with pytest.raises(JobFailed, match="ValueError: nan"):
            made.check()
    monkeypatch.setattr(failure_policy, "CAUSE_S", 0.0)
    with policy(status) as (made, _, _), pytest.raises(JobFailed, match="PeerLost"):
        made.check()


def test_a_machine_that_has_finished_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure_policy, "SAY_AFTER_S", 0.0)
    with policy(WORKING, WORKING, RoundStatus(False)) as (made, _, said):
        made.wait_for_others()
        assert said == ["finished here; waiting for barn to finish"]
    lost = RoundStatus(True, gone=[1])
    with policy(WORKING, lost) as (made, _, _), pytest.raises(JobFailed, match="barn"):
        made.wait_for_others()
    monkeypatch.setattr(failure_policy, "OTHERS_S", 0.0)
    with policy(WORKING) as (made, _, said):
        made.wait_for_others()
        assert said == ["leaving: barn had not finished after 0 s"]


def test_without_an_agent_what_has_finished_has_succeeded() -> None:
    """Was: exit status 1 for a job that had finished."""
    ours, theirs = socket.socketpair()
    theirs.close()
    said: list[str] = []
    client = AgentClient(ours)
    FailurePolicy(client, "job", said.append).wait_for_others()
    client.close()
    (text,) = said
    assert text.startswith("finished here; whether the others have is not known: ")


def test_without_an_agent_the_failure_is_still_shown() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    said: list[str] = []
    made = FailurePolicy(AgentClient(ours), "job", said.append)
    made.begin(ENTERED)
    with pytest.raises(JobFailed, match="rank 1 on attic failed"):
        made.restarts_left(FAILURE, 0)
    assert "do not know of the failure" in said[0]
    with pytest.raises(JobFailed, match="the agent of this machine has ended, and so"):
        made.restarts_left(LOST, 0)
    ours.close()
