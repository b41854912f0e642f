"""What the page shows of jobs that one command started."""

from __future__ import annotations

from ringleader.dashboard.job_rows import JobNumbers
from ringleader.dashboard.number_files import NumberPoint
from ringleader.ids import NodeId
from ringleader.jobs.client.job_summary import summarize
from ringleader.jobs.protocol.job_record import JobOutcome, JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.monitoring.job_watch import summary_rows

SPEC = JobSpec(
    id="brave-fox",
    script="train.py",
    args=["--epochs", "3"],
    machines=[
        JobMachine(NodeId("a" * 52), "anna"),
        JobMachine(NodeId("b" * 52), "ben"),
    ],
)


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
ValueError: no data"""


def record(
    machine: str, state: JobState, outcome: JobOutcome | None = None
) -> JobRecord:
    return JobRecord(
        spec=SPEC,
        machine=machine,
        state=state,
        created_s=1.0,
        outcome=outcome,
        ended_s=4.0 if state.is_over else 0.0,
    )


def test_a_running_job_has_numbers_a_log_and_a_stop_button() -> None:
    running = [record(each, JobState.RUNNING) for each in ("anna", "ben")]
    summary = summarize({each.machine: each for each in running})
    numbers = JobNumbers()
    numbers.add("b" * 52, 1, [NumberPoint(0.0, 7, 0.5, {"loss": 2.0})])
    (row,) = summary_rows([summary], {"brave-fox": numbers}, {"b" * 52: "ben"})
    assert row["name"] == "train.py --epochs 3 (brave-fox)"
    assert (row["state"], row["about"]) == ("running", "on anna, ben")
    assert (row["started_s"], row["ended_s"], row["failure"]) == (1.0, 0.0, "")
    assert row["can_stop"]
    assert row["has_log"]
    assert row["numbers"] == {"loss": [[7, 2.0]]}
    assert row["ranks"][0]["machine"] == "ben"


def test_a_failed_job_says_why_and_cannot_be_stopped() -> None:
    outcome = JobOutcome(text=TRACEBACK, is_here=True)
    failed = record("anna", JobState.FAILED, outcome)
    (row,) = summary_rows([summarize({"anna": failed})], {}, {})
    assert row["state"] == "failed"
    assert row["about"] == "anna: failed, ben: does not answer"
    assert row["failure"] == TRACEBACK, "with its lines"
    assert (row["started_s"], row["ended_s"]) == (1.0, 4.0)
    assert not row["can_stop"]
