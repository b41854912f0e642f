"""ControlLoop: the parts of a run's control plane, on the event loop of its thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ringleader.discovery.static_peers import StaticPeers, parse
from ringleader.errors import ConfigError, InternalError, RingleaderError
from ringleader.ids import NodeId, short
from ringleader.membership.events import FreezeView, HealthChanged, KeyCloned, Split
from ringleader.membership.member import Member, View, ViewId
from ringleader.node.agent.peer_directory import PeerDirectory
from ringleader.node.peering.acceptor import Acceptor
from ringleader.node.peering.control_links import ControlLink
from ringleader.node.peering.membership_runner import (
    MembershipRunner,
    RedialPolicy,
    RunnerOptions,
)
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
    PeerConnection,
)
from ringleader.node.peering.peer_dialer import PeerDialer
from ringleader.node.protocol.hello import PROTOCOL, AgentHello, Purpose
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.sleep_clock import SleepClock
from ringleader.training.control.view_hooks import PeerSource, ServeState, ViewHooks
from ringleader.training.control.work_watch import WorkWatch, leave_when_hung

_log = logging.getLogger(__name__)

REDIAL = RedialPolicy(num_tries=100, wait_s=0.005)
"""Half a second: how long a killed process with much memory may take to end."""
LONGEST_RETRY_S = 1.0
ANSWER_S = 10.0
"""A freeze that is not answered for this long, while this thread runs, is a bug here;
the others must not wait for it."""
_ANSWER_PARTS = 10


class ControlLoop:
    """One member of a run. Lives on the event loop of the control thread."""

    def __init__(
        self,
        me: Member,
        config: RunConfig,
        hooks: ViewHooks,
        sock: socket.socket,
        work_watch: WorkWatch,
        *,
        is_held: bool,
    ) -> None:
        self.me = me
        self.peers: RunPeers | None = None
        self.error: RingleaderError | None = None
        """Why this member has left without being asked to."""
        self._config = config
        self._hooks = hooks
        self._sock = sock
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sleep_clock = SleepClock(config.read_suspended_s)
        self._work_watch = work_watch
        self._unanswered: ViewId | None = None
        self._proven: set[Member] = set()
        self.own_hosts: frozenset[str] = frozenset()
        """Our addresses at which links end; replaced as a whole, for other threads."""
        self.serve_state: ServeState | None = None
        self._released = asyncio.Event()
        if not is_held:
            self.release()
        handshake = HandshakeContext(
            config.credentials, self._hello, Purpose.RUN, config.id, self._refusal
        )
        self.handshake = handshake
        self.runner = MembershipRunner(
            me,
            handshake,
            self,
            config.timing,
            config.order,
            RunnerOptions(REDIAL, self._on_freeze, self._check_sleep),
        )
        self._directory = PeerDirectory(me.node, handshake, self.runner)
        self._acceptor = Acceptor(handshake, sock, self._on_connection)
        self._dialer = PeerDialer(
            handshake,
            None,
            StaticPeers(parse(config.peers)),
            lambda connection: self.runner.add(connection, dialled_by_us=True),
            self._directory,
            self.addresses,
            LONGEST_RETRY_S,
        )

    async def run(self, on_started: Callable[[], None]) -> None:
        """Take part in the run until ``stop``, or until something fails."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._on_exception(context))
        try:
            self.runner.start(b"")
            self._run(self._acceptor.serve())
            self._run(self._dial())
            self._run(leave_when_hung(self._work_watch, self._config.run, self.fail))
            if self._config.source is not None:
                self._run(self._follow(self._config.source))
            on_started()
            await self._ended.wait()
        finally:
            await self.runner.leave()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _dial(self) -> None:
        await self._released.wait()
        await self._dialer.run()

    def release(self) -> None:
        """Become a member, if that was held back."""
        self._released.set()

    def stop(self) -> None:
        """Say goodbye to the others and end ``run``."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """End ``run``; the first error counts."""
        if self.error is None and not self._ended.is_set():
            if isinstance(error, RingleaderError):
                self.error = error
            else:
                text = f"the control thread of run {self._config.run!r} failed"
                self.error = InternalError(f"{text}: {error!r}")
                self.error.__cause__ = error
        self._ended.set()

    def answer(self, view_id: ViewId, status: bytes) -> None:
        """Answer a freeze."""
        if view_id == self._unanswered:
            self._unanswered = None
        self.runner.answer(view_id, status)

    def troubles(self) -> dict[str, str]:
        """Return the peers that could not be dialled, and why."""
        return dict(self._dialer.troubles)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _on_exception(self, context: dict[str, Any]) -> None:
        """Handle an exception that nobody awaits: of a timer, a callback, a task."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            _log.debug("control thread: %s", context.get("message"), exc_info=error)
            return  # such as a connection that broke while it was being closed
        self.fail(error)

    def _call(self, hook: Callable[..., None], *args: object) -> None:
        try:
            hook(*args)
        except Exception as exc:  # noqa: BLE001 - shown in the user's thread
            self.fail(exc)

    # -- peers -------------------------------------------------------------------------

    async def _follow(self, source: PeerSource) -> None:
        port: int = self._sock.getsockname()[1]
        async for peers in source.follow(self.me, port):
            self.peers = peers
            for peer in peers.others:
                if peer.has_ended and peer.member not in self._proven:
                    self._prove(peer.member, None)
                    self.runner.ended(peer.member)

    def addresses(self) -> Mapping[str, Sequence[Address]]:
        """Return where the other workers can be dialled, by node, as far as known."""
        if self.peers is None:
            return {}
        others = [p for p in self.peers.others if not p.has_ended]
        return {peer.member.node: peer.addresses for peer in others}

    def _hello(self, purpose: str, subject: str) -> AgentHello:
        return AgentHello(
            protocol=PROTOCOL,
            version=self._config.version,
            purpose=purpose,
            node=self.me.node,
            incarnation=self.me.incarnation,
            started_ms=self.me.started_ms,
            name=self._config.name[:64],
            port=self._sock.getsockname()[1],
            clock_s=time.time(),
            monotonic_s=time.monotonic(),
            subject=subject,
        )

    def _refusal(self, hello: AgentHello) -> str:
        if hello.purpose == Purpose.ADDRESSES:
            return ""
        if hello.purpose not in (Purpose.RUN, Purpose.STATE):
            return f"is a worker of run {self._config.run!r}, not an agent"
        if hello.subject != self._config.id:
            theirs = hello.subject or "no run"
            return f"is in run {self._config.id}, and you are in {theirs}"
        is_early = hello.purpose == Purpose.STATE and self.serve_state is None
        if is_early or not self._released.is_set():
            return "has no state of the run yet"
        return ""

    async def _on_connection(self, connection: PeerConnection) -> None:
        if connection.hello.purpose == Purpose.RUN:
            self.runner.add(connection, dialled_by_us=False)
        elif connection.hello.purpose == Purpose.STATE and self.serve_state is not None:
            self._run(self.serve_state(connection))
        else:
            self._directory.answer(connection)

    # -- membership --------------------------------------------------------------------

    def _check_sleep(self) -> None:
        """Cut all links if this machine was asleep: the others are elsewhere now."""
        slept_s = self._sleep_clock.slept_s()
        if slept_s:
            self.runner.drop_links()
            why = f"this machine was asleep for {slept_s:.0f} s"
            self._call(self._hooks.expelled, why)
            self.runner.refresh()  # a new view in any case, also if nobody noticed

    def _on_freeze(self, freeze: FreezeView) -> None:
        self._unanswered = freeze.id
        self._run(self._require_answer(freeze.id))
        self._call(self._hooks.freeze, freeze.id, freeze.members)

    async def _require_answer(self, view_id: ViewId) -> None:
        # In parts, so that the time counts in which this process is stopped, or has no
        # processor, as one of them: then its answer is late as well.
        for _ in range(_ANSWER_PARTS):
            await asyncio.sleep(ANSWER_S / _ANSWER_PARTS)
            if self._unanswered != view_id:
                return
        text = f"gave no status for view {view_id} within {ANSWER_S:g} s"
        self.fail(InternalError(f"run {self._config.run!r}: this process {text}"))

    def on_view(self, view: View) -> None:
        """Pass on a view."""
        self._unanswered = None
        self._call(self._hooks.install, view)

    def on_change(self, change: HealthChanged) -> None:
        """Pass on the proven end of a member."""
        if change.is_proven:
            self._prove(change.peer, change.promised)

    def _prove(self, member: Member, promised: ViewId | None) -> None:
        if len(self._proven) > 1024:
            self._proven.clear()
        self._proven.add(member)
        self._call(self._hooks.ended, member, promised)

    def on_link(self, link: ControlLink) -> None:
        """Note where it ends; a view follows."""
        self.own_hosts = frozenset(self.runner.links.paths().values())

    def on_link_lost(self, member: Member) -> None:
        """Let the dialer try again."""
        self.own_hosts = frozenset(self.runner.links.paths().values())
        self._dialer.link_lost(member.node)

    def on_clone(self, clone: KeyCloned) -> None:
        """Leave if another process of this node is in the run already."""
        if clone.refused == self.me:
            node: NodeId = self.me.node
            text = f"another process of node {short(node)} is in run"
            text = f"{text} {self._config.run!r} already; start one per machine"
            self.fail(ConfigError(text))

    def on_split(self, split: Split) -> None:
        """Do nothing: statuses tell the histories of both parts."""
