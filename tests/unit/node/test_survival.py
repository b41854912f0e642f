"""A job with ``--survive``: newcomers join, lost machines restart nobody."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ringleader.errors import ConfigError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.node.agent.job import Job, JobHistory
from ringleader.node.agent.job_reports import JobReports
from ringleader.node.agent.process_watch import wait_for_end
from ringleader.node.agent.rank_assignment import Refused, Round, Waiting
from ringleader.node.agent.round_outcome import round_status
from ringleader.node.agent.run_admission import admit
from ringleader.node.agent.run_workers import find_peers
from ringleader.node.agent.view_state import ViewState
from ringleader.node.launch import torch_entry_points
from ringleader.node.launch.local_modules import LocalSources
from ringleader.node.launch.survival_notice import (
    DDP,
    ELASTIC,
    check_survival,
    survival_notice,
)
from ringleader.node.protocol.local_requests import RoundStatus
from ringleader.node.protocol.node_state import (
    JobEnded,
    JobFingerprint,
    JobRequest,
    NodeState,
    PastRound,
    RunWorker,
)
from ringleader.settings.run import RunSettings, run_settings
from ringleader.topology.node_profile import measure

A, B, C = NodeId("a" * 52), NodeId("b" * 52), NodeId("c" * 52)
PROFILE = measure()
YES = JobFingerprint(script="x", survive="yes")
WAITS = JobRequest("job", "1", 2, 64, 3.0, fingerprint=YES)
ENTERED = msgspec.structs.replace(WAITS, round="r1", past_rounds=[PastRound(7, 0)])
TRAINS = msgspec.structs.replace(ENTERED, past_rounds=[PastRound(7, 0, True)])
WORKER = RunWorker("job", 5, Incarnation("1" * 16), 4100)


def state(
    name: str, held: JobRequest, *ends: JobEnded, workers: list[RunWorker] | None = None
) -> NodeState:
    return NodeState(
        name=name,
        host=name,
        addresses=["10.0.0.1"],
        port=4000,
        profile=PROFILE,
        job_requests=[held],
        ended_jobs=[*ends],
        workers=workers or [],
    )


def view(number: int = 8, **states: NodeState) -> ViewState:
    ids = {"a": A, "b": B, "c": C}
    found = {ids[name]: each for name, each in states.items()}
    return ViewState(f"{number}@aaaa", tuple(sorted(found)), found)


def running(chosen: Round) -> Job:
    loop = asyncio.new_event_loop()
    loop.close()
    job = Job(TRAINS, JobHistory(0.0), lambda _text: None, loop.create_future())
    job.round = chosen
    return job


def test_a_newcomer_joins_the_round_once_all_its_machines_have_entered() -> None:
    early = view(a=state("a", ENTERED), b=state("b", ENTERED), c=state("c", WAITS))
    assert isinstance(admit("job", early, C), Waiting)
    one = view(a=state("a", ENTERED), b=state("b", TRAINS), c=state("c", WAITS))
    assert admit("job", one, C) == Round("r1", (C,), is_joined=True)


def test_a_newcomer_is_refused_or_joins_or_waits_for_the_end() -> None:
    other = msgspec.structs.replace(
        WAITS, fingerprint=msgspec.structs.replace(YES, survive="no")
    )
    refused = admit("job", view(a=state("a", TRAINS), c=state("c", other)), C)
    assert isinstance(refused, Refused)
    assert "give both --survive and the same --partition" in refused.reason
    full = msgspec.structs.replace(TRAINS, max_nodes=2)
    here = view(a=state("a", full), b=state("b", full), c=state("c", WAITS))
    found = admit("job", here, C)
    assert found == Round("r1", (C,), is_joined=True), "two were to begin, not to stay"
    done = state("a", TRAINS, JobEnded("job", "r1", True))
    assert isinstance(admit("job", view(a=done, c=state("c", WAITS)), C), Waiting)


def test_no_change_of_the_membership_ends_an_established_round() -> None:
    job = running(Round("r1", (A, B)))
    here = view(a=state("a", TRAINS), c=state("c", TRAINS))
    job.note_joined(here)
    names = {A: "attic", B: "barn", C: "cellar"}
    status = round_status("job", job, here, A, names)
    assert status == RoundStatus(
        False,
        unfinished=[2],
        gone=[1],
        names=["attic", "barn", "cellar"],
        unreachable=[1],
    )
    job.request = ENTERED  # not all have entered: then the round must form again
    assert round_status("job", job, here, A, names).is_stale


def test_workers_learn_where_the_others_listen_and_which_lives_have_ended() -> None:
    old = msgspec.structs.replace(WORKER, has_ended=True)
    new = msgspec.structs.replace(WORKER, incarnation=Incarnation("2" * 16), port=4101)
    elsewhere = msgspec.structs.replace(WORKER, job="another")
    here = view(
        a=state("a", TRAINS, workers=[WORKER]),
        b=state("b", TRAINS, workers=[old, elsewhere, new]),
    )
    found = find_peers(running(Round("r1", (A, B))), here, A)
    assert found.expected == 2
    assert not found.is_joiner
    assert not found.is_over
    first, second = found.others
    assert first.has_ended
    assert first.member == Member(5, B, Incarnation("1" * 16))
    assert not second.has_ended
    assert second.addresses == [("10.0.0.1", 4101)]
    joined = find_peers(running(Round("r1", (A,), is_joined=True)), here, A)
    assert joined.is_joiner
    assert joined.expected == 1


def test_the_run_is_over_when_all_who_are_left_have_finished() -> None:
    job = running(Round("r1", (A, B, C)))
    end = JobEnded("job", "r1", True)
    one = view(a=state("a", TRAINS), b=state("b", TRAINS, end), c=state("c", TRAINS))
    job.note_ends(one)
    assert not find_peers(job, one, A).is_over, "c is still at it"
    lost = view(a=state("a", TRAINS), b=state("b", TRAINS, end))
    assert find_peers(job, lost, A).is_over
    alone = view(a=state("a", TRAINS))
    assert not find_peers(running(Round("r1", (A, B))), alone, A).is_over, "b was lost"


def test_an_agent_attests_the_end_of_a_worker() -> None:
    published: list[int] = []
    reports = JobReports(lambda: published.append(1))
    assert reports.is_first_worker("job")
    reports.add_worker(WORKER)
    assert not reports.is_first_worker("job")
    reports.end_worker(WORKER)
    assert [worker.has_ended for worker in reports.workers] == [True]
    assert len(published) == 2

    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=-1)

    async def follow() -> None:
        waiting = asyncio.create_task(wait_for_end(child.pid))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        child.kill()
        await asyncio.wait_for(waiting, 60)  # not reaped yet
        child.communicate()
        await asyncio.wait_for(wait_for_end(child.pid), 60)  # gone before it began

    asyncio.run(follow())


def test_the_notice_says_what_survives_for_this_program() -> None:
    def notice(text: str) -> list[str]:
        return survival_notice(LocalSources(Path(), "", [ast.parse(text)]))

    assert notice("import ringleader\nrun = ringleader.elastic(m, o, d)") == ELASTIC
    assert notice("from ringleader import elastic") == ELASTIC
    assert notice("import torch") == DDP


def test_survival_needs_one_worker_per_machine() -> None:
    check_survival(survive=False, nproc_per_node=2)
    check_survival(survive=True, nproc_per_node=1)
    with pytest.raises(ConfigError, match="one worker per machine"):
        check_survival(survive=True, nproc_per_node=2)


def test_a_newcomer_cannot_enter_a_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunSettings(job="job", agent="/x.sock", is_joiner=True)
    assert run_settings({}) is None
    assert run_settings(run.environment()) == run
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"Use ringleader\.elastic"):
        torch_entry_points._refuse_newcomer()
    monkeypatch.setenv("RINGLEADER_JOINER", "0")
    torch_entry_points._refuse_newcomer()


def test_histories_that_were_finished_are_known_our_own_without_a_view() -> None:
    job = running(Round("r1", (A, B)))
    job.lineage = "0.0123456789abcdef"
    end = JobEnded("job", "r1", ok=True, history="1.0123456789abcdef")
    here = view(a=state("a", TRAINS), b=state("b", TRAINS, end))
    job.note_ends(here)
    status = round_status("job", job, here, A, {})
    assert status.histories == {0: job.lineage, 1: end.history}


def test_a_machine_that_has_lost_its_worker_is_not_waited_for_until_it_returns() -> (
    None
):
    job = running(Round("r1", (A, B)))
    lost = state("b", TRAINS, JobEnded("job", "r1", ok=False))
    job.note_ends(here := view(a=state("a", TRAINS), b=lost))
    found = round_status("job", job, here, A, {})
    assert (found.gone, found.unfinished, found.unreachable) == ([1], [], [])
    job.note_ends(here := view(a=state("a", TRAINS), b=state("b", TRAINS)))
    assert round_status("job", job, here, A, {}).unfinished == [1]
