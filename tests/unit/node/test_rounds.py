"""Rounds follow from the view alone, so every node must come to the same one."""

from __future__ import annotations

import msgspec
import pytest

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.node import seat as seats
from ringleader.node.rounds import (
    MEASURE_S,
    SETTLE_S,
    Refused,
    Round,
    Table,
    Waiting,
    assign,
    is_stale,
    patience_s,
    round_id,
)
from ringleader.node.seat import Facts, Seat, Ticket
from ringleader.topology.link import LinkProfile
from ringleader.topology.profile import measure

PROFILE = measure()
ROUND = round_id("7-aaaa", "job")
A, B, C = NodeId("a" * 52), NodeId("b" * 52), NodeId("c" * 52)


def ticket(
    *, need: int = 2, most: int = 64, round_id: str = "", script: str = ""
) -> Ticket:
    return Ticket(
        job="job",
        number="1",
        min_nodes=need,
        max_nodes=most,
        wait_s=3.0,
        facts=Facts(script=script),
        round=round_id,
    )


def seat(name: str, held: Ticket | None = None, go: list[str] | None = None) -> Seat:
    return Seat(
        name=name,
        host=name,
        addresses=["10.0.0.1"],
        port=4000,
        profile=PROFILE,
        links={node: LinkProfile.ethernet() for node in (A, B, C)},
        tickets=[held] if held else [],
        go=go or [],
    )


def table(**nodes: Ticket | None) -> Table:
    """Ring order as given; age in alphabetical order."""
    ids = {"a": A, "b": B, "c": C}
    found = {ids[name]: seat(name, held) for name, held in nodes.items()}
    return Table("7-aaaa", tuple(sorted(found)), found)


def with_go(of: Table) -> Table:
    leader = of.by_age[0]
    said = msgspec.structs.replace(of.seats[leader], go=["job"])
    return Table(of.view_id, of.by_age, {**of.seats, leader: said})


def test_a_full_round_begins_at_once_in_the_order_of_the_ring() -> None:
    of = table(
        c=ticket(need=3, most=3), a=ticket(need=3, most=3), b=ticket(need=3, most=3)
    )
    results = [assign("job", of, node) for node in (A, B, C)]
    assert results == [Round(ROUND, (C, A, B))] * 3


def test_too_few_machines_wait_and_know_how_many_are_missing() -> None:
    of = table(a=ticket(need=3, most=3), b=ticket(need=3, most=3), c=None)
    assert assign("job", of, A) == Waiting((A, B), (), 1)
    assert patience_s("job", of) is None


def test_more_could_come_so_the_leader_decides_when_to_go() -> None:
    of = table(a=ticket(), b=ticket())
    assert assign("job", of, B) == Waiting((A, B), (), 0)
    assert patience_s("job", of) == 3.0
    assert assign("job", with_go(of), B) == Round(ROUND, (A, B))


def test_survivors_do_not_wait_again() -> None:
    left = msgspec.structs.replace(ticket(), again=True)
    assert patience_s("job", table(a=ticket(), b=left)) == SETTLE_S


def test_unmeasured_links_are_waited_for_until_the_leader_says_go() -> None:
    of = table(a=ticket(most=2), b=ticket(most=2))
    bare = {n: msgspec.structs.replace(s, links={}) for n, s in of.seats.items()}
    of = Table(of.view_id, of.by_age, bare)
    assert assign("job", of, A) == Waiting((A, B), (), 0)
    assert patience_s("job", of) == MEASURE_S
    assert assign("job", with_go(of), A) == Round(ROUND, (A, B))


def test_nobody_starts_while_others_are_still_in_the_old_round() -> None:
    of = with_go(table(a=ticket(), b=ticket(round_id="6/job"), c=ticket()))
    assert assign("job", of, C) == Waiting((A, C), (B,), 0)


def test_those_beyond_the_maximum_stay_out_by_age() -> None:
    of = table(c=ticket(most=2), a=ticket(most=2), b=ticket(most=2))
    assert assign("job", of, A) == Round(ROUND, (A, B))


def test_another_program_is_refused_and_named() -> None:
    of = table(a=ticket(script="111"), b=ticket(script="222"), c=ticket(script="111"))
    result = assign("job", of, B)
    assert isinstance(result, Refused)
    for word in ("script", "222 here", "111 there", " a ("):
        assert word in result.reason
    assert assign("job", with_go(of), A) == Round(ROUND, (A, C))


def test_a_fact_that_one_side_leaves_out_is_not_compared() -> None:
    of = with_go(table(a=ticket(script="111"), b=ticket(script="")))
    assert assign("job", of, B) == Round(ROUND, (A, B))


@pytest.mark.parametrize(
    ("of", "stale"),
    [
        (table(a=ticket(round_id="6/job"), b=ticket(round_id="6/job")), False),
        (table(a=ticket(round_id="6/job")), True),
        (table(a=ticket(round_id="6/job"), b=ticket()), True),
        (table(a=ticket(round_id="6/job"), b=ticket(round_id="5/job")), True),
        (
            table(a=ticket(round_id="6/job"), b=ticket(round_id="6/job"), c=ticket()),
            True,
        ),
        (
            table(
                a=ticket(most=2, round_id="6/job"),
                b=ticket(most=2, round_id="6/job"),
                c=ticket(most=2),
            ),
            False,
        ),
    ],
    ids=["unchanged", "one lost", "one waits", "other round", "one comes", "full"],
)
def test_a_round_ends_when_a_node_is_lost_or_comes(of: Table, stale: bool) -> None:
    assert is_stale("job", Round("6/job", (A, B)), of) is stale


def test_newcomers_with_other_limits_do_not_stop_a_running_job() -> None:
    running = {"a": ticket(round_id="6/job"), "b": ticket(round_id="6/job")}
    current = Round("6/job", (A, B))
    for newcomer in (ticket(need=5, most=5), ticket(need=2, most=2)):
        assert not is_stale("job", current, table(**running, c=newcomer))


def test_who_has_finished_is_not_missed() -> None:
    left = table(a=ticket(round_id="6/job"))
    assert not is_stale("job", Round("6/job", (A, B)), left, {B})
    assert is_stale("job", Round("6/job", (A, B)), left)


def test_after_a_split_the_round_of_the_older_node_goes_on() -> None:
    of = table(a=ticket(round_id="6/job"), b=ticket(round_id="5/job"), c=None)
    assert not is_stale("job", Round("6/job", (A,)), of)
    assert is_stale("job", Round("5/job", (B,)), of)


def test_a_seat_survives_the_wire_and_garbage_does_not() -> None:
    before = seat("desk", ticket())
    assert seats.decode(seats.encode(before), A) == before
    for data in (b"", b"\xc1", seats.encode(before)[:-1], b"\x80", bytes(40 << 10)):
        with pytest.raises(ProtocolError):
            seats.decode(data, A)
