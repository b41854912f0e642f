"""Which machines run a job."""

from __future__ import annotations

import pytest

from ringleader.errors import ConfigError
from ringleader.jobs.client.machine_choice import (
    Wanted,
    all_machines,
    choose_machines,
    idle_machines,
)
from ringleader.node.protocol.snapshot import HealthCounts, NodeRow, Snapshot


def row(name: str, **changes: object) -> NodeRow:
    values: dict[str, object] = {
        "node": node_id(name),
        "name": name,
        "health": "healthy",
        "is_leader": False,
        "is_here": name == "desk",
        "in_view": True,
        "address": "",
        "latency_s": None,
        "clock_ahead_s": None,
        "version": "1",
        "profile": None,
        "links": {},
        "jobs": [],
        "accepts_jobs": True,
    }
    return NodeRow(**{**values, **changes})  # type: ignore[arg-type]


def node_id(name: str) -> str:
    return (name.replace("-", "") * 52)[:52]


def snapshot(*rows: NodeRow) -> Snapshot:
    health = HealthCounts(
        total=0,
        healthy=0,
        suspect=0,
        dead=0,
        unknown=0,
        percentage=100,
        is_healthy=True,
    )
    return Snapshot(
        cluster="home",
        node=node_id("desk"),
        epoch=1,
        leader=rows[0].node,
        ring=[each.node for each in rows],
        nodes=list(rows),
        health=health,
        troubles=[],
        rejected=0,
        pid=1,
        uptime_s=1,
        is_resident=True,
    )


SEEN = snapshot(
    row("attic"),
    row("desk"),
    row("gone", health="dead"),
    row("shy", accepts_jobs=False),
    row("studio"),
)


def names(wanted: Wanted, seen: Snapshot = SEEN) -> list[str]:
    return [machine.name for machine in choose_machines(seen, wanted)]


def test_all_that_are_up_and_accept_jobs_with_this_machine_first() -> None:
    assert names(Wanted()) == ["desk", "attic", "studio"]
    assert names(Wanted(nodes=2)) == ["desk", "attic"]
    assert names(Wanted(without=["attic"])) == ["desk", "studio"]
    assert names(Wanted(on=["studio", "attic"])) == ["studio", "attic"]
    assert names(Wanted(on=["studio", "desk"])) == ["desk", "studio"]
    assert names(Wanted(on=[node_id("studio")[:4]])) == ["studio"]


def test_machines_that_stay_out_are_named() -> None:
    chosen = choose_machines(SEEN, Wanted())
    (told,) = idle_machines(SEEN, chosen, Wanted())
    assert told.startswith("shy takes no jobs")
    assert idle_machines(SEEN, chosen, Wanted(nodes=3)) == []


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Wanted(nodes=4), "--nodes 4: of 4 machines that are up, 3 .desk, attic"),
        (Wanted(on=["nobody"]), "--on nobody: no such machine is up; there are desk,"),
        (Wanted(on=["gone"]), "no such machine is up"),
        (Wanted(on=["shy"]), "--on shy: takes no jobs; allow them on shy with"),
        (Wanted(without=["nobody"]), "--not nobody: no such machine"),
        (Wanted(without=["desk", "attic", "studio"]), "none can run this job"),
    ],
)
def test_errors_say_what_to_do(wanted: Wanted, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        choose_machines(SEEN, wanted)


def test_two_machines_of_one_name_are_told_apart() -> None:
    twins = snapshot(row("desk"), row("pi"), row("pi", node=node_id("other")))
    assert len({machine.name for machine in all_machines(twins)}) == 3
    with pytest.raises(ConfigError, match="several have this name; give an id"):
        choose_machines(twins, Wanted(on=["pi"]))
    assert len(names(Wanted(on=[node_id("other")[:8]]), twins)) == 1


def test_this_machine_runs_its_own_jobs_also_if_it_refuses_those_of_others() -> None:
    shy = snapshot(row("desk", accepts_jobs=False), row("attic"))
    assert names(Wanted(), shy) == ["desk", "attic"]
    assert idle_machines(shy, choose_machines(shy, Wanted()), Wanted()) == []
    assert names(Wanted(without=["desk"]), shy) == ["attic"]
    assert names(Wanted(on=["desk", "attic"]), shy) == ["desk", "attic"]
