"""``print_events``: prints the cluster events of a resident agent during a run.

An agent that a run starts prints them itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, RingleaderError
from ringleader.node.launch.resident_agent import (
    CONNECT_S,
    connect_to_resident,
    find_resident,
)
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.local_requests import EVENTS
from ringleader.node.protocol.snapshot import ClusterEvent

_DECODER = msgspec.msgpack.Decoder(ClusterEvent)
_QUIET_S = 3600.0
"""An agent is silent for as long as nothing happens; then we wait again."""


@contextlib.contextmanager
def print_events(home: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Call ``say`` with each event of the resident agent, in a thread of its own."""
    record = find_resident(home)
    agent = connect_to_resident(home, record) if record else None
    if agent is None:
        yield
        return
    thread = threading.Thread(
        target=_follow, args=(agent, say), name="ringleader-events", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        agent.shutdown()  # ends the thread
        thread.join()
        agent.close()


def _follow(agent: AgentClient, say: Callable[[str], None]) -> None:
    with contextlib.suppress(RingleaderError, msgspec.DecodeError):
        agent.use_service(EVENTS, Deadline.after(CONNECT_S))
        while True:
            try:
                body = agent.receive_body(Deadline.after(_QUIET_S))
            except DeadlineExceeded:
                continue
            say(_DECODER.decode(body).text)
