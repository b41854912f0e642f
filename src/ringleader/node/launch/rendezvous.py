"""A process at a round: its rank, its store, and what its workers must know.

Everything that trains meets here: ``ringleader run``, torchrun with the ``mdns``
rendezvous, ``init_method="mdns://"`` and ``ringleader.join``.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringleader.deadline import Deadline
from ringleader.errors import InternalError, PeerLost, RingleaderError
from ringleader.node.protocol import local_requests
from ringleader.node.protocol.agent_client import Agent, OnProgress
from ringleader.node.protocol.local_requests import (
    Check,
    Checked,
    Enter,
    Entered,
    Quit,
    Serve,
)

HERE = "127.0.0.1"
GATHER_S = 20.0
"""How long the machines of a round may take to reach its store."""
GLANCE_S = 0.5
"""How often to ask meanwhile whether the round still stands."""
POLL_S = 0.02
ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """One round, seen from one of its nodes."""

    entered: Entered
    store: TCPStore
    """Shared by all nodes of the round; it lives as long as its first node."""

    @property
    def port(self) -> int:
        """Of the store, on 127.0.0.1, for the workers of this machine."""
        return int(self.store.port)

    def environment(self, *, encrypts: bool = True) -> dict[str, str]:
        """What the workers of this machine need beside torchrun's variables."""
        return {
            "RINGLEADER_CREDENTIALS": self.entered.credentials,
            "RINGLEADER_PLAINTEXT": "0" if encrypts else "1",
            "RINGLEADER_ADDRESS": ",".join(self.entered.addresses),
            "RINGLEADER_ROUND": self.entered.round,
        }


def meet(agent: Agent, request: Enter, on_progress: OnProgress) -> Meeting:
    """Enter rounds until one of them has really met in its store.

    A machine may be lost between the decision and the first step. Then the round is
    stale before it began, and the next one is entered.
    """
    local_requests.check(request)
    deadline = Deadline.after(request.timeout_s)
    while True:
        entered = agent.ask(
            request, Deadline.after(request.timeout_s + ASK_S), on_progress
        )
        if not isinstance(entered, Entered):
            raise InternalError(f"the agent answered Enter with {entered!r}")
        try:
            store = _open_store(agent, entered)
            if _gather(agent, request.job, entered, store):
                return Meeting(entered, store)
        except (RuntimeError, OSError) as exc:
            if deadline.is_over() or isinstance(exc, PeerLost):
                raise
        on_progress("a machine was lost while the group formed; trying again")
        if deadline.is_over():
            raise RingleaderError(f"job {request.job}: no round held together in time")


def _open_store(agent: Agent, entered: Entered) -> TCPStore:
    timeout = timedelta(seconds=GATHER_S)
    if entered.store_port:
        return TCPStore(HERE, entered.store_port, is_master=False, timeout=timeout)
    # The socket is ours, so that the store listens on this machine alone.
    listening = socket.create_server((HERE, 0), backlog=512)
    port: int = listening.getsockname()[1]
    store = TCPStore(
        HERE,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    agent.ask(Serve(entered.round, port), Deadline.after(ASK_S))
    return store


def _gather(agent: Agent, job: str, entered: Entered, store: Store) -> bool:
    """Whether every machine came to the store; False when one was lost instead."""
    store = PrefixStore("ringleader/here", store)
    store.set(str(entered.rank), "1")
    names = [str(rank) for rank in range(entered.size)]
    deadline = Deadline.after(GATHER_S)
    next_look = Deadline.after(GLANCE_S)
    while not deadline.is_over():
        if store.check(names):
            return True
        if next_look.is_over():
            if check(agent, job).is_stale:
                return False
            next_look = Deadline.after(GLANCE_S)
        time.sleep(POLL_S)
    return False


def check(agent: Agent, job: str) -> Checked:
    """Whether the round of ``job`` goes on."""
    reply = agent.ask(Check(job), Deadline.after(ASK_S))
    assert isinstance(reply, Checked)
    return reply


def leave(agent: Agent, job: str, *, ok: bool | None = None) -> None:
    """Tell the others that this process is done with ``job``, and how it went."""
    agent.ask(Quit(job, ok), Deadline.after(ASK_S))
