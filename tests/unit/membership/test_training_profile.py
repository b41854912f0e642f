"""What the membership of a training run does that the one of agents does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.membership.config import MembershipConfig
from ringleader.membership.events import (
    RESTARTED,
    FreezeView,
    Health,
    HealthChanged,
    InstallView,
    LinkDown,
    LinkUp,
    MachineSlept,
    MessageReceived,
    RefreshView,
    SetPayload,
    SuspectPeer,
)
from ringleader.membership.member import Member, View
from ringleader.membership.messages import Commit, Goodbye, Heartbeat, Propose, Status
from ringleader.membership.probation import Probation
from tests.unit.membership.test_state_machine import (
    ADA,
    BOB,
    BOB_AGAIN,
    CYD,
    Desk,
    follow,
    name,
    only,
    said,
)

TRAINING = MembershipConfig.for_training()


def lead(desk: Desk, *others: Member) -> View:
    """Bring ada's machine to lead a view of herself and ``others``."""
    everybody = (ADA, *others)
    for peer in others:
        desk.meet(peer)
    for peer in others:
        hears = tuple(m for m in everybody if m != peer)
        desk.beat(peer, prefers=ADA, hears=hears)
    actions = desk.wait(0.35)
    [freeze] = only(actions, FreezeView)
    for peer in others:
        assert said(actions, Propose, peer)
        desk.step(MessageReceived(peer, Status(freeze.id, b"", 0)))
    desk.step(SetPayload(b"ours", freeze.id))
    view = desk.machine.view
    assert view is not None
    assert view.members == everybody
    return view


def invites(desk: Desk) -> list[Member]:
    return list(desk.machine._proposer.invites)


def test_a_status_is_never_older_than_the_freeze() -> None:
    desk = Desk(BOB, TRAINING)
    desk.step(SetPayload(b"stale"))
    follow(desk)
    actions = desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
    assert only(actions, FreezeView) == [FreezeView(name(5), ADA, (ADA, BOB))]
    desk.beat(ADA, invites=(BOB,))
    assert not said(desk.wait(3.0), Status, ADA), "it waits for as long as it takes"
    assert not said(desk.step(SetPayload(b"stale")), Status, ADA)
    assert not said(desk.step(SetPayload(b"other", name(4))), Status, ADA)
    asked_again = MessageReceived(ADA, Propose(name(5), (ADA, BOB)))
    assert not said(desk.step(asked_again), Status, ADA)
    actions = desk.step(SetPayload(b"fresh", name(5)))
    assert said(actions, Status, ADA) == [Status(name(5), b"fresh", 0)]


def test_an_answer_to_an_older_proposal_is_ignored() -> None:
    desk = Desk(BOB, TRAINING)
    follow(desk)
    desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
    desk.step(MessageReceived(ADA, Propose(name(6), (ADA, BOB))))
    assert not said(desk.step(SetPayload(b"late", name(5))), Status, ADA)
    actions = desk.step(SetPayload(b"fresh", name(6)))
    assert said(actions, Status, ADA) == [Status(name(6), b"fresh", 0)]


def test_a_proven_end_leads_to_a_proposal_within_milliseconds() -> None:
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB, CYD)
    desk.beat(CYD, prefers=ADA, hears=(ADA, BOB), promised=name(1))
    desk.now_s += 0.01
    actions = desk.step(LinkDown(CYD, gone=True))
    [gone] = only(actions, HealthChanged)
    assert (gone.peer, gone.why, gone.is_proven) == (CYD, "its process ended", True)
    assert gone.promised == name(1), "its last heartbeat told what it had promised"
    assert said(actions, Heartbeat, BOB), "the others hear of it at once"
    desk.beat(BOB, prefers=ADA, hears=(ADA,))
    [proposal] = said(desk.wait(0.01), Propose, BOB)
    assert proposal.members == (ADA, BOB)


def test_a_join_takes_longer_than_a_loss() -> None:
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB)
    desk.meet(CYD)
    desk.beat(BOB, prefers=ADA, hears=(ADA, CYD))
    desk.beat(CYD, prefers=ADA, hears=(ADA, BOB))
    assert not said(desk.wait(0.25), Propose, CYD)
    [proposal, *_] = said(desk.wait(0.1), Propose, CYD)
    assert proposal.members == (ADA, BOB, CYD)


def test_a_refresh_makes_a_view_within_milliseconds() -> None:
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB)
    desk.step(RefreshView())
    [proposal] = said(desk.wait(0.01), Propose, BOB)
    assert proposal.members == (ADA, BOB)


def test_a_goodbye_is_a_proof_and_silence_is_none() -> None:
    desk = Desk(ADA, TRAINING)
    desk.meet(BOB)
    desk.meet(CYD)
    [gone] = only(desk.step(MessageReceived(BOB, Goodbye())), HealthChanged)
    assert gone.is_proven
    changes = only(desk.wait(4.0), HealthChanged)
    assert [c.health for c in changes] == [Health.SUSPECT, Health.DEAD]
    assert not any(c.is_proven for c in changes)


@pytest.mark.parametrize("is_first_cut_off", [True, False])
def test_a_second_life_does_not_prove_the_end_of_the_first(
    is_first_cut_off: bool,
) -> None:
    """The first may be stopped, and go on with the history of the run when it wakes."""
    desk = Desk(ADA, TRAINING)
    desk.meet(BOB)
    if is_first_cut_off:
        desk.step(LinkDown(BOB, gone=False))
        actions = desk.step(LinkUp(BOB_AGAIN))
    else:
        desk.step(LinkUp(BOB_AGAIN))
        actions = desk.step(LinkDown(BOB, gone=False))
    [gone] = only(actions, HealthChanged)
    assert (gone.peer, gone.health, gone.why) == (BOB, Health.DEAD, RESTARTED)
    assert (gone.is_proven, gone.promised) == (False, None)


