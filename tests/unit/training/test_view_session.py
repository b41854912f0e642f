"""Freeze, install and delivery seen by two threads, without any network."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, Expelled
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member, View, ViewId
from ringleader.membership.steps.status import decode_status
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.training import next_view
from ringleader.training.connect import connect
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.work_watch import WorkWatch
from ringleader.training.installed_view import InstalledView
from ringleader.training.member_data import MemberData, layout_difference
from ringleader.training.view_session import ViewSession, planned_wait_s
from ringleader.transport.shared_listener import ListenerLease

ME, OTHER = (
    Member(i, NodeId(letter * 52), Incarnation(str(i) * 16))
    for i, letter in ((1, "a"), (2, "b"))
)


class Control:
    """The control thread's side, called by hand."""

    def __init__(self) -> None:
        self.me = ME
        self.work_watch = WorkWatch()
        self.peers: RunPeers | None = None
        self.has_source = False
        self.answers: list[tuple[ViewId, bytes]] = []
        self.session = ViewSession(
            MemberData(), cast("ListenerLease", None), "continue"
        )
        self.session.bind(self)

    def answer(self, view_id: ViewId, status: bytes) -> None:
        self.answers.append((view_id, status))

    def refresh(self) -> None:
        raise AssertionError("nobody asks for a view here")

    def suspect(self, member: Member, why: str) -> None:
        raise AssertionError("nobody is suspected here")

    def close(self) -> None:
        raise AssertionError("nobody leaves here")

    def freeze(self, counter: int, *members: Member) -> ViewId:
        view_id = ViewId(counter, ME.node, ME.incarnation)
        self.session.freeze(view_id, members or (ME,))
        return view_id

    def change(self, counter: int) -> InstalledView:
        """Freeze for a view of this member alone, and install it."""
        view_id = self.freeze(counter)
        payload = self.answers[-1][1]
        self.session.install(View(view_id, (ME,), (payload,)))
        found = self.session.current()
        assert found is not None
        return found


def hold_result(control: Control) -> None:
    """Make this member hold the whole next result."""
    with control.session.lock:
        attempt = control.session.step.next_attempt
    assert control.session.begin(attempt, 2)
    for bit in range(2):
        control.session.bucket_done(attempt, bit)


def test_a_result_is_delivered_in_its_own_view_only() -> None:
    control = Control()
    first = control.change(1)
    hold_result(control)
    control.freeze(2)
    assert not control.session.deliver(first, 5, is_kept=True), "a view is promised"
    second = control.change(3)
    assert not control.session.deliver(first, 5, is_kept=True), "it is even installed"
    assert control.session.step.version == 0
    assert second.plan.version == 1, "the new view completes what was held"


def test_a_join_waits_until_the_quanta_of_a_step_are_computed() -> None:
    control = Control()
    entered = control.change(1)
    hold_result(control)
    members = entered.view.members
    entered.view = View(entered.view.id, (*members, OTHER), (b"", b""))
    control.session.is_stepping = True

    async def join() -> None:
        control.freeze(2, ME, OTHER, Member(3, NodeId("c" * 52), Incarnation("3" * 16)))
        assert len(control.answers) == 1, "a join waits for the running step"
        assert control.session.deliver(entered, 5, is_kept=True)
        assert len(control.answers) == 1, "and while the next one is computed"
        with control.session.lock:
            control.session.step.assign((0, 2))
        control.session.freeze_planned()

    asyncio.run(join())
    status = decode_status(control.answers[-1][1], ME)
    assert (status.version, status.samples, len(control.answers)) == (1, 5, 2)
    assert status.quanta == (0, 2), "what was computed counts in the view with it"
    control.session.freeze_planned()
    assert len(control.answers) == 2, "nothing waits any more"


def test_waiting_ends_with_the_deadline_or_the_error_of_the_control_thread() -> None:
    session = Control().session
    with pytest.raises(DeadlineExceeded, match="no view"):
        session.wait_view(lambda _: True, Deadline.after(0.01))
    session.failed(Expelled("slept"))
    with pytest.raises(Expelled, match="slept"):
        session.wait_view(lambda _: True, Deadline.after(60))


def test_a_joiner_begins_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that came back after the others had finished trained all again."""
    monkeypatch.setattr(next_view, "JOIN_S", 0.5)
    monkeypatch.setattr(next_view, "MEET_S", 0.5)
    control = Control()
    control.has_source = True
    control.change(1)
    with pytest.raises(DeadlineExceeded, match="no member of the run answered"):
        next_view.wait_for_others(control.session)  # the agent says nothing
    control.peers = RunPeers(expected=1, is_joiner=True)
    with pytest.raises(DeadlineExceeded, match="no member of the run answered"):
        next_view.wait_for_others(control.session)
    control.peers = RunPeers(expected=1, is_joiner=True, is_over=True)
    assert not next_view.wait_for_others(control.session)
    control.peers = RunPeers(expected=2)
    assert next_view.wait_for_others(control.session), "a first one goes ahead"


def test_the_first_difference_of_two_layouts_is_named() -> None:
    mine, theirs = (MemberData(layout={"seed": n, "epochs": "1"}) for n in "12")
    assert layout_difference(mine, mine) == ""
    assert layout_difference(mine, theirs) == "seed (1 here, 2 there)"


def test_a_join_waits_for_the_running_step_as_long_as_steps_take() -> None:
    assert planned_wait_s(0.0) == 1.0
    assert planned_wait_s(2.0) == 3.0
    assert planned_wait_s(600.0) < 10.0, "the control thread wants an answer by then"


def test_a_transport_through_rank_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may be lost like any other."""
    monkeypatch.setenv("RINGLEADER_TRANSPORT", "grpc")
    with pytest.raises(ConfigError, match=r"transport 'grpc'.*use auto or tcp"):
        connect(cast("RunConfig", None), MemberData(), "continue")


def test_every_status_tells_where_this_process_is_reached_by_then() -> None:
    """A laptop changes its address without leaving the run."""
    control, told = Control(), [b"at home", b"in a cafe"]
    control.session.read_endpoint = lambda: told.pop(0)
    for counter, place in ((1, b"at home"), (2, b"in a cafe")):
        found = control.change(counter)
        assert found.data_of(ME).endpoint == place
