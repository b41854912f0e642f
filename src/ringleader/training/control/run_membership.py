"""RunMembership: the thread that keeps this process a member of an elastic run.

The thread runs the membership state machine with the other workers of the run, over TLS
links of its own. It does not wait for user code: a member that computes still sends
heartbeats, and is frozen and asked for its status within milliseconds.

When the thread fails, ``ViewHooks.failed`` is called and every method raises the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence

from ringleader.deadline import OWN_PROCESS_S
from ringleader.errors import Expelled, InternalError, RingleaderError
from ringleader.membership.member import Member, ViewId
from ringleader.node.peering.peer_connection import (
    Address,
    HandshakeContext,
)
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.settings.launch import note_group
from ringleader.training.control.control_loop import ControlLoop
from ringleader.training.control.run_config import RunConfig
from ringleader.training.control.view_hooks import ServeState, ViewHooks
from ringleader.training.control.work_watch import WorkWatch
from ringleader.transport.listening_socket import listen

CLOSE_S = 0.5
LEAVE_S = 2.0
"""For the goodbye and for closing the links."""

_running: weakref.WeakSet[RunMembership] = weakref.WeakSet()


class RunMembership:
    """Membership of this process in a run. Any thread may call its methods."""

    def __init__(self, config: RunConfig, hooks: ViewHooks) -> None:
        self.config = config
        self.me: Member = config.new_member()
        """This life of this node; the smaller one of two is more senior."""
        self.port = 0
        self.work_watch = WorkWatch()
        """The user's thread tells it when user code begins and returns; a member whose
        code hangs leaves the run."""
        self._hooks = hooks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control: ControlLoop | None = None
        self._error: RingleaderError | None = None
        self._has_left = False
        self.is_held = False
        """Whether this process has yet to be released to meet the others."""
        self._selector: selectors.BaseSelector | None = None
        self._sock: socket.socket | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._main, name="ringleader-control", daemon=True
        )

    def start(self, *, is_held: bool = False) -> int:
        """Listen, start the thread and return the port; views follow by the hooks.

        With ``is_held``, this process meets no other before ``release``.
        """
        self.is_held = is_held
        self._sock = listen("", self.config.port)
        self.port = self._sock.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        _running.add(self)
        self._thread.start()
        if not self._started.wait(OWN_PROCESS_S):
            text = f"the control thread of run {self.config.run!r} did not start"
            raise InternalError(f"{text} within {OWN_PROCESS_S:g} s")
        self.check()
        note_group()
        return self.port

    def check(self) -> None:
        """Raise the error with which the control thread has ended, if it has."""
        if self._error is not None:
            raise self._error

    @property
    def peers(self) -> RunPeers | None:
        """What the peer source told last; None: nothing yet, or there is none."""
        return None if self._control is None else self._control.peers

    def troubles(self) -> dict[str, str]:
        """Return the peers that could not be dialled, and why."""
        return {} if self._control is None else self._control.troubles()

    @property
    def has_source(self) -> bool:
        """True if a peer source tells who is in the run."""
        return self.config.source is not None

    @property
    def handshake(self) -> HandshakeContext:
        """For further connections to members of the run."""
        assert self._control is not None, "start() returns when it is there"
        return self._control.handshake

    def addresses(self) -> Mapping[str, Sequence[Address]]:
        """Return where the other workers can be dialled, by node, as far as known."""
        return {} if self._control is None else self._control.addresses()

    def own_hosts(self) -> Collection[str]:
        """Return the addresses of this machine at which links of the run end."""
        return () if self._control is None else self._control.own_hosts

    def serve_state(self, serve: ServeState) -> None:
        """Call ``serve`` on the control thread for processes that follow the run."""
        self._post(lambda control: setattr(control, "serve_state", serve))

    def release(self) -> None:
        """Become a member of the run, if ``start`` held that back."""
        self.is_held = False
        self._post(lambda control: control.release())

    def answer(self, view_id: ViewId, status: bytes) -> None:
        """Answer ``ViewHooks.freeze``; ignored if a later view was promised since."""
        self._post(lambda control: control.answer(view_id, status))

    def refresh(self) -> None:
        """Ask for a new view of the same members with new statuses."""
        self._post(lambda control: control.runner.refresh())

    def suspect(self, member: Member, why: str) -> None:
        """Find out at once whether a member is alive, for example after its data link
        broke. If its process has ended, a freeze follows; if not, nothing does."""
        self._post(lambda control: control.runner.suspect(member, why))

    def close(self) -> None:
        """Say goodbye to the others and end the thread. Returns within two seconds.

        Deliver the running step before: the others go on without this member at once.
        """
        self._has_left = True
        loop, control = self._loop, self._control
        if loop is not None and control is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(control.stop)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(LEAVE_S)
        _running.discard(self)

    def _post(self, do: Callable[[ControlLoop], None]) -> None:
        """Run ``do`` on the control thread, soon."""
        self.check()
        loop, control = self._loop, self._control
        if self._has_left or loop is None or control is None:
            raise Expelled(f"this process is not in run {self.config.run!r}")
        try:
            loop.call_soon_threadsafe(do, control)
        except RuntimeError as exc:  # the thread has ended meanwhile
            self.check()
            raise Expelled(f"this process has left run {self.config.run!r}") from exc

    # -- the thread --------------------------------------------------------------------

    def _main(self) -> None:
        assert self._selector is not None
        selector = self._selector
        try:
            with asyncio.Runner(
                loop_factory=lambda: asyncio.SelectorEventLoop(selector)
            ) as runner:
                runner.run(self._serve())
        except BaseException as exc:  # noqa: BLE001 - shown in the user's thread
            self._end(_as_ours(exc, self.config.run))
        else:
            error = None if self._control is None else self._control.error
            self._end(error)

    async def _serve(self) -> None:
        assert self._sock is not None
        self._loop = asyncio.get_running_loop()
        self._control = ControlLoop(
            self.me,
            self.config,
            self._hooks,
            self._sock,
            self.work_watch,
            is_held=self.is_held,
        )
        await self._control.run(self._started.set)
        await self._close_connections()

    async def _close_connections(self) -> None:
        """Wait a moment until the goodbyes are sent and the connections closed."""
        assert self._sock is not None
        assert self._selector is not None
        self._sock.close()
        until_s = time.monotonic() + CLOSE_S
        while len(self._selector.get_map()) > 1:  # the loop has one for itself
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(0.005)

    def _end(self, error: RingleaderError | None) -> None:
        """Tell the user's thread that this one has ended."""
        if self._sock is not None:
            self._sock.close()
        if error is None and not self._has_left:
            error = InternalError("the control thread ended without a reason")
        self._error = error
        self._started.set()
        if error is not None:
            self._hooks.failed(error)

    def _close_inherited(self) -> None:
        """Close the connections of the thread in a forked child.

        The child would keep the links of this process open after its death, and the
        others would take it for a silent machine. The descriptors stay in use, so that
        the objects that own them cannot close others.
        """
        self._has_left = True
        selector, sock = self._selector, self._sock
        found = set() if sock is None else {sock.fileno()}
        if selector is not None and selector.get_map() is not None:
            found |= {key.fd for key in selector.get_map().values()}
        null = os.open(os.devnull, os.O_RDWR)
        for fd in found - {-1}:
            with contextlib.suppress(OSError):
                os.dup2(null, fd, inheritable=False)
        os.close(null)


def _as_ours(error: BaseException, run: str) -> RingleaderError:
    if isinstance(error, RingleaderError):
        return error
    made = InternalError(f"the control thread of run {run!r} failed: {error!r}")
    made.__cause__ = error
    return made


def _forget_in_child() -> None:
    for each in list(_running):
        each._close_inherited()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
