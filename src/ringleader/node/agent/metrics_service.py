"""The service ``metrics``: numbers of this agent and of the workers of its machine.

The answer is one message per process (``ProcessValues``), the agent first, and an empty
one at the end. Processes of this user and other members of the cluster may ask.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from ringleader.membership.member import View
from ringleader.metrics import catalog
from ringleader.metrics.process_values import ProcessValues
from ringleader.metrics.registry import Tally
from ringleader.metrics.worker_files import read_files
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.node.peering.metrics_query import METRICS
from ringleader.node.protocol.agent_config import metrics_directory


def install(core: AgentCore) -> None:
    """Register the service at an agent, and count what happens to its cluster."""
    folder = metrics_directory(Path(core.config.home))
    agent = AgentMetrics(core)
    core.events.view_followers.append(agent.on_view)
    core.metrics.add_source(agent.collect)

    async def serve(stream: ServiceStream) -> None:
        workers = await asyncio.to_thread(read_files, folder)
        core.metrics.set(catalog.WORKERS, len(workers))
        for each in (_of_agent(core), *workers):
            await stream.send_body(each.encode())
        await stream.send_body(b"")

    core.services.register(METRICS, serve)


def _of_agent(core: AgentCore) -> ProcessValues:
    labels = {"process": "agent", "node": core.local.name, "pid": str(os.getpid())}
    return ProcessValues(labels, core.metrics.snapshot())


class AgentMetrics:
    """What an agent tells about its cluster. Lives on the event loop of the agent."""

    def __init__(self, core: AgentCore) -> None:
        self._core = core
        self._num_views = self._num_elections = 0
        self._leader = ""
        self._role = "alone"
        self._role_since_s = time.monotonic()
        self._role_s = {"leader": 0.0, "follower": 0.0, "alone": 0.0}

    def on_view(self, view: View) -> None:
        """Count a view that was installed."""
        self._num_views += 1
        if view.id.leader != self._leader:
            self._leader = view.id.leader
            self._num_elections += 1
        self._end_role(time.monotonic())
        is_leader = view.id.leader == self._core.me.node
        self._role = "leader" if is_leader else "follower"
        if len(view.members) == 1:
            self._role = "alone"

    def _end_role(self, now_s: float) -> None:
        self._role_s[self._role] += now_s - self._role_since_s
        self._role_since_s = now_s

    def collect(self, tally: Tally) -> None:
        """See ``registry.Source``."""
        now_s = time.monotonic()
        self._end_role(now_s)
        for role, seconds in self._role_s.items():
            tally.add(catalog.ROLE_SECONDS, seconds, role)
        view = self._core.membership.machine.view
        is_leader = view is not None and view.id.leader == self._core.me.node
        tally.put(catalog.IS_LEADER, is_leader)
        tally.put(catalog.VIEW_EPOCH, view.id.counter if view else 0)
        tally.put(catalog.VIEW_MEMBERS, len(view.members) if view else 1)
        tally.add(catalog.VIEWS, self._num_views)
        tally.add(catalog.ELECTIONS, self._num_elections)
        self._collect_links(tally)
        self._collect_peers(tally, now_s)
        self._collect_jobs(tally)

    def _collect_links(self, tally: Tally) -> None:
        links = self._core.membership.links
        tally.add(catalog.PEER_LINKS, links.num_opened, "up")
        tally.add(catalog.PEER_LINKS, links.num_lost, "down")
        tally.add(catalog.AGENT_SENT_BYTES, links.sent_bytes)
        tally.add(catalog.AGENT_RECEIVED_BYTES, links.received_bytes)
        tally.add(catalog.STRANGERS, self._core.acceptor.num_rejected)

    def _collect_peers(self, tally: Tally, now_s: float) -> None:
        health = self._core.membership.machine.health
        summary = health.summary()
        for state in ("healthy", "suspect", "dead", "unknown"):
            tally.put(catalog.PEERS, getattr(summary, state), state)
        for peer in health.peers:
            name = self._core.events.title(peer.member.node)
            tally.add(catalog.PEER_HEARD, peer.num_heard, name)
            tally.add(catalog.PEER_MISSED, peer.num_missed, name)
            if peer.latency_avg_s is not None:
                tally.put(catalog.PEER_LATENCY, peer.latency_avg_s, name)
            if peer.last_heard_s is not None:
                tally.put(catalog.PEER_SILENCE, now_s - peer.last_heard_s, name)

    def _collect_jobs(self, tally: Tally) -> None:
        requests = self._core.jobs.job_requests()
        running = sum(bool(request.round) for request in requests)
        tally.put(catalog.JOBS, running, "running")
        tally.put(catalog.JOBS, len(requests) - running, "waiting")
        tally.add(catalog.ROUNDS, self._core.jobs.num_rounds)
