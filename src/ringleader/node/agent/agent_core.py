"""``AgentCore``: connects the parts of an agent and runs them on one event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Self

from ringleader import settings
from ringleader.discovery.mdns import Mdns
from ringleader.discovery.static_peers import StaticPeers, parse
from ringleader.errors import RingleaderError
from ringleader.membership.events import HealthChanged, KeyCloned, Split
from ringleader.membership.member import Member, View
from ringleader.metrics.registry import Registry
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.background_tasks import BackgroundTasks
from ringleader.node.agent.coordinator_setup import link_to_coordinator
from ringleader.node.agent.event_log import EventLog
from ringleader.node.agent.jobs import Jobs
from ringleader.node.agent.local_node import LocalNode
from ringleader.node.agent.peer_clocks import PeerClocks
from ringleader.node.agent.peer_directory import PeerDirectory
from ringleader.node.agent.round_entry import WorkerConfig
from ringleader.node.agent.services import Services
from ringleader.node.agent.split_reporter import SplitReporter
from ringleader.node.agent.view_state import ViewState
from ringleader.node.peering import link_plan
from ringleader.node.peering.acceptor import Acceptor, listen_for_agents
from ringleader.node.peering.control_links import ControlLink
from ringleader.node.peering.link_prober import LinkProber
from ringleader.node.peering.membership_profiles import membership_config
from ringleader.node.peering.membership_runner import MembershipRunner
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection
from ringleader.node.peering.peer_dialer import PeerDialer
from ringleader.node.protocol import framing, node_state
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.agent_port import AGENT_PORT
from ringleader.node.protocol.hello import Purpose
from ringleader.node.protocol.node_state import SplitSeen
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.topology.node_profile import clean

INTERFACES_EVERY_S = 5.0
"""How often the network interfaces are looked at again."""
PUBLISH_DELAY_S = 0.05
"""Changes of the node state within this time make one view."""


class AgentCore:
    """The parts of an agent, on one asyncio loop; threads only for link probes."""

    def __init__(
        self,
        identity: AgentIdentity,
        config: AgentConfig,
        local: LocalNode,
        sock: socket.socket,
        build_snapshot: Callable[[AgentCore], Snapshot],
    ) -> None:
        self.identity = identity
        self.config = config
        self.local = local
        self.me = local.member
        self.started_s = time.monotonic()
        self.view_state: ViewState | None = None
        self.events = EventLog({self.me.node: local.name}, config.prints_events)
        self.clocks = PeerClocks()
        self.ended = asyncio.Event()  # the agent cannot go on
        self.stopped = asyncio.Event()  # somebody wants it to end
        self.metrics = Registry()
        self._build_snapshot = build_snapshot
        self._sock = sock
        self.tasks = BackgroundTasks(self._on_failure)
        self._publishing: asyncio.TimerHandle | None = None
        self.services = Services(lambda *call: self.directory.dial(*call))
        self._handshake = HandshakeContext(
            identity.credentials, local.hello, refusal=self.services.refusal
        )
        self.link_prober = LinkProber(
            self.me.node,
            identity.credentials,
            lambda node: self.directory.dial(node, Purpose.PROBE),
            self.publish,
            settings.tensor_ports(),
        )
        self.splits = SplitReporter(self.events, self.publish, self._set_payload)
        timing = membership_config(config.profile)
        self.jobs = Jobs(
            self.me.node,
            self.publish,
            self._set_payload,
            lambda node, name: self.directory.dial(node, Purpose.STORE, name),
            WorkerConfig(
                identity.worker_credentials,
                local,
                timing.dead_after_s + timing.patience_s,
                str(identity.status_socket),
                timing.dead_after_s,
            ),
            lambda: self.snapshot().troubles,
            self.started_s,
        )
        self.membership = MembershipRunner(
            self.me, self._handshake, self, timing, link_plan.ring_order
        )
        self.directory = PeerDirectory(self.me.node, self._handshake, self.membership)
        self.acceptor = Acceptor(self._handshake, sock, self._on_connection)
        self.mdns = Mdns(port=local.port, key=identity.cluster.mdns_key().reveal())
        self.dialer = PeerDialer(
            self._handshake,
            self.mdns,
            StaticPeers(parse(config.peers, default_port=AGENT_PORT)),
            lambda connection: self.membership.add(connection, dialled_by_us=True),
            self.directory,
            lambda: self.coordinator.others,
        )
        self.coordinator = link_to_coordinator(
            config, identity, local, self.publish, self.events.coordinator_changed
        )

    @classmethod
    def listen(
        cls,
        identity: AgentIdentity,
        config: AgentConfig,
        build_snapshot: Callable[[AgentCore], Snapshot],
    ) -> Self:
        """Measure this machine and open the listening socket of the agent."""
        sock = listen_for_agents(config.port)
        try:
            port: int = sock.getsockname()[1]
            local = LocalNode.measure(identity.node, config, port)
            if local.addresses:  # with the user's certificate: is it for one of them?
                identity.credentials.announceable(local.addresses)
            return cls(identity, config, local, sock, build_snapshot)
        except BaseException:
            sock.close()
            raise

    # -- start and stop ------------------------------------------------------------

    async def start(self) -> None:
        """Accept connections, announce this node, start dialling others."""
        self.membership.start(self._payload())
        self.tasks.run(self.acceptor.serve())
        await self._announce()
        self.tasks.run(self.coordinator.run())
        self.tasks.run(self.dialer.run())
        self.tasks.run(self._tick_forever())
        self.tasks.run(self._follow_interfaces_forever())
        self.tasks.run(self._find_accelerators())

    async def stop(self) -> None:
        """Leave the cluster and close everything."""
        await self.services.stop()
        self.jobs.close()
        self.link_prober.stop()
        await asyncio.gather(self.membership.leave(), self.coordinator.close())
        await self.tasks.cancel()
        if self._publishing is not None:
            self._publishing.cancel()
        self._sock.close()
        await self.mdns.stop()

    def _on_failure(self, error: BaseException) -> None:
        self.events.agent_failed(error)
        self.ended.set()

    async def _tick_forever(self) -> None:
        while True:
            self.jobs.on_tick(time.monotonic())
            await asyncio.sleep(0.1)

    async def _follow_interfaces_forever(self) -> None:
        """Follow the machine to another network."""
        while True:
            await asyncio.sleep(INTERFACES_EVERY_S)
            before = self.local.addresses
            try:
                self.local.find_interfaces()
                await self._announce()
            except (RingleaderError, OSError) as exc:  # an adapter was pulled out
                self.dialer.troubles["network interfaces"] = str(exc)
            else:
                self.dialer.troubles.pop("network interfaces", None)
            if self.local.addresses != before:
                self.publish()

    async def _announce(self) -> None:
        """Announce this node on the chosen interfaces, unless multicast is off."""
        if self.config.uses_mdns:
            await self.mdns.update(self.local.chosen)
            self.identity.credentials.set_labels(*self.mdns.labels)

    async def _find_accelerators(self) -> None:
        if await asyncio.to_thread(self.local.find_accelerators):
            self.publish()

    # -- node state ----------------------------------------------------------------

    def _payload(self) -> bytes:
        return node_state.encode(
            self.local.state(
                links=self.link_prober.links,
                clock_offsets=self.clocks.monotonic,
                job_requests=self.jobs.job_requests(),
                reports=self.jobs.reports,
                ready_jobs=sorted(self.jobs.ready_jobs),
                split=self.splits.current,
                coordinator_rank=self.coordinator.rank,
                accepts_jobs=self.config.accepts_jobs,
            )
        )

    def _set_payload(self) -> None:
        self.membership.set_payload(self._payload())

    def publish(self) -> None:
        """Tell all members our node state has changed, after a short delay."""
        if self._publishing is None:
            loop = asyncio.get_running_loop()
            self._publishing = loop.call_later(PUBLISH_DELAY_S, self._publish_now)

    def _publish_now(self) -> None:
        self._publishing = None
        self.membership.publish(self._payload())

    def snapshot(self) -> Snapshot:
        """Return everything this agent knows now."""
        return self._build_snapshot(self)

    # -- connections ---------------------------------------------------------------

    async def _on_connection(self, connection: PeerConnection) -> None:
        match connection.hello.purpose:
            case Purpose.CONTROL:
                self.membership.add(connection, dialled_by_us=False)
            case Purpose.PROBE:
                await self.link_prober.answer(connection)
            case Purpose.STORE:
                await self.jobs.stores.serve(connection)
            case Purpose.ADDRESSES:
                self.directory.answer(connection)
            case Purpose.STATUS:
                framing.write(connection.writer, framing.pack(self.snapshot()))
                connection.close()
            case _:
                await self.services.serve_peer(connection)

    # -- MembershipListener ----------------------------------------------------------

    def on_view(self, view: View) -> None:
        """Update everything that depends on the view."""
        view_state = ViewState.from_view(view)
        if self.me not in view.members or self.me.node not in view_state.states:
            return
        self.view_state, states = view_state, view_state.states
        self.directory.view_state = view_state
        self.jobs.on_view_state(view_state)
        self.link_prober.on_view_state(states)
        self.services.on_members(states)
        self.events.view_installed(view, {n: s.name for n, s in states.items()})
        self.splits.on_view_state(view_state)

    def on_change(self, change: HealthChanged) -> None:
        """Record a change of a peer's health."""
        self.events.health_changed(change)

    def on_link(self, link: ControlLink) -> None:
        """Record a new control link."""
        if link.member.node == self.me.node:
            return  # our key is used twice; the membership machine decides
        peer, hello = link.connection, link.connection.hello
        self.clocks.on_link(hello)
        self._follow_paths()
        self._set_payload()  # the leader's offsets order the jobs of newcomers
        self.events.connected(peer.node, clean(hello.name), peer.address[0])

    def on_link_lost(self, member: Member) -> None:
        """Let the dialer try again."""
        self.clocks.monotonic.pop(member.node, None)
        self._follow_paths()
        self.dialer.link_lost(member.node)

    def _follow_paths(self) -> None:
        """Announce the addresses at which the others reach this node."""
        before = self.local.addresses
        self.local.paths = self.membership.links.paths()
        if self.local.addresses != before:
            self.publish()

    def on_clone(self, clone: KeyCloned) -> None:
        """Record that two machines use one key; end if this one is refused."""
        self.events.key_cloned(clone)
        if clone.refused == self.me:
            self.ended.set()

    def on_split(self, split: Split) -> None:
        """Record a split that this node noticed as the leader of one part."""
        seen = SplitSeen(self.me.node, split.leader.node, split.id.counter)
        self.splits.notice(seen)