def test_the_last_promise_of_a_silent_member_is_not_known() -> None:
    """It may have promised a view to others meanwhile, which the lineage must know."""
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB, CYD)
    desk.wait(1.5)
    changes = only(desk.step(LinkDown(CYD, gone=True)), HealthChanged)
    assert [(c.is_proven, c.promised) for c in changes] == [(True, None)]


def test_what_a_member_promised_before_this_one_was_suspended_is_old() -> None:
    """This node does not blame it for the silence, but others may have heard more."""
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB, CYD)
    desk.beat(CYD, prefers=ADA, hears=(ADA, BOB), promised=name(1))
    desk.now_s += 60.0  # no event: SIGSTOP
    changes = only(desk.step(LinkDown(CYD, gone=True)), HealthChanged)
    assert [(c.is_proven, c.promised) for c in changes] == [(True, None)]


def test_what_a_member_promised_before_this_machine_slept_is_old() -> None:
    """The monotonic clock stands still in the sleep of a machine."""
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB, CYD)
    desk.beat(CYD, prefers=ADA, hears=(ADA, BOB), promised=name(1))
    desk.step(MachineSlept())
    desk.step(LinkDown(CYD, gone=False))
    changes = only(desk.step(LinkDown(CYD, gone=True)), HealthChanged)
    assert [(c.is_proven, c.promised) for c in changes] == [(True, None)]


def test_a_promise_is_told_to_all_before_the_status_is_made() -> None:
    """A process that ends after its status has helped to form a view. Those outside it
    must not take its last promise for an older one."""
    desk = Desk(BOB, TRAINING)
    follow(desk)
    desk.meet(CYD)
    for counter in (5, 6):  # the second within the shortest time between two reports
        actions = desk.step(MessageReceived(ADA, Propose(name(counter), (ADA, BOB))))
        kinds = [type(action) for action in actions]
        [beat] = said(actions[: kinds.index(FreezeView)], Heartbeat, CYD)
        assert beat.report.promised == name(counter)


def test_a_suspicion_of_the_caller_asks_the_peer_at_once() -> None:
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB)
    desk.now_s += 0.01
    actions = desk.step(SuspectPeer(BOB, "its data link broke"))
    [beat] = said(actions, Heartbeat, BOB)
    assert [who for who, _ in beat.report.suspects] == [BOB]
    assert only(actions, HealthChanged) == [
        HealthChanged(BOB, Health.SUSPECT, "its data link broke")
    ]
    [change] = only(desk.beat(BOB, prefers=ADA), HealthChanged)
    assert change.health is Health.HEALTHY
    assert not only(desk.wait(0.9), FreezeView), "it stays a member"


def test_a_peer_that_was_silent_waits_before_it_is_a_member_again() -> None:
    desk = Desk(ADA, TRAINING)
    lead(desk, BOB)
    [*_, freeze] = only(desk.wait(3.5), FreezeView)
    assert freeze.members == (ADA,)
    desk.step(SetPayload(b"", freeze.id))
    desk.beat(BOB, prefers=ADA)
    assert invites(desk) == []
    desk.wait(0.5)
    desk.beat(BOB, prefers=ADA)
    assert invites(desk) == []
    desk.wait(0.6)
    assert invites(desk) == [BOB]


def test_probation_doubles_and_is_forgotten() -> None:
    probation = Probation(1.0)
    assert probation.until_s(BOB.node) < 0
    for now_s, wait_s in ((100.0, 1.0), (110.0, 2.0), (120.0, 4.0), (900.0, 1.0)):
        probation.note(BOB.node, now_s)
        assert probation.until_s(BOB.node) == now_s + wait_s
    for _ in range(30):
        probation.note(CYD.node, 5.0)
    assert probation.until_s(CYD.node) == 5.0 + 64.0


def test_a_barred_leader_is_not_followed() -> None:
    desk = Desk(BOB, TRAINING)
    follow(desk)
    desk.wait(4.0)
    desk.beat(ADA, invites=(BOB,))
    assert desk.machine.prefers == BOB
    desk.wait(0.9)
    desk.beat(ADA, invites=(BOB,))
    desk.wait(0.2)
    assert desk.machine.prefers == ADA


def test_a_view_that_is_installed_ends_the_question() -> None:
    desk = Desk(BOB, TRAINING)
    follow(desk)
    desk.step(MessageReceived(ADA, Propose(name(5), (ADA, BOB))))
    desk.step(SetPayload(b"one", name(5)))
    view = View(name(5), (ADA, BOB), (b"", b"one"))
    actions = desk.step(MessageReceived(ADA, Commit(view)))
    assert only(actions, InstallView) == [InstallView(view)]
    assert not said(desk.step(SetPayload(b"two", name(5))), Status, ADA)


@pytest.mark.parametrize(
    "bad",
    [
        {"loss_debounce_s": 9.0},
        {"loss_debounce_s": 0.0},
        {"probation_s": -1.0},
        {"report_gap_s": 0.0},
    ],
)
def test_times_of_training_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="membership"):
        replace(TRAINING, **bad)
