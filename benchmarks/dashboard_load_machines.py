"""Many simulated machines in one process, for ``dashboard_load.py``.

Each is a member of the cluster: it has a key, a port, a control link to the leader and
a place in the view, and it offers the services that a dashboard asks. Simulated are its
hardware, its links to other machines (it says that it hears them), its load and the
jobs that it runs. Fifty whole agents would need more than the cores of a small machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ringleader.errors import PeerError, PeerLost
from ringleader.ids import NodeId
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import PURPOSE as JOBS
from ringleader.jobs.protocol.messages import JobList
from ringleader.membership import messages
from ringleader.membership.member import NO_VIEW, Member, ViewId
from ringleader.membership.messages import (
    Ack,
    Commit,
    Heartbeat,
    Message,
    Propose,
    Report,
    Status,
)
from ringleader.monitoring.machine_feed import (
    FEED_EVERY_S,
    FeedPoint,
    MachineFeed,
    RankFeed,
    TrafficFeed,
)
from ringleader.monitoring.messages import MACHINE
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.job_reports import JobReports
from ringleader.node.agent.local_node import LocalNode
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.peering.acceptor import Acceptor, listen_for_agents
from ringleader.node.peering.connect import connect_control
from ringleader.node.peering.membership_profiles import membership_config
from ringleader.node.peering.peer_connection import HandshakeContext, PeerConnection
from ringleader.node.protocol import framing, node_state
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.node_state import NodeState
from ringleader.topology.interface_kind import InterfaceKind
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.machine_load import MachineLoad
from ringleader.topology.node_profile import Accelerator, NodeProfile

STEP_S = 0.25
HISTORY = 160
"""Points that a machine tells when it is first asked."""
VIEW_EVERY_S = 10.0
"""A machine measures a link again so often, which makes a new view."""
JOIN_S = 60.0


@dataclass(slots=True)
class SimulatedNode(LocalNode):
    """A machine that tells others of hardware and links which it does not have."""

    measured: dict[NodeId, LinkProfile] = field(default_factory=dict)

    def state(self, **facts: Any) -> NodeState:  # noqa: ANN401 - as the base class
        """Return the state to publish."""
        made = LocalNode.state(self, **facts)
        host = hashlib.sha256(self.member.node.encode()).hexdigest()
        host = host[: len(made.host)]
        return msgspec.structs.replace(made, host=host, links=self.measured)


def profile(like: NodeProfile, number: int) -> NodeProfile:
    """Return the hardware of a machine."""
    gpu = Accelerator(f"GeForce RTX {3000 + 10 * number}", "cuda", 24 << 30)
    return msgspec.structs.replace(
        like, host=f"machine-{number}", chip="Ryzen 7", accelerators=(gpu,)
    )


def link(one: NodeId, other: NodeId, moment: int) -> LinkProfile:
    """Return the link from one machine to another."""
    seed = hashlib.sha256(f"{one} {other} {moment}".encode()).digest()
    return LinkProfile(
        latency_s=1e-4 * (1 + seed[0] % 40) + seed[3] * 1e-9,
        out_bytes_per_s=1e6 * (1 + seed[1]) + seed[4],
        in_bytes_per_s=1e6 * (1 + seed[2]) + seed[5],
        kind=InterfaceKind.WIFI if seed[0] % 2 else InterfaceKind.ETHERNET,
    )


@dataclass(slots=True)
class Follower:
    """A member that follows the leader and agrees to all of its views."""

    me: Member
    leader: Member
    connection: PeerConnection
    refreshes: int = 0
    """How often it asked for a new view, because its payload has changed."""
    _view: ViewId = NO_VIEW
    _promised: ViewId = NO_VIEW
    _num_members: int = 0
    _number: int = 0
    _echo_us: int = 0
    _echo_at_s: float = 0.0

    async def beat(self, hears: Callable[[], tuple[Member, ...]]) -> None:
        """Send heartbeats for ever."""
        every_s = membership_config("wifi").heartbeat_s
        while True:
            self._number += 1
            now_s = time.monotonic()
            held_us = int((now_s - self._echo_at_s) * 1e6) if self._echo_us else 0
            report = Report(
                self._view,
                self._promised,
                self._num_members,
                self.leader,
                hears(),
                (),
                (),
                (),
                self.refreshes,
            )
            now_us = int(now_s * 1e6) + 1
            beat = (self._number, now_us, self._echo_us, held_us, 0, report)
            self._send(Heartbeat(*beat))
            await asyncio.sleep(every_s)

    async def answer(self, payload: Callable[[], bytes]) -> None:
        """Answer the leader's messages for ever."""
        while True:
            body = await framing.read(self.connection.reader, "the leader")
            match messages.decode(body, self.leader):
                case Heartbeat(sent_us=sent_us):
                    self._echo_us, self._echo_at_s = sent_us, time.monotonic()
                case Propose(id=name):
                    self._promised = name
                    self._send(Status(name, payload(), self.refreshes))
                case Commit(view=view):
                    self._view = self._promised = view.id
                    self._num_members = len(view.members)
                    self._send(Ack(view.id))

    def _send(self, message: Message) -> None:
        body = framing.frame(messages.encode(message))
        self.connection.writer.write(body)


