"""Training without a launcher: ``mdns://`` for torch, ``join`` for a plain group.

Every process is a node with one rank. Its agent is a process apart, started here.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ringleader import settings
from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, RingleaderError
from ringleader.groups import formation
from ringleader.groups.group import Group
from ringleader.node.launch.job_fingerprint import facts
from ringleader.node.launch.rendezvous import Meeting, check, leave, meet
from ringleader.node.protocol.agent_client import Agent, AgentConfig
from ringleader.node.protocol.local_requests import Enter, Look
from ringleader.node.protocol.snapshot import Snapshot

MOST = 64
WAIT_S = 10.0
TIMEOUT_S = 300.0
LOOK_S = 10.0

_node: list[Agent] = []
"""The agent of this process: started when first needed, ended with the process."""


@atexit.register
def _end() -> None:
    while _node:
        _node.pop().close()


def _agent(peers: str) -> Agent:
    """This process is a node from its first ``join`` until it ends."""
    if not _node:
        config = AgentConfig(
            home=str(settings.home_directory()),
            peers=f"{settings.peers()},{peers}",
            interfaces=settings.interfaces(),
            name=settings.node_name(),
        )
        _node.append(Agent(config))
    return _node[0]


def _attend(request: Enter, peers: str) -> Meeting:
    meeting = meet(_agent(peers), request, lambda _text: None)
    settings.export(meeting.environment())
    return meeting


def join(  # noqa: PLR0913 - all are options, and are given by name
    nodes: int | None = None,
    *,
    min_nodes: int = 2,
    wait_s: float = WAIT_S,
    job: str = "default",
    peers: str = "",
    transport: str = "auto",
    config: CollectiveConfig | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Group:
    """Find other machines of the cluster, form a group with them and return it.

    With ``nodes`` exactly so many take part; else at least ``min_nodes``, and whoever
    comes within ``wait_s`` after that. When a machine is lost the group's operations
    raise ``PeerError``: close the group and join again. This process stays a node of
    the cluster until it ends.
    """
    request = Enter(
        job=job,
        min_nodes=nodes or min_nodes,
        max_nodes=nodes or MOST,
        wait_s=wait_s,
        timeout_s=timeout_s,
        facts=facts(""),
    )
    meeting = _attend(request, peers)
    entered = meeting.entered
    try:
        wires = settings.Wires.from_environment()
        options = formation.Options(
            deadline=Deadline.after(timeout_s),
            config=config,
            transport=transport,
            num_stripes=wires.connections,
            addresses=wires.addresses,
            credentials=formation.load_credentials(wires.credentials),
        )
        group = formation.over_store(
            meeting.store, entered.rank, entered.size, entered.round, options
        )
    except BaseException:
        _quit(job)
        raise
    closing = group.on_close

    def on_close() -> None:
        closing()
        _quit(job)

    group.on_close = on_close
    return group


def should_rejoin(job: str = "default") -> bool:
    """Whether another machine waits to take part, or one of ours is gone.

    Ranks hear of it at different moments: agree on it, for example by a max over all of
    them every hundred steps, before you close the group and join again.
    """
    return bool(_node) and check(_node[0], job).is_stale


def look() -> Snapshot:
    """What the agent of this process knows of the cluster; ConfigError if none runs."""
    if not _node:
        raise ConfigError("this process has joined no cluster")
    reply = _node[0].ask(Look(), Deadline.after(LOOK_S))
    assert isinstance(reply, Snapshot)
    return reply


def _quit(job: str) -> None:
    with contextlib.suppress(RingleaderError):  # the agent may be gone, and we with it
        leave(_node[0], job)


def rendezvous(url: str, **_: Any) -> Iterator[tuple[object, int, int]]:  # noqa: ANN401
    """``mdns://?nodes=3&job=name&wait=10&timeout=300``, as torch calls it."""
    given = dict(parse_qsl(urlsplit(url).query))
    known = {"nodes", "min_nodes", "job", "wait", "timeout", "peers"}
    unknown = given.keys() - known - {"rank", "world_size"}
    if unknown:
        names = ", ".join(sorted(known))
        raise ConfigError(
            f"mdns://: no option {sorted(unknown)[0]!r}; there are {names}"
        )
    if "rank" in given:
        raise ConfigError("mdns://: ranks are agreed upon; leave rank out")
    try:
        request = _request(given)
    except ValueError as exc:
        raise ConfigError(f"mdns://: {exc}") from exc
    meeting = _attend(request, given.get("peers", ""))
    yield meeting.store, meeting.entered.rank, meeting.entered.size
    raise ConfigError("mdns://: form a new process group instead of a new rendezvous")


def _request(given: dict[str, str]) -> Enter:
    exact = given.get("nodes") or given.get("world_size")
    need = int(exact or given.get("min_nodes") or 2)
    return Enter(
        job=given.get("job", "default"),
        min_nodes=need,
        max_nodes=need if exact else MOST,
        wait_s=float(given.get("wait", WAIT_S)),
        timeout_s=float(given.get("timeout", TIMEOUT_S)),
        facts=facts(""),
    )
