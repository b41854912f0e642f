"""One state, one cause and one exit status from the records of several machines."""

from __future__ import annotations

import msgspec
import pytest

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.jobs.client.job_summary import summarize
from ringleader.jobs.protocol.job_record import (
    JobOutcome,
    JobRecord,
    JobState,
    decode_record,
    encode_record,
    printable,
)
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec

SPEC = JobSpec(
    id="train-1a2b",
    script="train.py",
    args=["--lr", "0.1"],
    machines=[JobMachine(NodeId(name[-1] * 52), name) for name in ("host-a", "host-b")],
)
HERE = JobOutcome(text="rank 1 on host-b failed: ValueError: boom", is_here=True)
THERE = JobOutcome(text="rank 1 on host-b failed: ValueError: boom")
AFTER = JobOutcome(text="rank 0 lost its peer", is_here=True, is_consequence=True)


def record(state: JobState, **changes: object) -> JobRecord:
    made = JobRecord(spec=SPEC, machine="host-a", state=state, created_s=100.0)
    return msgspec.structs.replace(made, **changes)


def ends(one: JobRecord, two: JobRecord) -> tuple[JobState, int, str]:
    job = summarize({"host-a": one, "host-b": two})
    return job.state, job.exit_status, job.failure


def failed(outcome: JobOutcome | None, status: int, ended_s: float) -> JobRecord:
    changes = {"outcome": outcome, "exit_status": status, "ended_s": ended_s}
    return record(JobState.FAILED, **changes)


def test_the_first_failure_of_the_program_is_the_cause() -> None:
    one, two = failed(THERE, 1, 5.0), failed(HERE, 3, 6.0)
    assert ends(one, two) == (JobState.FAILED, 3, HERE.text)
    consequence = failed(AFTER, 1, 4.0)
    assert ends(consequence, two) == (JobState.FAILED, 3, HERE.text)


def test_a_job_that_went_on_without_a_machine_has_succeeded() -> None:
    done = record(JobState.SUCCEEDED)
    lost_agent = failed(JobOutcome(text="the agent has ended"), 1, 3.0)
    assert ends(done, lost_agent) == (JobState.SUCCEEDED, 0, "")
    assert ends(done, record(JobState.LOST))[:2] == (JobState.SUCCEEDED, 0)
    alone = summarize({"host-a": done})
    assert alone.machines == {"host-a": "succeeded", "host-b": "does not answer"}


def test_states_of_a_job_that_runs_or_was_stopped() -> None:
    running = record(JobState.RUNNING)
    assert ends(running, record(JobState.SUCCEEDED))[0] == JobState.RUNNING
    assert ends(running, record(JobState.STOPPING))[0] == JobState.STOPPING
    stopped = record(JobState.STOPPED, exit_status=130)
    assert ends(stopped, stopped) == (JobState.STOPPED, 130, "")
    lost = record(JobState.LOST)
    state, status, text = ends(lost, lost)
    assert (state, status) == (JobState.LOST, 1)
    assert "host-a were killed" in text


def test_a_launcher_that_says_nothing_is_named() -> None:
    state, status, text = ends(failed(None, 1, 2.0), failed(None, 1, 3.0))
    assert (state, status) == (JobState.FAILED, 1)
    assert text == "the launcher of host-a ended with exit status 1"


def test_machines_of_one_name_have_the_names_that_tell_them_apart() -> None:
    """Each calls itself desk; whoever shows its output looks for the job's name."""
    late = msgspec.structs.replace(failed(None, 1, 5.0), machine="desk")
    first = msgspec.structs.replace(failed(None, 1, 3.0), machine="desk")
    job = summarize({"desk (aaaa)": late, "desk (bbbb)": first})
    assert job.state == JobState.FAILED
    assert job.cause is not None
    assert job.cause.machine == "desk (bbbb)"
    assert job.failure == "the launcher of desk (bbbb) ended with exit status 1"


def test_records_survive_a_file_and_damage_is_named() -> None:
    kept = failed(HERE, 3, 6.0)
    assert decode_record(encode_record(kept), "job.json") == kept
    assert SPEC.title == "train.py --lr 0.1"
    for damaged in (b"", b"{}", encode_record(kept)[:-20], b"\xff" * 50):
        with pytest.raises(ProtocolError, match=r"job\.json"):
            decode_record(damaged, "job.json")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\n", "x" * 65, "a b"])
def test_an_id_is_a_plain_folder_name(name: str) -> None:
    data = encode_record(record(JobState.PREPARED)).replace(
        b'"train-1a2b"', msgspec.json.encode(name)
    )
    with pytest.raises(ProtocolError):
        decode_record(data, "job.json")


def test_text_of_other_machines_cannot_control_a_terminal() -> None:
    text = printable("a\x1b[31m\tb\nc\u202e\x9b")
    assert text == "a [31m  b\nc  "
    assert decode_record(
        encode_record(failed(JobOutcome(text=text), 1, 0.0)), "x"
    ).outcome