@dataclass(slots=True)
class Machine:
    """One simulated machine."""

    number: int
    local: SimulatedNode
    handshake: HandshakeContext
    job: JobRecord
    rank: int

    async def tell_jobs(self, stream: ServiceStream) -> None:
        """Answer a request for the list of jobs."""
        await stream.read()
        await stream.send(JobList([self.job]))

    async def tell_load(self, stream: ServiceStream) -> None:
        """Send load, numbers and traffic until the client goes."""
        step = int(time.time() / STEP_S)
        first = step - HISTORY
        while True:
            await stream.send(self.feed(first, step))
            await asyncio.sleep(FEED_EVERY_S)
            first, step = step, int(time.time() / STEP_S)

    def feed(self, first: int, last: int) -> MachineFeed:
        """Return what the machine tells after the steps from ``first`` to ``last``."""
        busy = 50 + 49 * math.sin(last / 8 + self.number)
        load = MachineLoad(
            cpu_percent=round(busy),
            memory_used_bytes=int((20 + busy / 10) * 2**30),
            memory_total_bytes=64 << 30,
            temperature_c=round(50 + busy / 4),
            battery_percent=80.0 if self.number % 5 == 0 else None,
            gpu_percent=round(busy),
            gpu_temperature_c=round(40 + busy / 3),
        )
        points = [self._point(step) for step in range(first, last)]
        job = self.job.spec.id
        traffic = TrafficFeed(job, self.rank, 1e7 + 1e5 * busy, 0, busy / 100, 3.9)
        return MachineFeed(load, [RankFeed(job, self.rank, points)], [traffic])

    def _point(self, step: int) -> FeedPoint:
        wave = math.sin(step / 50 + self.number)
        values: dict[str, float | None] = {
            "loss": 2 + wave,
            "accuracy": 0.5 + wave / 7,
            "gradient norm": 1.5 + wave * wave,
            "lr": 0.1 / (1 + step % 1000),
        }
        return FeedPoint(step * STEP_S, step, STEP_S * (1 + wave / 9), values)

    async def serve(self, connection: PeerConnection) -> None:
        """Be the service that another member asks for."""
        services = {MACHINE: self.tell_load, JOBS: self.tell_jobs}
        hello = connection.hello
        stream = ServiceStream(
            connection.node, "here", "", connection.reader, connection.writer
        )
        try:
            if hello.purpose in services:
                await services[hello.purpose](stream)
        except PeerLost:
            pass  # the dashboard was closed
        finally:
            connection.close()

    async def join(self, port: int) -> Follower:
        """Link to the leader."""
        until_s = time.monotonic() + JOIN_S
        while True:
            try:
                made = await connect_control(self.handshake, [("127.0.0.1", port)])
            except PeerError:  # it takes few handshakes of one address at a time
                assert time.monotonic() < until_s
                await asyncio.sleep(0.5)
                continue
            hello = made.hello
            leader = Member(hello.started_ms, made.node, hello.incarnation)
            return Follower(self.local.member, leader, made)

    def payload(self) -> bytes:
        """Return the state that the machine publishes."""
        offsets = dict.fromkeys(self.local.measured, 0.001 * self.number)
        return node_state.encode(
            self.local.state(
                links={},
                clock_offsets=offsets,
                job_requests=[],
                reports=JobReports(lambda: None),
                ready_jobs=[],
                split=None,
                coordinator_rank=-1,
                accepts_jobs=True,
            )
        )

    async def measure_again(self, follower: Follower) -> None:
        """Measure one link after the other again, as a real machine does."""
        node, others = self.local.member.node, list(self.local.measured)
        moment = 0
        while True:
            await asyncio.sleep(VIEW_EVERY_S)
            moment += 1
            other = others[moment % len(others)]
            self.local.measured[other] = link(node, other, moment)
            follower.refreshes += 1


