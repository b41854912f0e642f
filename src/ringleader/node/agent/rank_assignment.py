"""Who trains with whom: a pure function of the view, so that all nodes agree on it.

A round is one formation of a job: its nodes in rank order. It ends when one of them
leaves or asks for the next; the others notice it in the next view, stop their workers
and ask again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from ringleader.ids import NodeId, short
from ringleader.node.peering.link_plan import is_measured
from ringleader.node.protocol.node_state import Facts, Seat, Ticket

SETTLE_S = 0.3
MEASURE_S = 4.0
"""How long a job waits for links that are still to be measured. They decide the order
of the ranks; a link that cannot be measured should not keep anybody from training."""


@dataclass(frozen=True, slots=True)
class Round:
    """The nodes that train together; the position is the rank among nodes."""

    id: str
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a node may not take part in a job."""

    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet: who waits, who is still in an older round, what is missing."""

    nodes: tuple[NodeId, ...]
    running: tuple[NodeId, ...]
    missing: int
    """How many nodes must come before training can start at all."""


@dataclass(frozen=True, slots=True)
class Table:
    """A view with the seats of its members decoded."""

    view_id: str
    by_age: tuple[NodeId, ...]
    """The oldest first; that is the leader."""
    seats: Mapping[NodeId, Seat]
    """In the order of the ring."""

    def jobs(self) -> set[str]:
        """All jobs somebody has a ticket for."""
        return {ticket.job for seat in self.seats.values() for ticket in seat.tickets}

    def tickets(self, job: str) -> dict[NodeId, Ticket]:
        """Those for ``job``, in the order of the ring."""
        found = {node: seat.ticket(job) for node, seat in self.seats.items()}
        return {node: ticket for node, ticket in found.items() if ticket is not None}

    def is_let_go(self, job: str) -> bool:
        """Whether the leader said that ``job`` need not wait for more machines."""
        return job in self.seats[self.by_age[0]].go


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The nodes of one job in one view."""

    waiting: dict[NodeId, Ticket]
    running: dict[NodeId, Ticket]
    reference: NodeId
    """Whose facts the others must share: the oldest that trains, or that waits."""
    facts: Facts

    @property
    def agreed(self) -> list[NodeId]:
        """Those who wait and share the facts, in the order of the ring."""
        return [n for n, t in self.waiting.items() if not _differing(self.facts, t)]

    def limits(self) -> tuple[int, int]:
        """How many nodes are needed, and how many at most may take part."""
        tickets = [self.waiting[node] for node in self.agreed]
        need = max((t.min_nodes for t in tickets), default=1)
        return need, max(need, min((t.max_nodes for t in tickets), default=1))


def _crowd(job: str, table: Table) -> _Crowd:
    held = table.tickets(job)
    waiting = {node: ticket for node, ticket in held.items() if not ticket.round}
    running = {node: ticket for node, ticket in held.items() if ticket.round}
    reference = next(node for node in table.by_age if node in (running or waiting))
    return _Crowd(waiting, running, reference, held[reference].facts)


def assign(job: str, table: Table, mine: NodeId) -> Round | Refused | Waiting:
    """What the view means for our ticket for ``job``, which waits."""
    crowd = _crowd(job, table)
    names = _differing(crowd.facts, crowd.waiting[mine])
    if names:
        return Refused(_explain(names, crowd, mine, table))
    agreed, (need, most) = crowd.agreed, crowd.limits()
    if crowd.running or len(agreed) < need:
        missing = max(0, need - len(agreed))
        return Waiting(tuple(agreed), tuple(crowd.running), missing)
    chosen = sorted(agreed, key=table.by_age.index)[:most]
    is_ready = len(agreed) >= most and is_measured(table.seats, chosen)
    if not is_ready and not table.is_let_go(job):
        return Waiting(tuple(agreed), (), 0)
    ring = tuple(node for node in agreed if node in chosen)
    return Round(round_id(table.view_id, job), ring)


def round_id(view_id: str, job: str) -> str:
    """Short, for people; the digest makes it unique among views and jobs."""
    digest = hashlib.sha256(f"{view_id}/{job}".encode()).hexdigest()[:12]
    return f"{view_id.partition('@')[0]}-{digest}"


def is_stale(
    job: str, current: Round, table: Table, done: Collection[NodeId] = ()
) -> bool:
    """Whether our round must be left for the next one.

    So it is when one of its nodes is gone or waits again, when a newcomer would be part
    of the next round, and when an older node leads another round of the job: after a
    split has healed there is one again. Nodes that are ``done`` are not missed.
    """
    tickets = table.tickets(job)
    ours = [n for n in current.nodes if n in tickets and tickets[n].round == current.id]
    if any(node not in ours and node not in done for node in current.nodes):
        return True
    others = [n for n, t in tickets.items() if t.round and t.round != current.id]
    oldest = min([*ours, *others], key=table.by_age.index, default=None)
    if others and oldest in others:
        return True
    return not others and not done and _would_grow(job, current, table)


def _would_grow(job: str, current: Round, table: Table) -> bool:
    """Whether the next round would hold somebody who is not in this one."""
    seats = {
        node: msgspec.structs.replace(
            seat, tickets=[msgspec.structs.replace(t, round="") for t in seat.tickets]
        )
        for node, seat in table.seats.items()
    }
    leader = table.by_age[0]
    seats[leader] = msgspec.structs.replace(seats[leader], go=[job])
    again = Table(table.view_id, table.by_age, seats)
    following = assign(job, again, current.nodes[0])
    return isinstance(following, Round) and not {*following.nodes} <= {*current.nodes}


def patience_s(job: str, table: Table) -> float | None:
    """Seconds after which the leader lets ``job`` start though it could wait.

    For more machines, or for links to be measured. None when it must not start: too few
    are here, or somebody is still in an older round.
    """
    crowd = _crowd(job, table)
    agreed, (need, most) = crowd.agreed, crowd.limits()
    if crowd.running or len(agreed) < need:
        return None
    if len(agreed) >= most:
        return MEASURE_S
    if any(crowd.waiting[node].again for node in agreed):
        return SETTLE_S  # who is left of a round goes on at once
    return max(crowd.waiting[node].wait_s for node in agreed)


def _differing(facts: Facts, ticket: Ticket) -> list[str]:
    """The facts that differ; an empty one is not compared."""
    wanted, got = msgspec.structs.asdict(facts), msgspec.structs.asdict(ticket.facts)
    return [k for k in got if got[k] and wanted[k] and got[k] != wanted[k]]


def _explain(names: list[str], crowd: _Crowd, mine: NodeId, table: Table) -> str:
    ours = msgspec.structs.asdict(crowd.waiting[mine].facts)
    theirs = msgspec.structs.asdict(crowd.facts)
    listed = "; ".join(f"{k} is {ours[k]} here and {theirs[k]} there" for k in names)
    name = table.seats[crowd.reference].name
    return f"this machine differs from {name} ({short(crowd.reference)}): {listed}"
