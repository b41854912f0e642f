"""A node at home on its loop: the parts of an agent, put together."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence

from ringleader.deadline import Deadline
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.static_peers import StaticPeers, parse
from ringleader.errors import RingleaderError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.events import HealthChanged, KeyCloned
from ringleader.membership.member import Member, View
from ringleader.node.agent.agent_identity import Keeper
from ringleader.node.agent.event_log import Story
from ringleader.node.agent.jobs import Jobs, Worker
from ringleader.node.agent.rank_assignment import Table
from ringleader.node.peering import link_plan
from ringleader.node.peering.acceptor import Door
from ringleader.node.peering.connect import dial
from ringleader.node.peering.control_links import ControlLink
from ringleader.node.peering.dialer import Scout
from ringleader.node.peering.link_prober import Survey
from ringleader.node.peering.membership_runner import Cluster, profile
from ringleader.node.peering.peer_connection import Address, Greeting, Guest
from ringleader.node.protocol import framing, node_state
from ringleader.node.protocol.agent_client import AgentConfig
from ringleader.node.protocol.framing import Hello
from ringleader.node.protocol.node_state import Seat
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.interfaces import usable_interfaces
from ringleader.topology.node_profile import clean, find_accelerators, measure
from ringleader.transport import tcp
from ringleader.transport.host_token import host_token

SECOND_LOOK_S = 5.0
"""How often the network interfaces are looked at again."""
ACCELERATORS_S = 10.0
SETTLE_S = 0.05
"""Changes of our seat that come together make one view."""


class Resident:
    """Everything an agent runs. One asyncio loop, no threads but for probes."""

    def __init__(
        self,
        keeper: Keeper,
        config: AgentConfig,
        build_snapshot: Callable[[Resident], Snapshot],
    ) -> None:
        self.keeper = keeper
        self._build_snapshot = build_snapshot
        self.config = config
        self.born_s = time.monotonic()
        self.me = Member(
            time.time_ns() // 1_000_000,
            keeper.node,
            Incarnation(secrets.token_hex(8)),
        )
        self.profile = measure()
        self.name = clean(config.name or self.profile.host) or "node"
        self.chosen, self.refused = usable_interfaces(config.interfaces)
        self.sock = tcp.listen("", config.port)
        self.port: int = self.sock.getsockname()[1]
        self.table: Table | None = None
        self.story = Story({keeper.node: self.name}, config.tells)
        self.clocks: dict[NodeId, float] = {}
        self.ended = asyncio.Event()
        self._greeting = Greeting(keeper.credentials, self._hello)
        self._tasks: set[asyncio.Task[None]] = set()
        self._saying: asyncio.TimerHandle | None = None
        self.survey = Survey(
            self.me.node, keeper.credentials, self._dial_probe, self._changed
        )
        self.jobs = Jobs(
            self.me.node,
            self._changed,
            lambda: self.cluster.note(self._payload()),
            self._dial_store,
            Worker(str(keeper.credentials_file), self.addresses),
        )
        times = profile(config.profile)
        self.cluster = Cluster(self.me, self._greeting, self, times, link_plan.order)
        self.door = Door(self._greeting, self.sock, self._on_guest)
        key = keeper.cluster.mdns_key().reveal()
        self.mdns = Mdns(port=self.port, key=key)
        self.scout = Scout(
            self.me.node,
            self._greeting,
            self.mdns,
            StaticPeers(parse(config.peers)),
            lambda guest: self.cluster.welcome(guest, dialled_by_us=True),
            self._is_linked,
            self._member_addresses,
        )

    # -- life ----------------------------------------------------------------------

    async def start(self) -> None:
        """Open the door, announce ourselves, begin."""
        self.cluster.start(self._payload())
        self._keep(self.door.serve())
        await self.mdns.start(self.chosen)
        self.keeper.credentials.set_labels(*self.mdns.labels)
        self._keep(self.scout.run())
        self._keep(self._tick_forever())
        self._keep(self._look_again_forever())
        self._keep(self._find_accelerators())

    async def stop(self) -> None:
        """Leave the cluster and close everything."""
        self.jobs.close()
        self.survey.stop()
        await self.cluster.leave()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._saying is not None:
            self._saying.cancel()
        self.sock.close()
        await self.mdns.stop()

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something until it ends or we do."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._let_go)
        return task

    def _let_go(self, task: asyncio.Task[None]) -> None:
        """What runs for ever must not end in silence: then we end, and say why."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.story.failed(task.exception())
            self.ended.set()

    async def _tick_forever(self) -> None:
        while True:
            self.jobs.on_tick(time.monotonic())
            await asyncio.sleep(0.1)

    async def _look_again_forever(self) -> None:
        """Follow the machine to another network."""
        while True:
            await asyncio.sleep(SECOND_LOOK_S)
            before = self.addresses()
            try:
                await self._look_again()
            except (RingleaderError, OSError) as exc:  # an adapter was pulled out
                self.scout.troubles["network interfaces"] = str(exc)
            else:
                self.scout.troubles.pop("network interfaces", None)
            if self.addresses() != before:
                self._changed()

    async def _look_again(self) -> None:
        self.chosen, self.refused = usable_interfaces(self.config.interfaces)
        await self.mdns.update(self.chosen)
        self.keeper.credentials.set_labels(*self.mdns.labels)

    async def _find_accelerators(self) -> None:
        deadline = Deadline.after(ACCELERATORS_S)
        found = await asyncio.to_thread(find_accelerators, deadline)
        if found and found != self.profile.accelerators:
            self.profile = self.profile.with_accelerators(found)
            self._changed()

    # -- who we are ----------------------------------------------------------------

    def _hello(self, purpose: str, subject: str) -> Hello:
        return Hello(
            protocol=framing.PROTOCOL,
            version=self.profile.ringleader_version,
            purpose=purpose,
            node=self.me.node,
            incarnation=self.me.incarnation,
            started_ms=self.me.started_ms,
            name=self.name,
            port=self.port,
            clock_s=time.time(),
            subject=subject,
        )

    def addresses(self) -> list[str]:
        """Where we can be reached, the best first."""
        return [str(a.ip) for each in self.chosen for a in each.addresses][:16]

    def _payload(self) -> bytes:
        return node_state.encode(
            Seat(
                name=self.name,
                host=host_token().hex(),
                addresses=self.addresses(),
                port=self.port,
                profile=self.profile,
                links=self.survey.links,
                tickets=self.jobs.tickets(),
                ended=self.jobs.ended,
                go=sorted(self.jobs.go),
            )
        )

    def _changed(self) -> None:
        """Our seat is another one: tell everybody, a moment later."""
        if self._saying is None:
            loop = asyncio.get_running_loop()
            self._saying = loop.call_later(SETTLE_S, self._say)

    def _say(self) -> None:
        self._saying = None
        self.cluster.say(self._payload())

    # -- connections ---------------------------------------------------------------

    async def _on_guest(self, guest: Guest) -> None:
        match guest.hello.purpose:
            case "control":
                self.cluster.welcome(guest, dialled_by_us=False)
            case "probe":
                await self.survey.answer(guest)
            case "store":
                await self.jobs.stores.lead(guest)
            case "status":
                guest.writer.write(framing.pack(self.snapshot()))
                guest.close()
            case _:
                guest.close()

    def _is_linked(self, node: NodeId) -> bool:
        return node == self.me.node or self.cluster.links.to_node(node) is not None

    def _member_addresses(self) -> dict[NodeId, Sequence[Address]]:
        if self.table is None:
            return {}
        return {
            node: [(address, seated.port) for address in seated.addresses]
            for node, seated in self.table.seats.items()
        }

    def _where(self, node: NodeId) -> list[Address]:
        """Addresses of a member: first the one that works for its control link."""
        link = self.cluster.links.to_node(node)
        known = list(self._member_addresses().get(node, ()))
        return list(dict.fromkeys([*([link.guest.address] if link else []), *known]))

    async def _dial_store(self, node: NodeId, round_id: str) -> Guest:
        return await dial(
            self._greeting, self._where(node), "store", subject=round_id, expect=node
        )

    async def _dial_probe(self, node: NodeId) -> Guest:
        return await dial(self._greeting, self._where(node), "probe", expect=node)

    # -- what the cluster says -----------------------------------------------------

    def on_view(self, view: View) -> None:
        """See cluster.Watcher."""
        payloads = dict(zip(view.members, view.payloads, strict=True))
        known = link_plan.decode_all(payloads)
        if self.me not in known:
            return
        name = f"{view.id.counter}@{view.id.leader}/{view.id.incarnation}"
        self.table = Table(
            name,
            tuple(member.node for member in sorted(known)),
            {m.node: known[m] for m in view.members if m in known},
        )
        self.jobs.on_table(self.table)
        self.survey.on_seats(self.table.seats)
        self.story.viewed(view, {n: s.name for n, s in self.table.seats.items()})

    def on_change(self, change: HealthChanged) -> None:
        """See cluster.Watcher."""
        self.story.changed(change)

    def on_link(self, link: ControlLink) -> None:
        """See cluster.Watcher."""
        if link.member.node == self.me.node:
            return  # somebody has our key; the machine decides what becomes of it
        hello = link.guest.hello
        self.clocks[link.member.node] = hello.clock_s - time.time()
        self.story.met(link.member.node, clean(hello.name), link.guest.address[0])

    def on_link_lost(self, member: Member) -> None:
        """See cluster.Watcher."""
        self.scout.lost(member.node)

    def on_clone(self, clone: KeyCloned) -> None:
        """See cluster.Watcher."""
        self.story.cloned(clone)
        if clone.refused == self.me:
            self.ended.set()

    def snapshot(self) -> Snapshot:
        """Everything we know now."""
        return self._build_snapshot(self)
