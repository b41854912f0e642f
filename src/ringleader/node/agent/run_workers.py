"""``RunWorkers``: the workers of this node's jobs that survive lost machines.

A worker tells its agent where it listens, and the agent tells it of the workers on the
other machines. The agent watches the process: its end is proof for the others that this
life of the worker does nothing any more, which a broken connection is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.node.agent.job import Job
from ringleader.node.agent.jobs import Jobs
from ringleader.node.agent.process_watch import wait_for_end
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol.local_requests import FollowRun
from ringleader.node.protocol.node_addresses import can_dial
from ringleader.node.protocol.node_state import NodeState, RunWorker
from ringleader.node.protocol.run_peers import RunPeer, RunPeers


class RunWorkers:
    """Serves workers of surviving jobs. Lives on the event loop of the agent."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._watches: set[asyncio.Task[None]] = set()

    async def follow(
        self, request: FollowRun, send: Callable[[RunPeers], None]
    ) -> None:
        """Publish a worker and tell it of the others until it closes the connection."""
        job = self._jobs.get(request.job)
        if job is None or not job.request.survives:
            text = "this machine runs no such job with --survive"
            raise ConfigError(f"job {request.job}: {text}")
        worker = RunWorker(
            request.job, request.started_ms, request.incarnation, request.port
        )
        job.can_return = request.can_return
        is_first = self._jobs.reports.is_first_worker(request.job)
        self._jobs.reports.add_worker(worker)
        self._watch(worker, request.pid)
        told: RunPeers | None = None
        while True:
            changed = self._jobs.view_changed
            found = self._find(job, is_first=is_first)
            if found != told:
                send(found)
                told = found
            await changed.wait()

    def _find(self, job: Job, *, is_first: bool) -> RunPeers:
        view = self._jobs.view_state
        if view is None:
            return RunPeers(is_joiner=not is_first)
        found = find_peers(job, view, self._jobs.mine)
        if is_first:
            return found
        return msgspec.structs.replace(found, expected=1, is_joiner=True)

    def _watch(self, worker: RunWorker, pid: int) -> None:
        async def watch() -> None:
            await wait_for_end(pid)
            self._jobs.reports.end_worker(worker)

        task = asyncio.create_task(watch(), name=f"watch worker {pid}")
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)


def find_peers(job: Job, view: ViewState, mine: NodeId) -> RunPeers:
    """Return the workers of ``job`` on other machines, as ``view`` shows them. Pure."""
    name, names = job.request.job, view.names()
    others = [
        _peer(node, state, worker, names[node])
        for node, state in view.states.items()
        if node != mine
        for worker in state.workers
        if worker.job == name
    ]
    requests = view.requests_for(name)
    partners = {node for node in job.participants if node != mine}
    at_work = {node for node in partners if node in requests} - job.done
    chosen = job.round
    is_joined = chosen is not None and chosen.is_joined
    return RunPeers(
        others=others,
        expected=len(chosen.nodes) if chosen is not None else 1,
        is_joiner=is_joined,
        is_over=bool(partners & job.done) and not at_work,
    )


def _peer(node: NodeId, state: NodeState, worker: RunWorker, name: str) -> RunPeer:
    addresses = [(each, worker.port) for each in state.addresses if can_dial(each)]
    return RunPeer(worker.member(node), addresses, name, worker.has_ended)
