"""The jobs of this node: its tickets, their rounds, the way to their stores."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from ringleader.errors import ConfigError, DeadlineExceeded, RingleaderError
from ringleader.ids import NodeId
from ringleader.node.agent import rank_assignment
from ringleader.node.agent.rank_assignment import Refused, Round, Table, Waiting
from ringleader.node.agent.round_stores import Stores
from ringleader.node.agent.store_tunnel import Tunnel
from ringleader.node.peering.peer_connection import Guest
from ringleader.node.protocol.local_requests import Checked, Enter, Entered
from ringleader.node.protocol.node_state import Ended, Ticket

MAX_ENDED = 16
TELL_S = 2.0
"""How long a node that leaves waits until the others know how its job went."""

Tell = Callable[[str], None]


@dataclass(slots=True)
class _Job:
    """One job this node has a ticket for."""

    ticket: Ticket
    tell: Tell
    outcome: asyncio.Future[Round]
    round: Round | None = None
    born_in: str = ""
    """The view that began the round: only later views can end it."""
    tunnel: Tunnel | None = None
    told: str = ""
    last: Round | None = None
    """The round before, if this is not the first."""
    done: set[NodeId] = field(default_factory=set)
    """Nodes of the round, or of the last, that have finished."""
    failed: set[NodeId] = field(default_factory=set)

    def note_ends(self, table: Table) -> None:
        """See who has finished or failed; they say so before they leave."""
        current = self.round or self.last
        for node in current.nodes if current else ():
            seat = table.seats.get(node)
            for end in seat.ended if seat else ():
                if current is not None and end.round == current.id:
                    (self.done if end.ok else self.failed).add(node)

    def is_left_alone(self, mine: NodeId) -> bool:
        """Whether all others of the last round have finished it without us."""
        others = {*self.last.nodes} - {mine} if self.last else set()
        return self.round is None and bool(others) and others <= self.done


@dataclass(slots=True)
class Worker:
    """What the processes of a round are given."""

    credentials: str
    addresses: Callable[[], list[str]]


@dataclass(slots=True)
class Jobs:
    """Everything about jobs that lives in the agent."""

    mine: NodeId
    changed: Callable[[], None]
    """Called when our seat must be told to all in a new view."""
    settled: Callable[[], None]
    """Called when our seat is another one, and the next view may tell it."""
    dial_store: Callable[[NodeId, str], Awaitable[Guest]]
    worker: Worker
    table: Table | None = None
    go: set[str] = field(default_factory=set)
    ended: list[Ended] = field(default_factory=list)
    """What we tell the others before we leave."""
    stores: Stores = field(default_factory=Stores)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def tickets(self) -> list[Ticket]:
        """For our seat."""
        return [job.ticket for job in self._jobs.values()]

    async def enter(self, request: Enter, tell: Tell) -> Entered:
        """Wait until the next round of a job begins with us in it."""
        before = self.quit(request.job)
        ticket = Ticket(
            job=request.job,
            number=secrets.token_hex(8),
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            wait_s=request.wait_s,
            facts=request.facts,
            again=before is not None,
        )
        loop = asyncio.get_running_loop()
        job = _Job(ticket, tell, loop.create_future())
        if before is not None:
            job.last, job.done = before.round or before.last, before.done
        self._jobs[request.job] = job
        self.changed()
        try:
            async with asyncio.timeout(request.timeout_s):
                chosen = await job.outcome
        except TimeoutError as exc:
            self.quit(request.job)
            text = f"no round began within {request.timeout_s:g} s ({job.told})"
            raise DeadlineExceeded(f"job {request.job}", text) from exc
        except BaseException:
            self.quit(request.job)
            raise
        return await self._welcome(job, chosen)

    async def _welcome(self, job: _Job, chosen: Round) -> Entered:
        assert self.table is not None
        rank, port = chosen.nodes.index(self.mine), 0
        if rank > 0:
            first = chosen.nodes[0]
            job.tunnel = Tunnel(lambda: self.dial_store(first, chosen.id))
            port = await job.tunnel.start()
        return Entered(
            round=chosen.id,
            rank=rank,
            size=len(chosen.nodes),
            store_port=port,
            names=[self.table.seats[node].name for node in chosen.nodes],
            credentials=self.worker.credentials,
            addresses=self.worker.addresses(),
        )

    def quit(self, name: str) -> _Job | None:
        """Give up the ticket for a job, and what its round holds."""
        job = self._jobs.pop(name, None)
        if job is None:
            return None
        job.outcome.cancel()
        if job.tunnel is not None:
            job.tunnel.close()
        if job.round is not None:
            self.stores.close(job.round.id)
        self.changed()
        return job

    async def end(self, name: str, *, ok: bool | None) -> None:
        """Give up a job, and tell the others how it went before we may leave."""
        job = self.quit(name)
        current = (job.round or job.last) if job else None
        if current is None or ok is None:
            return
        end = Ended(name, current.id, ok)
        self.ended = [*self.ended[-MAX_ENDED + 1 :], end]
        self.changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                while self.table and end not in self.table.seats[self.mine].ended:
                    await self._news.wait()

    def serve(self, round_id: str, port: int) -> None:
        """The store of a round of ours is open here."""
        for job in self._jobs.values():
            if job.round is not None and job.round.id == round_id:
                self.stores.open(round_id, port, job.round.nodes)

    def close(self) -> None:
        """Give up everything."""
        for name in list(self._jobs):
            self.quit(name)

    # -- what a new view means ---------------------------------------------------------

    def on_table(self, table: Table) -> None:
        """Judge our tickets by a view that has come into force."""
        self.table = table
        self.go &= table.jobs()
        self._news.set()
        self._news = asyncio.Event()
        self.stores.close_for_absent(table.seats)
        for name, job in list(self._jobs.items()):
            job.note_ends(table)
            if job.round and job.tunnel and job.round.nodes[0] not in table.seats:
                job.tunnel.close()  # else who waits for the store waits for ever
            seated = table.seats[self.mine].ticket(name)
            is_told = seated is not None and seated.number == job.ticket.number
            if is_told and job.round is None and not job.outcome.done():
                self._judge(name, job, table)

    def _judge(self, name: str, job: _Job, table: Table) -> None:
        if job.is_left_alone(self.mine):
            text = f"job {name}: the other machines have finished it, this one has not"
            job.outcome.set_exception(RingleaderError(text))
            return
        match rank_assignment.assign(name, table, self.mine):
            case Round() as chosen if self.mine in chosen.nodes:
                job.round, job.born_in = chosen, table.view_id
                job.ticket = msgspec.structs.replace(job.ticket, round=chosen.id)
                job.outcome.set_result(chosen)
                self.settled()  # at once: a later view must not find us waiting still
            case Round() as chosen:
                self._tell(job, f"{len(chosen.nodes)} others train; no room for more")
            case Refused(reason=reason):
                job.outcome.set_exception(ConfigError(f"job {name}: {reason}"))
            case Waiting() as waiting:
                self._tell(job, _words(waiting, table))

    def _tell(self, job: _Job, text: str) -> None:
        if text != job.told:
            job.told = text
            job.tell(text)

    def check(self, name: str) -> Checked:
        """Whether our round of a job must be left."""
        job, table = self._jobs.get(name), self.table
        if job is None or job.round is None or table is None:
            return Checked(True, "we are in no round")
        if table.view_id == job.born_in:
            return Checked(False)
        if not rank_assignment.is_stale(name, job.round, table, job.done):
            return Checked(False)
        gone = {node for node in job.round.nodes if node not in table.seats} - job.done
        lost = len(gone - job.failed)
        words = [f"{lost} lost"] * bool(lost)
        words += [f"{len(job.failed)} failed"] * bool(job.failed)
        return Checked(True, " and ".join(words) or "others wait")

    def on_tick(self, now_s: float) -> None:
        """As the leader: let jobs start that have waited long enough for more."""
        table = self.table
        if table is None or table.by_age[0] != self.mine:
            return
        for job in table.jobs():
            patience_s = rank_assignment.patience_s(job, table)
            if patience_s is None:
                self._since.pop(job, None)
                self.go.discard(job)
            elif job in self.go:
                continue
            elif now_s - self._since.setdefault(job, now_s) >= patience_s:
                self.go.add(job)
                self.changed()


def _words(waiting: Waiting, table: Table) -> str:
    """What a user should know while waiting."""
    names = ", ".join(table.seats[node].name for node in waiting.nodes)
    if waiting.running:
        busy = ", ".join(table.seats[node].name for node in waiting.running)
        return f"waiting for {busy} to finish or to restart"
    if waiting.missing:
        more = f"{waiting.missing} more machine" + "s" * (waiting.missing > 1)
        return f"{len(waiting.nodes)} here ({names}); waiting for {more}"
    return f"{len(waiting.nodes)} here ({names}); waiting a moment for more"
