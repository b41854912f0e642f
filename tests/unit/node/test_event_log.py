"""The event log keeps what status shows, once per event."""

from __future__ import annotations

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.events import GOODBYE, Health, HealthChanged
from ringleader.membership.member import Member, View, ViewId
from ringleader.node.agent.event_log import MAX_EVENTS, EventLog
from ringleader.node.protocol.node_state import SplitSeen

A, B, C = (NodeId(letter * 52) for letter in "abc")


def member(node: NodeId) -> Member:
    return Member(1, node, Incarnation("0" * 16))


def view(*nodes: NodeId, counter: int = 1) -> View:
    members = tuple(member(node) for node in nodes)
    return View(
        ViewId(counter, nodes[0], Incarnation("0" * 16)), members, (b"",) * len(nodes)
    )


def kinds(log: EventLog) -> list[str]:
    return [event.kind for event in log.events]


def test_a_split_that_both_leaders_report_is_one_event() -> None:
    log = EventLog({A: "attic", B: "barn"}, prints=False)
    log.split_seen(SplitSeen(A, B, 7))
    log.split_seen(SplitSeen(B, A, 6))
    log.split_seen(SplitSeen(A, B, 7))
    assert kinds(log) == ["split"]
    assert "attic" in log.events[0].text
    assert "barn" in log.events[0].text


def test_a_split_report_that_stays_in_the_views_is_recorded_once() -> None:
    log = EventLog({}, prints=False)
    log.split_seen(SplitSeen(A, B, 7))
    log._splits.clear()  # as if the first report was long ago
    log.split_seen(SplitSeen(A, B, 7))
    assert kinds(log) == ["split"]
    log.split_seen(SplitSeen(A, B, 9))
    assert kinds(log) == ["split", "split"], "a later split of the same leaders"


def test_splits_between_other_leaders_are_events_of_their_own() -> None:
    log = EventLog({}, prints=False)
    log.split_seen(SplitSeen(A, B, 7))
    log.split_seen(SplitSeen(A, C, 7))
    assert kinds(log) == ["split", "split"]


def test_a_view_is_an_event_only_if_its_members_change() -> None:
    log = EventLog({A: "attic"}, prints=False)
    log.view_installed(view(A), {})
    log.view_installed(view(A, counter=2), {})
    log.view_installed(view(A, B, counter=3), {B: "barn"})
    assert [event.text for event in log.events] == [
        "members: attic; leader attic",
        "members: attic, barn; leader attic",
    ]


def test_only_a_death_is_an_event_among_the_changes_of_health() -> None:
    log = EventLog({A: "attic"}, prints=False)
    log.health_changed(HealthChanged(member(A), Health.SUSPECT, "silent for 2 s"))
    log.health_changed(HealthChanged(member(A), Health.DEAD, "silent for 4 s"))
    assert kinds(log) == ["lost"]


def test_the_oldest_events_are_forgotten() -> None:
    log = EventLog({}, prints=False)
    for number in range(MAX_EVENTS + 1):
        log.connected(NodeId(f"{number:052d}"), f"n{number}", "10.0.0.1")
    assert len(log.events) == MAX_EVENTS
    assert log.events[0].text.startswith("found n1 ")


def test_a_node_that_ended_in_order_has_left_and_is_not_lost() -> None:
    log = EventLog({A: "attic", B: "barn"}, prints=False)
    log.health_changed(HealthChanged(member(B), Health.DEAD, GOODBYE))
    log.health_changed(HealthChanged(member(A), Health.DEAD, "silent for 3.5 s"))
    assert [event.text for event in log.events] == [
        "barn (bbbb-bbbb) left",
        "lost attic (aaaa-aaaa): silent for 3.5 s",
    ]
    assert kinds(log) == ["left", "lost"]


def test_nodes_with_one_name_are_told_apart_in_a_view() -> None:
    log = EventLog({}, prints=False)
    log.view_installed(view(A, B, C), {A: "pi", B: "pi", C: "desk"})
    (event,) = log.events
    expected = "members: pi (aaaa-aaaa), pi (bbbb-bbbb), desk; leader pi (aaaa-aaaa)"
    assert event.text == expected
