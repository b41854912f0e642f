"""A user who waits is told who is missing, how long it may take, and what to do."""

from __future__ import annotations

import asyncio

import pytest

from ringleader.deadline import Deadline
from ringleader.ids import NodeId
from ringleader.node.agent import waiting_report
from ringleader.node.agent.job import Job, JobHistory
from ringleader.node.agent.rank_assignment import Round, Waiting, assign_ranks
from ringleader.node.agent.view_state import ViewState
from ringleader.node.agent.waiting_report import (
    ADVICE,
    report_waiting,
    who_is_missing,
)
from ringleader.node.protocol.node_state import JobFingerprint, JobRequest, NodeState
from ringleader.topology.node_profile import measure

PROFILE = measure()
A, B, C = NodeId("a" * 52), NodeId("b" * 52), NodeId("c" * 52)


def request(job: str = "job", script: str = "") -> JobRequest:
    return JobRequest(
        job=job,
        request_id="1",
        min_nodes=3,
        max_nodes=3,
        wait_s=0,
        fingerprint=JobFingerprint(script=script),
    )


def view(**requests: JobRequest | None) -> ViewState:
    """Return a view of nodes by name; the name's first letter makes the id."""
    states = {
        NodeId(name[0] * 52): NodeState(
            name=name[1:],
            host="",
            addresses=[],
            port=1,
            profile=PROFILE,
            job_requests=[held] if held else [],
        )
        for name, held in requests.items()
    }
    return ViewState("7@x", tuple(states), states)


def job(lines: list[str], last_round: Round | None = None) -> Job:
    loop = asyncio.new_event_loop()
    made = Job(request(), JobHistory(0.0), lines.append, loop.create_future())
    loop.close()
    made.last_round = last_round
    return made


def test_machines_that_do_not_take_part_are_named() -> None:
    waiting = job([], Round("1", (A, C)))
    seen = view(apie=request(), bpie=request("other"), dpie=None)
    assert who_is_missing(waiting, seen, {C: "desk"}) == [
        "desk was in the last round and is gone",
        "pie (bbbb-bbbb) is here, but it is in job other",
        "pie (dddd-dddd) is here, but it has entered no job yet",
    ]


def test_a_machine_alone_is_told_so() -> None:
    lines = who_is_missing(job([]), view(apie=request()), {})
    assert lines == ["no other node of this cluster is in sight"]


def test_a_machine_with_another_script_is_named_to_those_who_wait() -> None:
    seen = view(apie=request(script="x"), bcake=request(script="y"))
    waiting = assign_ranks("job", seen, A)
    assert isinstance(waiting, Waiting)
    expected = "1 here (pie); waiting for 2 more machines"
    assert waiting.describe(seen) == f"{expected}; cake is refused (different script)"


def test_reports_count_down_and_repeat_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_report, "FIRST_S", 0.0)
    monkeypatch.setattr(waiting_report, "EVERY_S", 0.01)
    lines: list[str] = []

    async def main() -> None:
        is_enough = asyncio.Event()

        def on_progress(text: str) -> None:
            lines.append(text)
            if len(lines) >= 6:
                is_enough.set()

        waiting = Job(
            request(),
            JobHistory(0.0),
            on_progress,
            asyncio.get_running_loop().create_future(),
        )
        waiting.last_progress = "1 here (pie)"
        reporting = asyncio.create_task(
            report_waiting(
                waiting,
                Deadline.after(600),
                lambda: (view(apie=request()), {}, ["no multicast here"]),
            )
        )
        await asyncio.wait_for(is_enough.wait(), 60)
        waiting.round = Round("1", (A,))
        await asyncio.wait_for(reporting, 60)

    asyncio.run(main())
    told = [line for line in lines if not line.startswith("still waiting, ")]
    alone = "no other node of this cluster is in sight"
    assert told == [alone, "no multicast here", ADVICE]
    counted = [f"still waiting, {s} s left: 1 here (pie)" for s in range(500, 601)]
    assert lines[0] in counted
