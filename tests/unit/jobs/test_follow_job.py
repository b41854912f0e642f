"""How a job ended, from what the machines said before they ended or fell silent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ringleader.ids import NodeId
from ringleader.jobs.client.follow_job import FollowedMachine, JobFollower
from ringleader.jobs.client.output_view import PlainView
from ringleader.jobs.protocol.job_record import JobOutcome, JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import Changed

MACHINES = [JobMachine(NodeId(name[-1] * 52), name) for name in ("host-a", "host-b")]
SPEC = JobSpec(id="train-1a2b", script="train.py", args=[], machines=MACHINES)


def machine(index: int, state: JobState, *, is_done: bool) -> FollowedMachine:
    name = MACHINES[index].name
    record = JobRecord(spec=SPEC, machine=name, state=state, created_s=100.0)
    return FollowedMachine(MACHINES[index], record=record, is_done=is_done)


def following(*machines: FollowedMachine) -> JobFollower:
    follower = JobFollower(
        path=Path("unused"), spec=SPEC, view=PlainView(), write=print, say=print
    )
    follower.machines.extend(machines)
    return follower


def states(*machines: FollowedMachine) -> dict[str, JobState]:
    records = following(*machines).records()
    return {name: record.state for name, record in records.items()}


def test_a_machine_lost_on_the_way_does_not_say_how_the_job_ended() -> None:
    ended = machine(0, JobState.SUCCEEDED, is_done=True)
    silent = machine(1, JobState.RUNNING, is_done=False)
    assert states(ended, silent) == {"host-a": JobState.SUCCEEDED}


def test_if_all_fell_silent_their_last_words_count() -> None:
    silent = machine(1, JobState.RUNNING, is_done=False)
    assert states(silent) == {"host-b": JobState.RUNNING}


def test_a_trouble_of_all_machines_is_told_once() -> None:
    silent = [machine(i, JobState.RUNNING, is_done=False) for i in range(2)]
    for each in silent:
        each.trouble = "the agent of this machine: is gone"
    assert following(*silent).silent() == ["the agent of this machine: is gone"]


def test_a_full_disk_is_told_once_while_the_job_goes_on() -> None:
    said: list[str] = []
    full = JobOutcome(text="the disk is full", is_consequence=True)
    follower = following(each := machine(0, JobState.RUNNING, is_done=False))
    follower.say = said.append
    record = each.record
    assert record is not None
    for state in (JobState.RUNNING, JobState.SUCCEEDED):
        record = msgspec.structs.replace(record, outcome=full, state=state)
        follower._take(each, Changed(record))
    assert said == ["host-a: the disk is full"]
