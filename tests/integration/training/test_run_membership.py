"""The control thread of a run: who is refused, and what its end looks like."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ringleader.errors import (
    ConfigError,
    Expelled,
    InternalError,
    PeerUnreachable,
    RingleaderError,
)
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.membership.member import Member, View, ViewId
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.training.control import control_loop, work_watch
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.run_membership import RunMembership
from ringleader.training.join import dial_sources as dialing
from ringleader.training.join.dial_sources import dial_sources
from ringleader.transport.free_ports import free_ports

OURS = ClusterSecret(root=Secret(os.urandom(32)))
THEIRS = ClusterSecret(root=Secret(os.urandom(32)))
WITHIN_S = 90.0


class Hooks:
    """Answers every freeze, and records what is called."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.membership: RunMembership | None = None
        self.is_answering = True
        self.trouble: Exception | None = None

    def freeze(self, view_id: ViewId, members: tuple[Member, ...]) -> None:
        self.calls.put(("freeze", members))
        if self.trouble is not None:
            raise self.trouble
        assert self.membership is not None
        if self.is_answering:
            self.membership.answer(view_id, b"status")

    def install(self, view: View) -> None:
        self.calls.put(("install", view))

    def ended(self, member: Member, promised: ViewId | None) -> None:
        self.calls.put(("ended", member))

    def expelled(self, why: str) -> None:
        self.calls.put(("expelled", why))

    def failed(self, error: RingleaderError) -> None:
        self.calls.put(("failed", error))

    def wait(self, name: str, is_it: Callable[[Any], bool] = lambda _: True) -> Any:  # noqa: ANN401 - what the hook was given
        """Return the argument of the next call of this hook that ``is_it`` accepts."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            found = self.calls.get(timeout=max(0.0, until_s - time.monotonic()))
            if found[0] == name and is_it(found[1]):
                return found[1]

    def wait_for_size(self, size: int) -> View:
        view: View = self.wait("install", lambda v: len(v.members) == size)
        return view


@contextmanager
def member(  # noqa: PLR0913 - each test sets one or two
    peer: RunMembership | None = None,
    *,
    run: str = "run",
    cluster: ClusterSecret = OURS,
    key: NodeKey | None = None,
    port: int | range = 0,
    read_suspended_s: Callable[[], float] = lambda: 0.0,
    is_held: bool = False,
) -> Iterator[tuple[RunMembership, Hooks]]:
    credentials = Credentials.issue(cluster, key or NodeKey.ephemeral())
    peers = "" if peer is None else f"127.0.0.1:{peer.port}"
    config = RunConfig(
        run=run,
        credentials=credentials,
        peers=peers,
        port=port,
        read_suspended_s=read_suspended_s,
    )
    hooks = Hooks()
    made = hooks.membership = RunMembership(config, hooks)
    made.start(is_held=is_held)
    try:
        yield made, hooks
    finally:
        made.close()


def trouble_of(one: RunMembership) -> str:
    """Wait until a dial has failed and return why."""
    until_s = time.monotonic() + WITHIN_S
    while not one.troubles():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return " ".join(one.troubles().values())


def test_strangers_and_members_of_other_runs_stay_outside() -> None:
    with (
        member() as (first, hooks),
        member(first, run="other") as (other, _),
        member(first, cluster=THEIRS) as (stranger, _),
    ):
        text = trouble_of(other)
        assert f"is in run run@{first.config.id[4:]}" in text
        assert "and you are in other@" in text
        assert "cluster" in trouble_of(stranger)
        with member(first) as (second, _):
            view = hooks.wait_for_size(2)
            assert view.members == (first.me, second.me)
        assert hooks.wait("ended") == second.me, "it said goodbye"
        hooks.wait_for_size(1)
    assert not [m for m in hooks_seen(hooks) if m not in (first.me, second.me)]


def hooks_seen(hooks: Hooks) -> list[Member]:
    views = [v for name, v in list(hooks.calls.queue) if name == "install"]
    return [m for view in views for m in view.members]


def test_a_second_process_of_one_node_is_told_so() -> None:
    key = NodeKey.ephemeral()
    with member(key=key) as (first, hooks):
        hooks.wait_for_size(1)
        with member(first, key=key) as (second, others):
            error = others.wait("failed")
            assert isinstance(error, ConfigError)
            assert "start one per machine" in str(error)
            with pytest.raises(ConfigError, match="already"):
                second.refresh()
        first.refresh()
        hooks.wait_for_size(1)


def test_a_failing_hook_ends_the_thread_and_every_call_says_why() -> None:
    with member() as (first, hooks), member(first) as (_, others):
        hooks.wait_for_size(2)
        hooks.trouble = ValueError("a bug")
        first.refresh()
        error = hooks.wait("failed")
        assert isinstance(error, InternalError)
        assert "ValueError('a bug')" in str(error)
        for call in (first.refresh, first.check):
            with pytest.raises(InternalError, match="a bug"):
                call()
        others.wait_for_size(1)


def test_a_freeze_without_an_answer_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_loop, "ANSWER_S", 2.0)
    with member() as (first, hooks), member(first) as (_, others):
        hooks.wait_for_size(2)
        others.wait_for_size(2)
        hooks.is_answering = False  # of the leader
        first.refresh()
        assert "no status for view" in str(hooks.wait("failed"))
        others.wait_for_size(1)


def test_a_process_that_is_stopped_before_it_answers_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is due when it goes on, and is given as soon as it does."""
    monkeypatch.setattr(control_loop, "ANSWER_S", 0.5)
    with member() as (first, hooks), member(first) as (second, others):
        hooks.wait_for_size(2)
        before = others.wait_for_size(2)
        answer = first.answer

        def stop_then_answer(view_id: ViewId, status: bytes) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, time.sleep, 1.0)
            loop.call_later(0.1, answer, view_id, status)

        first.answer = stop_then_answer  # type: ignore[method-assign]
        first.refresh()
        hooks.wait("install", lambda view: view.id > before.id)
        first.answer = answer  # type: ignore[method-assign]
        first.refresh()
        while (view := others.wait("install")).id.counter < before.id.counter + 2:
            pass
        assert view.members == (first.me, second.me)