def make_machine(
    number: int, home: Path, identity: AgentIdentity, job: JobSpec, rank: int
) -> tuple[Machine, Acceptor]:
    """Return a machine that listens, and who accepts its connections."""
    config = AgentConfig(home=str(home), name=f"machine {number}", interfaces=["lo"])
    sock = listen_for_agents(0)
    port = sock.getsockname()[1]
    real = LocalNode.measure(identity.node, config, port)
    local = SimulatedNode(
        real.member, real.name, profile(real.profile, number), port, ["lo"]
    )
    local.find_interfaces()
    record = JobRecord(
        spec=job, machine=config.name, state=JobState.RUNNING, created_s=1.7e9
    )
    handshake = HandshakeContext(identity.credentials, local.hello)
    machine = Machine(number, local, handshake, record, rank)
    return machine, Acceptor(handshake, sock, machine.serve)


async def simulate(homes: list[Path], port: int, num_jobs: int) -> None:
    """Run a machine for each home; the leader is the agent at ``port``."""
    with ExitStack() as stack:
        claimed = [stack.enter_context(AgentIdentity.claim(str(h))) for h in homes]
        nodes = [each.node for each in claimed]
        jobs = _jobs(nodes, num_jobs)
        up: list[Member] = []
        async with asyncio.TaskGroup() as group:
            for number, identity in enumerate(claimed):
                job, rank = jobs[number % num_jobs], number // num_jobs
                machine, acceptor = make_machine(
                    number, homes[number], identity, job, rank
                )
                group.create_task(acceptor.serve())
                follower = await machine.join(port)
                me, leader = follower.me, follower.leader
                machine.local.measured = {
                    other: link(me.node, other, 0)
                    for other in (leader.node, *nodes)
                    if other != me.node
                }
                up.append(me)

                def hears(follower: Follower = follower) -> tuple[Member, ...]:
                    found = {*up, follower.leader} - {follower.me}
                    return tuple(sorted(found))

                group.create_task(follower.beat(hears))
                group.create_task(follower.answer(machine.payload))
                if number == 0:
                    group.create_task(machine.measure_again(follower))


def _jobs(nodes: list[NodeId], num_jobs: int) -> list[JobSpec]:
    """Return jobs that share the machines evenly."""
    return [
        JobSpec(
            id=f"job-{job}",
            script=f"train_{job}.py",
            machines=[
                JobMachine(node, f"machine {number}")
                for number, node in enumerate(nodes)
                if number % num_jobs == job
            ],
        )
        for job in range(num_jobs)
    ]


def main() -> None:
    """Run ``dashboard_load_machines.py PORT JOBS HOME...``."""
    port, num_jobs, *homes = sys.argv[1:]
    asyncio.run(simulate([Path(each) for each in homes], int(port), int(num_jobs)))


if __name__ == "__main__":
    main()
