"""``join_round``: brings a process into a round, with its rank and the shared store.

All ways to train use it: ``ringleader run``, torchrun with the ``mdns`` or the ``grpc``
rendezvous, ``init_method="mdns://"`` and ``"grpc://"``, and ``ringleader.join``.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, InternalError, PeerLost
from ringleader.node.protocol.agent_client import AgentClient, OnProgress
from ringleader.node.protocol.agent_config import metrics_directory
from ringleader.node.protocol.local_requests import (
    CheckRound,
    EnterJob,
    LeaveJob,
    RoundComplete,
    RoundEntered,
    RoundStatus,
    StoreOpened,
    validate,
)
from ringleader.topology.interface_kind import InterfaceKind, kind_of
from ringleader.transport.name_lookups import no_name_lookups

_LINK_WORDS = {
    InterfaceKind.WIFI: "Wi-Fi",
    InterfaceKind.ETHERNET: "Ethernet",
    InterfaceKind.THUNDERBOLT: "Thunderbolt",
    InterfaceKind.VPN: "VPN",
}
LOOPBACK = "127.0.0.1"
GATHER_S = 20.0
"""How long the machines of a round may take to reach its store."""
CHECK_EVERY_S = 0.5
"""How often to ask meanwhile whether the round still stands."""
POLL_S = 0.02
ASK_S = 60.0
"""An agent answers in milliseconds, if its machine is not very busy; the connection to
one that was given up cannot be used again. One that ends closes it."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One round, seen from one of its nodes."""

    entered: RoundEntered
    store: TCPStore
    """Shared by all nodes of the round; it lives as long as its first node."""

    @property
    def port(self) -> int:
        """Port of the store on 127.0.0.1, for the workers of this machine."""
        return int(self.store.port)

    def as_newcomer(self) -> Rendezvous:
        """Return what a worker starts with while the workers of the round go on.

        It has a store of its own, in a world of one rank.
        """
        entered = msgspec.structs.replace(
            self.entered, rank=0, size=1, store_port=0, is_joiner=True
        )
        return Rendezvous(entered, _listen_store(timedelta(seconds=GATHER_S)))

    def environment(self, *, encrypts: bool = True) -> dict[str, str]:
        """Return the variables the workers need beside those of torchrun."""
        home = settings.home_directory()
        return {
            "RINGLEADER_METRICS_FOLDER": str(metrics_directory(home)),
            "RINGLEADER_CREDENTIALS": self.entered.credentials,
            "RINGLEADER_PLAINTEXT": "0" if encrypts else "1",
            "RINGLEADER_ADDRESS": ",".join(self.entered.addresses),
            "RINGLEADER_ROUND": self.entered.round,
            "RINGLEADER_LINK_KIND": _LINK_WORDS.get(
                kind_of(self.entered.interface), ""
            ),
        }

    def export(self, *, encrypts: bool = True) -> dict[str, str | None]:
        """Set the variables for this process and the workers it starts.

        Returns the values before, for ``settings.restore``.
        """
        before = settings.export(self.environment(encrypts=encrypts))
        if self.entered.interface:
            before |= settings.export_interface(self.entered.interface)
        return before


def join_round(
    agent: AgentClient, request: EnterJob, on_progress: OnProgress
) -> Rendezvous:
    """Enter rounds until all machines of one have reached its store.

    A machine may be lost between the rank assignment and the first step. Then the round
    is stale before it began, and the next one is entered. Raises ``DeadlineExceeded``
    if no round is complete within ``request.timeout_s``.
    """
    validate(request)
    deadline = Deadline.after(request.timeout_s)
    while True:
        entered = agent.ask(
            request, Deadline.after(request.timeout_s + ASK_S), on_progress
        )
        if not isinstance(entered, RoundEntered):
            raise InternalError(f"the agent answered EnterJob with {entered!r}")
        try:
            with no_name_lookups(LOOPBACK):
                store = _open_store(agent, entered)
            if _gather(agent, request.job, entered, store):
                agent.ask(RoundComplete(entered.round), Deadline.after(ASK_S))
                return Rendezvous(entered, store)
        except (RuntimeError, OSError) as exc:
            if deadline.is_over() or isinstance(exc, PeerLost):
                raise
        on_progress("a machine was lost while the group formed; trying again")
        if deadline.is_over():
            text = f"no round was complete within {request.timeout_s:g} s"
            raise DeadlineExceeded(f"job {request.job}", text)


def _open_store(agent: AgentClient, entered: RoundEntered) -> TCPStore:
    timeout = timedelta(seconds=GATHER_S)
    if entered.store_port:
        return TCPStore(LOOPBACK, entered.store_port, is_master=False, timeout=timeout)
    store = _listen_store(timeout)
    agent.ask(StoreOpened(entered.round, int(store.port)), Deadline.after(ASK_S))
    return store


def _listen_store(timeout: timedelta) -> TCPStore:
    # The listening socket is made here so that it is bound to 127.0.0.1 only.
    listening = socket.create_server((LOOPBACK, 0), backlog=512)
    port: int = listening.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _gather(agent: AgentClient, job: str, entered: RoundEntered, store: Store) -> bool:
    """Wait until all machines are in the store; False if one was lost or is late."""
    store = PrefixStore("ringleader/here", store)
    store.set(str(entered.rank), "1")
    names = [str(rank) for rank in range(entered.size)]
    deadline = Deadline.after(GATHER_S)
    next_check = Deadline.after(CHECK_EVERY_S)
    while not deadline.is_over():
        if store.check(names):
            return True
        if next_check.is_over():
            if check_round(agent, job).is_stale:
                return False
            next_check = Deadline.after(CHECK_EVERY_S)
        time.sleep(POLL_S)
    return False


def check_round(agent: AgentClient, job: str) -> RoundStatus:
    """Ask the agent whether the round of ``job`` goes on."""
    reply = agent.ask(CheckRound(job), Deadline.after(ASK_S))
    assert isinstance(reply, RoundStatus)
    return reply


def leave_job(agent: AgentClient, job: str, *, ok: bool | None = None) -> None:
    """Tell the other nodes that this process has left ``job``, and how it ended."""
    agent.ask(LeaveJob(job, ok), Deadline.after(ASK_S))