def test_a_machine_that_slept_drops_its_links_and_comes_back() -> None:
    slept = [0.0]
    with (
        member() as (first, hooks),
        member(first, read_suspended_s=lambda: slept[0]) as (second, others),
    ):
        before = others.wait_for_size(2)
        slept[0] = 60.0
        assert "asleep for 60 s" in others.wait("expelled")
        after = others.wait_for_size(2)
        assert after.id > before.id
        assert after.members == (first.me, second.me), "the same life of the node"
        hooks.wait("install", lambda view: view == after)


def test_a_hung_program_leaves_and_shows_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work_watch, "LEAST_S", 0.2)
    monkeypatch.setattr(work_watch, "WATCH_EVERY_S", 0.1)
    with member() as (first, hooks), member(first) as (_, others):
        others.wait_for_size(2)
        first.work_watch.begin(expected_s=0.0)
        first.work_watch.end()
        first.work_watch.begin(expected_s=0.01)
        error = hooks.wait("failed")
        assert isinstance(error, Expelled)
        assert "has not finished a quantum for" in str(error)
        others.wait_for_size(1)
    assert "test_run_membership.py" in capfd.readouterr().err


def test_a_suspicion_of_a_live_member_changes_nothing() -> None:
    with member() as (first, hooks), member(first) as (second, others):
        hooks.wait_for_size(2)
        others.wait_for_size(2)
        first.suspect(second.me, "its data link broke")
        with pytest.raises(queue.Empty):
            others.calls.get(timeout=0.5)
        second.refresh()
        hooks.wait_for_size(2)


def test_a_member_listens_in_the_range_of_ports_that_it_is_given() -> None:
    first = free_ports(1)[0]
    ports = range(first, first + 3)
    with member(port=first) as (holder, _), member(port=ports) as (other, _):
        assert holder.port == first
        assert other.port in ports[1:]


def test_leaving_is_final_and_needs_no_peer() -> None:
    with member() as (first, hooks):
        hooks.wait_for_size(1)
        first.close()
        assert not [t for t in threading.enumerate() if "ringleader-control" in t.name]
        with pytest.raises(Expelled, match="not in run"):
            first.refresh()
        first.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_forked_child_does_not_keep_the_links_open() -> None:
    with member() as (first, hooks), member(first) as (_, others):
        hooks.wait_for_size(2)
        others.wait_for_size(2)
        listening = os.fstat(first._sock.fileno()).st_ino  # type: ignore[union-attr]
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            kept = [n for n in os.listdir("/proc/self/fd") if _is(n, listening)]
            sockets = [n for n in os.listdir("/proc/self/fd") if _is_tcp(int(n))]
            os.write(write, f"{len(kept)} {len(sockets)}".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"0 0"
        os.close(read)
        os.close(write)


def _is(number: str, inode: int) -> bool:
    try:
        return os.fstat(int(number)).st_ino == inode
    except OSError:
        return False


def _is_tcp(number: int) -> bool:
    try:
        name = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return False
    ours = {line.split()[9] for line in _tcp_lines()}
    return name.startswith("socket:[") and name[8:-1] in ours


def _tcp_lines() -> list[str]:
    found = []
    for file in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(file) as lines:
            found += list(lines)[1:]
    return found


@pytest.mark.parametrize("name", ["", "x" * 201, "two\nlines"])
def test_a_run_has_a_printable_name(name: str) -> None:
    credentials = Credentials.issue(OURS, NodeKey.ephemeral())
    with pytest.raises(ConfigError, match="name of a run"):
        RunConfig(run=name, credentials=credentials)


def test_a_held_process_meets_members_for_their_state_before_it_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: queue.Queue[PeerConnection] = queue.Queue()

    async def serve(connection: PeerConnection) -> None:
        served.put(connection)
        connection.writer.write(b"state")
        connection.close()

    async def ask(learner: RunMembership, port: int) -> bytes:
        (source,) = await dial_sources(learner, [[("127.0.0.1", port)]])
        data = await source.reader.read(5)
        source.abort()
        await asyncio.sleep(0.05)  # until its socket is closed
        return data

    with (
        member() as (first, hooks),
        member(first, is_held=True) as (learner, _),
        member(first, run="other", is_held=True) as (stranger, _),
    ):
        first.serve_state(serve)
        assert asyncio.run(ask(learner, first.port)) == b"state"
        assert served.get(timeout=WITHIN_S).node == learner.me.node
        monkeypatch.setattr(dialing, "MEET_S", 0.5)
        with pytest.raises(PeerUnreachable, match="and you are in other@"):
            asyncio.run(asyncio.wait_for(ask(stranger, first.port), WITHIN_S))
        assert learner.me not in hooks_seen(hooks)
        learner.release()
        assert hooks.wait_for_size(2).members == (first.me, learner.me)
