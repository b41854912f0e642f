"""The machine step by step: what it answers to which event."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import pytest

from ringleader.errors import ConfigError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    Action,
    Event,
    FreezeView,
    Health,
    HealthChanged,
    InstallView,
    KeyCloned,
    LeaveCluster,
    LinkDown,
    LinkUp,
    MessageReceived,
    PeerForgotten,
    RefreshView,
    Send,
    SetPayload,
    Tick,
)
from ringleader.membership.member import (
    MAX_PAYLOAD_BYTES,
    NO_VIEW,
    Member,
    View,
    ViewId,
)
from ringleader.membership.messages import (
    Ack,
    Commit,
    Goodbye,
    Heartbeat,
    Propose,
    Refuse,
    Report,
    Status,
)
from ringleader.membership.state_machine import MembershipMachine

A = TypeVar("A")


def member(letter: str, started_ms: int, life: int = 0) -> Member:
    return Member(started_ms, NodeId(letter * 52), Incarnation(f"{life:016x}"))


ADA, BOB, CYD = member("a", 1), member("b", 2), member("c", 3)


class Desk:
    """A machine on a table: one hand feeds it, the other sorts what comes out."""

    def __init__(self, me: Member, config: MembershipConfig | None = None) -> None:
        self.now_s = 100.0
        self.machine = MembershipMachine(me, config)
        self.numbers: dict[Member, int] = {}
        self.log: list[Action] = []
        self.step(Tick())

    def step(self, event: Event) -> list[Action]:
        actions = self.machine.step(event, self.now_s)
        self.log += actions
        return actions

    def wait(self, length_s: float) -> list[Action]:
        """Let time pass, with every tick that is due."""
        until_s = self.now_s + length_s
        actions = []
        while self.machine.wake_at_s <= until_s:
            self.now_s = max(self.now_s, self.machine.wake_at_s)
            actions += self.step(Tick())
        self.now_s = until_s
        return actions

    def beat(
        self,
        peer: Member,
        *,
        prefers: Member | None = None,
        hears: tuple[Member, ...] | None = None,
        invites: tuple[Member, ...] = (),
        promised: ViewId = NO_VIEW,
        echo_s: float = 0.0,
    ) -> list[Action]:
        """A heartbeat of ``peer``."""
        heard = (self.machine.me,) if hears is None else hears
        leader = prefers or peer
        report = Report(NO_VIEW, promised, 0, leader, heard, invites, (), (), 0)
        return self.hear(peer, report, echo_us=int(echo_s * 1e6))

    def suspect(self, peer: Member, refutation: int) -> list[Action]:
        """A heartbeat of ``peer`` which says that it suspects us."""
        suspects = ((self.machine.me, refutation),)
        hears = (self.machine.me,)
        report = Report(NO_VIEW, NO_VIEW, 0, peer, hears, (), suspects, (), 0)
        return self.hear(peer, report)

    def hear(self, peer: Member, report: Report, echo_us: int = 0) -> list[Action]:
        """A heartbeat of ``peer`` with this report."""
        number = self.numbers[peer] = self.numbers.get(peer, 0) + 1
        return self.step(
            MessageReceived(peer, Heartbeat(number, 1, echo_us, 0, 0, report))
        )

    def meet(self, peer: Member) -> None:
        """A link opens, and the peer says hello."""
        self.step(LinkUp(peer))
        self.beat(peer)


def only(actions: list[Action], kind: type[A]) -> list[A]:
    return [a for a in actions if isinstance(a, kind)]


def said(actions: list[Action], kind: type[A], to: Member) -> list[A]:
    sent = [a for a in only(actions, Send) if a.to == to]
    return [s.message for s in sent if isinstance(s.message, kind)]


def health(desk: Desk, peer: Member) -> Health | None:
    record = desk.machine.health.of(peer)
    return None if record is None else record.health


def test_a_node_alone_soon_has_a_view_of_its_own() -> None:
    desk = Desk(ADA)
    assert desk.machine.view is None
    [freeze] = only(desk.wait(1), FreezeView)
    [install] = only(desk.log, InstallView)
    assert install.view.members == (ADA,)
    assert install.view.id == freeze.id
    assert desk.machine.is_leader
    assert not desk.machine.is_frozen


def test_the_senior_one_of_two_freezes_the_other_and_installs() -> None:
    desk = Desk(ADA)
    desk.step(SetPayload(b"ours"))
    desk.meet(BOB)
    desk.beat(BOB, prefers=ADA)
    actions = desk.wait(1)
    [proposal, *again] = said(actions, Propose, BOB)
    assert proposal.members == (ADA, BOB)
    assert again, "what is not answered is said again"
    actions = desk.step(MessageReceived(BOB, Status(proposal.id, b"theirs", 0)))
    [commit] = said(actions, Commit, BOB)
    assert commit.view == View(proposal.id, (ADA, BOB), (b"ours", b"theirs"))
    assert only(actions, InstallView) == [InstallView(commit.view)]
    assert said(desk.wait(0.5), Commit, BOB) == [commit]
    desk.step(MessageReceived(BOB, Ack(commit.view.id)))
    desk.beat(BOB, prefers=ADA)
    assert not said(desk.wait(1.2), Commit, BOB)


def follow(desk: Desk) -> None:
    """Bring bob to prefer ada."""
    desk.meet(ADA)
    desk.beat(ADA, invites=(BOB,))
    assert desk.machine.prefers == ADA


def name(counter: int, leader: Member = ADA) -> ViewId:
    return ViewId(counter, leader.node, leader.incarnation)


def test_a_member_freezes_answers_and_installs() -> None:
    desk = Desk(BOB)
    desk.step(SetPayload(b"ours"))
    follow(desk)
    actions = desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
    assert only(actions, FreezeView) == [FreezeView(name(5), ADA, (ADA, BOB))]
    assert said(actions, Status, ADA) == [Status(name(5), b"ours", 0)]
    assert desk.machine.is_frozen
    view = View(name(5), (BOB, ADA), (b"ours", b"hers"))
    actions = desk.step(MessageReceived(ADA, Commit(view)))
    assert only(actions, InstallView) == [InstallView(view)]
    assert said(actions, Ack, ADA) == [Ack(name(5))]
    assert said(desk.step(MessageReceived(ADA, Commit(view))), Ack, ADA) == [
        Ack(name(5))
    ]
    assert len(only(desk.log, InstallView)) == 1


def test_a_promise_is_kept() -> None:
    desk = Desk(BOB)
    follow(desk)
    desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
    for old in (Propose(name(4), (ADA, BOB)), Commit(View(name(4), (ADA,), (b"",)))):
        actions = desk.step(MessageReceived(ADA, old))
        assert said(actions, Refuse, ADA) == [Refuse(name(4), name(5))]
        assert not only(actions, FreezeView) + only(actions, InstallView)
    unasked = Commit(View(name(6), (ADA, BOB), (b"", b"")))
    assert not only(desk.step(MessageReceived(ADA, unasked)), InstallView)


def test_what_was_said_in_a_status_holds() -> None:
    desk = Desk(BOB)
    desk.step(SetPayload(b"first"))
    follow(desk)
    proposal = MessageReceived(ADA, Propose(name(5), (ADA, BOB)))
    desk.step(proposal)
    desk.step(SetPayload(b"second"))
    assert said(desk.step(proposal), Status, ADA) == [Status(name(5), b"first", 0)]


def test_only_the_leader_one_prefers_is_followed() -> None:
    desk = Desk(BOB)
    desk.meet(CYD)
    desk.beat(CYD, invites=(BOB,))
    assert desk.machine.prefers == BOB, "cyd is junior"
    assert not desk.step(MessageReceived(CYD, Propose(name(9, CYD), (BOB, CYD))))
    follow(desk)
    left_out = Propose(name(9), (ADA, CYD))
    assert not only(desk.step(MessageReceived(ADA, left_out)), FreezeView)


def test_a_refusal_makes_the_leader_count_beyond_it() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.beat(BOB, prefers=ADA)
    [proposal] = said(desk.wait(0.35), Propose, BOB)
    desk.step(MessageReceived(BOB, Refuse(proposal.id, name(41, CYD))))
    [again, *_] = said(desk.wait(0.35), Propose, BOB)
    assert again.id == name(42)


def test_a_promise_seen_in_a_report_makes_the_leader_start_again() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.beat(BOB, prefers=ADA)
    [proposal] = said(desk.wait(0.35), Propose, BOB)
    desk.step(MessageReceived(BOB, Status(proposal.id, b"", 0)))
    desk.beat(BOB, prefers=ADA, promised=name(30, CYD))
    [again] = said(desk.wait(0.35), Propose, BOB)
    assert again.id == name(31)


def test_a_frozen_node_waits_for_a_fresh_payload_but_not_for_ever() -> None:
    config = MembershipConfig(payload_wait_s=1.0)
    for is_late in (False, True):
        desk = Desk(BOB, config)
        desk.wait(1.5)
        desk.step(SetPayload(b"old"))
        follow(desk)
        asked = desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
        assert not said(asked, Status, ADA)
        assert not said(desk.wait(0.9), Status, ADA)
        actions = desk.wait(0.2) if is_late else desk.step(SetPayload(b"new"))
        data = b"old" if is_late else b"new"
        assert said(actions, Status, ADA) == [Status(name(5), data, 0)]


def test_a_refresh_makes_a_new_view_of_the_same_members() -> None:
    desk = Desk(ADA)
    desk.wait(1)
    desk.step(SetPayload(b"new"))
    assert not only(desk.wait(1), InstallView), (
        "a payload alone waits for the next view"
    )
    desk.step(RefreshView())
    [install] = only(desk.wait(1), InstallView)
    assert install.view.payloads == (b"new",)


def test_a_payload_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="limit"):
        Desk(ADA).step(SetPayload(bytes(MAX_PAYLOAD_BYTES + 1)))


def test_the_ring_order_is_the_callers() -> None:
    machine = MembershipMachine(
        BOB, order=lambda members, payloads: sorted(members)[::-1]
    )
    desk = Desk(BOB)
    desk.machine = machine
    desk.step(Tick())
    desk.meet(CYD)
    desk.beat(CYD, prefers=BOB)
    [proposal] = said(desk.wait(0.35), Propose, CYD)
    [install] = only(
        desk.step(MessageReceived(CYD, Status(proposal.id, b"", 0))), InstallView
    )
    assert install.view.members == (CYD, BOB)
    assert install.view.leader == BOB


def test_an_order_that_loses_a_member_is_refused() -> None:
    machine = MembershipMachine(ADA, order=lambda members, payloads: [])
    machine.step(Tick(), 0.0)
    with pytest.raises(ConfigError, match="permutation"):
        machine.step(Tick(), 0.4)


def lead_three(desk: Desk) -> None:
    """Ada leads bob and cyd."""
    for peer, other in ((BOB, CYD), (CYD, BOB)):
        desk.step(LinkUp(peer))
        desk.beat(peer, prefers=ADA, hears=(ADA, other))
    [proposal] = said(desk.wait(0.35), Propose, BOB)
    for peer in (BOB, CYD):
        desk.step(MessageReceived(peer, Status(proposal.id, b"", 0)))
        desk.step(MessageReceived(peer, Ack(proposal.id)))
    assert desk.machine.view is not None
    assert desk.machine.view.members == (ADA, BOB, CYD)


def test_two_members_that_lose_each_other_get_a_moment_before_the_junior_one_goes() -> (
    None
):
    desk = Desk(ADA)
    lead_three(desk)
    for _ in range(3):
        desk.beat(BOB, prefers=ADA, hears=(ADA,))
        desk.beat(CYD, prefers=ADA, hears=(ADA, BOB))
        assert not said(desk.wait(0.45), Propose, BOB)
    desk.beat(BOB, prefers=ADA, hears=(ADA,))
    desk.beat(CYD, prefers=ADA, hears=(ADA, BOB))
    [proposal, *_] = said(desk.wait(0.7), Propose, BOB)
    assert proposal.members == (ADA, BOB)


def test_a_suspect_that_a_member_no_longer_hears_goes_first_and_at_once() -> None:
    desk = Desk(ADA, MembershipConfig(dead_after_s=9.0, patience_s=0.5))
    lead_three(desk)
    for _ in range(4):  # bob, more senior than cyd, is silent
        desk.beat(CYD, prefers=ADA, hears=(ADA, BOB))
        desk.wait(0.4)
    assert desk.machine.health.suspect() == (BOB,)
    num_actions = len(desk.log)
    for _ in range(5):
        desk.beat(CYD, prefers=ADA, hears=(ADA,))
        desk.wait(0.4)
    proposals = said(desk.log[num_actions:], Propose, CYD)
    assert {p.members for p in proposals} == {(ADA, CYD)}
    assert not said(desk.log[num_actions:], Propose, BOB), "not even after patience"


def test_a_storm_of_changes_is_not_a_storm_of_heartbeats() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.wait(1)
    before = len(said(desk.log, Heartbeat, BOB))
    for _ in range(50):  # each of them changes whom ada would invite
        desk.beat(BOB, hears=())
        desk.wait(0.001)
        desk.beat(BOB, hears=(ADA,))
        desk.wait(0.001)
    assert len(said(desk.log, Heartbeat, BOB)) - before <= 4


# -- health ---------------------------------------------------------------------------


def test_silence_makes_a_peer_suspect_then_dead_then_forgotten() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    changes = only(desk.wait(70), HealthChanged)
    assert [(c.health, c.why) for c in changes] == [
        (Health.SUSPECT, "silent for 1.5 s"),
        (Health.DEAD, "silent for 3.5 s"),
    ]
    assert only(desk.log, PeerForgotten) == [PeerForgotten(BOB)]


def test_a_suspect_is_told_and_its_answer_clears_it() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    beats = said(desk.wait(2), Heartbeat, BOB)
    assert beats[-1].report.suspects == ((BOB, 0),)
    assert only(desk.beat(BOB), HealthChanged) == [
        HealthChanged(BOB, Health.HEALTHY, "heard")
    ]


def test_a_node_that_is_suspected_answers_at_once_and_once() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.wait(0.2)
    [beat] = said(desk.suspect(BOB, 0), Heartbeat, BOB)
    assert beat.refutation == 1
    desk.beat(BOB)
    desk.wait(0.2)
    assert not said(desk.suspect(BOB, 0), Heartbeat, BOB)
    [beat] = said(desk.suspect(BOB, 1), Heartbeat, BOB)
    assert beat.refutation == 2


def test_a_broken_link_makes_suspect_and_a_new_one_saves() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    [change] = only(desk.step(LinkDown(BOB, gone=False)), HealthChanged)
    assert change.health is Health.SUSPECT
    desk.wait(1.4)
    desk.step(LinkUp(BOB))
    desk.beat(BOB)
    assert not only(desk.wait(1.4), HealthChanged)
    desk.step(LinkDown(BOB, gone=False))
    [change] = only(desk.wait(1.6), HealthChanged)
    assert change == HealthChanged(BOB, Health.DEAD, "no new link for 1.5 s")


@pytest.mark.parametrize(
    "event", [LinkDown(BOB, gone=True), MessageReceived(BOB, Goodbye())]
)
def test_a_peer_that_is_known_to_be_gone_is_dead_at_once(event: Event) -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    [change] = only(desk.step(event), HealthChanged)
    assert change.health is Health.DEAD
    late = Heartbeat(9, 1, 0, 0, 0, desk_report())
    assert not desk.step(MessageReceived(BOB, late)), (
        "what comes after the end is too late"
    )


def test_a_link_of_a_peer_that_said_goodbye_comes_too_late() -> None:
    """Both sides dial at once; the second link may open after the goodbye."""
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.step(MessageReceived(BOB, Goodbye()))
    assert desk.step(LinkUp(BOB)) == [PeerForgotten(BOB)]
    desk.step(LinkDown(BOB, gone=True))
    assert desk.machine.health.summary().total == 0, "nobody is mourned"
    desk.meet(BOB_AGAIN)
    assert desk.machine.health.summary().healthy == 1, "its next life is welcome"


def desk_report() -> Report:
    return Report(NO_VIEW, NO_VIEW, 0, BOB, (ADA,), (), (), (), 0)


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_a_node_that_slept_blames_nobody(is_heard_first: bool) -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.meet(CYD)
    desk.wait(0.2)
    desk.now_s += 60
    if is_heard_first:  # what waited in the socket: many events, but one sleep
        for _ in range(10):
            desk.beat(BOB, hears=(ADA, CYD))
            desk.beat(BOB)
    assert not only(desk.step(Tick()), HealthChanged)
    changes = only(desk.wait(3.6), HealthChanged)
    dead = [c.peer for c in changes if c.health is Health.DEAD]
    assert sorted(dead) == [BOB, CYD], "and still notices who is gone"


def test_an_old_or_doubled_heartbeat_changes_nothing() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    new = Heartbeat(8, 1, 0, 0, 0, desk_report())
    desk.step(MessageReceived(BOB, new))
    old_report = Report(NO_VIEW, NO_VIEW, 0, BOB, (), (), (), (), 0)
    assert not desk.step(MessageReceived(BOB, Heartbeat(7, 1, 0, 0, 0, old_report)))
    before = desk.machine.health.of(BOB)
    assert not desk.step(MessageReceived(BOB, new))
    assert desk.machine.health.of(BOB) == before


def test_a_stranger_is_not_listened_to() -> None:
    desk = Desk(ADA)
    assert not desk.beat(BOB)
    assert desk.machine.health.summary().total == 0


def test_round_trips_make_an_average_in_which_the_newest_counts_a_fifth() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    for round_trip_s in (0.010, 0.020, 0.020):
        desk.beat(BOB, echo_s=desk.now_s - round_trip_s)
    record = desk.machine.health.of(BOB)
    assert record is not None
    assert record.latency_last_s == pytest.approx(0.020, abs=2e-6)
    expected_s = 0.2 * 0.020 + 0.8 * (0.2 * 0.020 + 0.8 * 0.010)
    assert record.latency_avg_s == pytest.approx(expected_s, abs=2e-6)
    for nonsense_s in (desk.now_s + 5, desk.now_s - 50):
        desk.beat(BOB, echo_s=nonsense_s)
    record = desk.machine.health.of(BOB)
    assert record is not None
    assert record.latency_avg_s == pytest.approx(expected_s, abs=2e-6)


def test_the_record_counts_what_came_and_what_did_not() -> None:
    desk = Desk(ADA)
    desk.step(LinkUp(BOB))
    record = desk.machine.health.of(BOB)
    assert record is not None
    assert (record.num_heard, record.last_heard_s) == (0, None)
    for _ in range(6):
        desk.beat(BOB)
        desk.wait(0.5)
    desk.wait(1.0)
    record = desk.machine.health.of(BOB)
    assert record is not None
    assert record.num_heard == 6
    assert record.num_missed == record.num_missed_in_row > 0
    desk.beat(BOB)
    record = desk.machine.health.of(BOB)
    assert record is not None
    assert record.num_missed_in_row == 0


def test_the_summary_and_its_questions() -> None:
    desk = Desk(member("q", 0))
    book = desk.machine.health
    assert (book.health_percentage(), book.is_cluster_healthy()) == (100.0, True)
    for peer in (ADA, BOB, CYD):
        desk.meet(peer)
    desk.step(LinkUp(member("d", 4)))
    desk.step(LinkDown(BOB, gone=False))
    desk.step(LinkDown(CYD, gone=True))
    book = desk.machine.health
    assert (book.healthy(), book.suspect(), book.dead()) == ((ADA,), (BOB,), (CYD,))
    summary = book.summary()
    assert (summary.total, summary.healthy, summary.suspect) == (4, 1, 1)
    assert (summary.dead, summary.unknown) == (1, 1)
    assert book.health_percentage() == 25.0
    assert not book.is_cluster_healthy()


# -- lives ----------------------------------------------------------------------------


BOB_AGAIN = member("b", 9, life=7)


def test_a_restart_supersedes_the_old_life_whose_link_broke() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.step(LinkDown(BOB, gone=False))
    actions = desk.step(LinkUp(BOB_AGAIN))
    assert only(actions, PeerForgotten) == [PeerForgotten(BOB)]
    desk.beat(BOB_AGAIN)
    assert desk.machine.health.healthy() == (BOB_AGAIN,)


@pytest.mark.parametrize("notice", [True, False])
def test_a_restart_is_not_taken_for_a_copy_however_late_the_old_life_speaks(
    notice: bool,
) -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    before_s = desk.now_s
    desk.wait(0.4)
    desk.step(LinkUp(BOB_AGAIN))
    desk.wait(0.3)
    desk.beat(BOB, echo_s=before_s)  # sent before it died
    desk.beat(BOB_AGAIN)
    if notice:
        desk.step(LinkDown(BOB, gone=False))
    else:
        desk.wait(1.3)
    desk.beat(BOB_AGAIN)
    assert not only(desk.log, KeyCloned)
    assert desk.machine.health.healthy() == (BOB_AGAIN,)


def test_a_copied_key_is_proven_by_an_answer_to_a_new_stamp() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.wait(0.4)
    asked = desk.step(LinkUp(BOB_AGAIN))
    [question] = said(asked, Heartbeat, BOB)
    desk.now_s += 0.01
    actions = desk.beat(BOB, echo_s=question.sent_us * 1e-6 + 1e-6)
    assert only(actions, KeyCloned) == [KeyCloned(kept=BOB, refused=BOB_AGAIN)]
    desk.beat(BOB_AGAIN)
    assert desk.machine.health.healthy() == (BOB,)
    [*_, told] = said(desk.wait(0.5), Heartbeat, BOB_AGAIN)
    assert told.report.clones == ((BOB, BOB_AGAIN),)
    assert told.report.hears == (BOB,)


def test_the_copy_that_started_first_is_kept() -> None:
    older = member("b", 0, life=3)
    desk = Desk(ADA)
    desk.meet(BOB)
    desk.step(LinkUp(older))
    desk.now_s += 0.01
    actions = desk.beat(BOB, echo_s=desk.now_s)
    assert only(actions, KeyCloned) == [KeyCloned(kept=older, refused=BOB)]
    desk.beat(older)
    assert desk.machine.health.healthy() == (older,)
    desk.step(LinkDown(older, gone=True))
    assert desk.machine.health.healthy() == (BOB,), "alone again, it is no copy"


def test_a_node_that_meets_its_own_key_says_so() -> None:
    desk = Desk(BOB)
    actions = desk.step(LinkUp(BOB_AGAIN))
    assert only(actions, KeyCloned) == [KeyCloned(kept=BOB, refused=BOB_AGAIN)]
    desk.beat(BOB_AGAIN)
    assert desk.machine.health.healthy() == ()


def test_a_refused_copy_learns_it_from_the_others() -> None:
    desk = Desk(BOB_AGAIN)
    desk.step(LinkUp(ADA))
    report = Report(NO_VIEW, NO_VIEW, 0, ADA, (BOB,), (), (), ((BOB, BOB_AGAIN),), 0)
    actions = desk.step(MessageReceived(ADA, Heartbeat(1, 1, 0, 0, 0, report)))
    assert only(actions, KeyCloned) == [KeyCloned(kept=BOB, refused=BOB_AGAIN)]


def test_one_who_leaves_says_goodbye_and_nothing_more() -> None:
    desk = Desk(ADA)
    desk.meet(BOB)
    assert desk.step(LeaveCluster()) == [Send(BOB, Goodbye())]
    assert not desk.beat(BOB)
    assert not desk.step(Tick())


# -- configuration --------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"heartbeat_s": 0.0},
        {"suspect_after_s": 0.4},
        {"dead_after_s": 1.0},
        {"lost_after_s": 9.0},
        {"lost_after_s": 0.0},
        {"debounce_s": 5.0},
        {"retry_s": 0.0},
        {"forget_after_s": 0.0},
        {"payload_wait_s": -1.0},
        {"payload_wait_s": 10.0},
    ],
)
def test_times_that_contradict_each_other_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="membership"):
        MembershipConfig(**bad)


def test_profiles_are_ordered_by_patience() -> None:
    config = MembershipConfig
    profiles = [config.for_loopback(), config.for_lan(), config.for_wifi()]
    profiles.append(config.for_wan())
    for quick, slow in pairwise(profiles):
        for field in ("heartbeat_s", "suspect_after_s", "dead_after_s", "patience_s"):
            assert getattr(quick, field) < getattr(slow, field)
    assert config() == config.for_lan()
    assert replace(config(), dead_after_s=9.0).dead_after_s == 9.0


def test_the_seeds_presets_are_there() -> None:
    low, high = MembershipConfig.low_latency(), MembershipConfig.high_latency()
    assert (low.heartbeat_s, low.suspect_after_s) == (0.5, 2.0)
    assert (high.heartbeat_s, high.suspect_after_s) == (10.0, 30.0)
