"""``ClusterMonitor``: the state of the page, kept current while somebody looks."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec

from ringleader.dashboard.job_rows import JobNumbers, job_rows
from ringleader.dashboard.page_state import State, machine_names, page_state
from ringleader.errors import RingleaderError
from ringleader.ids import NodeId
from ringleader.monitoring.job_watch import JobWatch, summary_rows
from ringleader.monitoring.machine_feed import (
    FEED_EVERY_S,
    MAX_FEED_BYTES,
    FeedReader,
    MachineFeed,
    decode_feed,
)
from ringleader.monitoring.messages import MACHINE
from ringleader.node.agent.agent_core import AgentCore

WATCHED_S = 20.0
"""Other members are followed so long after somebody looked."""
FRESH_S = 0.5
"""Pages that ask within this time get the same state."""
DIAL_S = 10.0
SILENT_S = 30.0
RETRY_S = 3.0
JOBS_EVERY_S = 3.0
_JOBS = "list of jobs"
"""Key of the task that lists jobs, among those that follow nodes."""


class ClusterMonitor:
    """Collects load and numbers of all members. Lives on the agent's event loop."""

    def __init__(self, core: AgentCore) -> None:
        self._core = core
        self._home = Path(core.config.home)
        self._feeds: dict[str, MachineFeed] = {}
        self._numbers: dict[str, JobNumbers] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.job_watch = JobWatch(core)
        self._asked_s = 0.0
        self._state: State = {}
        self._built_s = float("-inf")
        self._building = asyncio.Lock()

    async def state(self) -> State:
        """Return the state of the page; it is at most half a second old.

        It is built in steps, between which other work goes on.
        """
        self._asked_s = time.monotonic()
        async with self._building:
            if self._asked_s - self._built_s > FRESH_S:
                self._built_s = self._asked_s
                snapshot = self._core.snapshot()
                self._follow_members(snapshot.ring)
                await asyncio.sleep(0)
                plain = snapshot.plain()
                await asyncio.sleep(0)
                self._state = self._build(plain)
        await asyncio.sleep(0)
        return self._state

    async def stop(self) -> None:
        """Stop to follow the other members."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _build(self, snapshot: dict[str, Any]) -> State:
        rows: list[dict[str, Any]] = snapshot["nodes"]
        loads = {n: msgspec.to_builtins(f.load) for n, f in self._feeds.items()}
        jobs = self._job_rows(rows)
        known = {job["id"] for job in jobs}
        self._numbers = {j: n for j, n in self._numbers.items() if j in known}
        return page_state(snapshot, loads, jobs)

    def _job_rows(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return jobs that one command started, then those typed on every machine."""
        names = machine_names(nodes)
        found = summary_rows(self.job_watch.summaries, self._numbers, names)
        known = {job["id"] for job in found}
        others = job_rows(nodes, self._numbers)
        return found + [job for job in others if job["id"] not in known]

    def _follow_members(self, ring: list[str]) -> None:
        here = str(self._core.me.node)
        members = {*ring, here}
        if _JOBS not in self._tasks:
            self._tasks[_JOBS] = asyncio.create_task(self._list_jobs(), name=_JOBS)
        for node in members - self._tasks.keys():
            work = self._measure_here() if node == here else self._follow(NodeId(node))
            self._tasks[node] = asyncio.create_task(work, name=f"load of {node[:8]}")
        for node in self._tasks.keys() - members - {_JOBS}:
            self._tasks.pop(node).cancel()
            self._feeds.pop(node, None)

    def _is_watched(self) -> bool:
        return time.monotonic() - self._asked_s < WATCHED_S

    async def _list_jobs(self) -> None:
        while self._is_watched():
            await self.job_watch.refresh()
            await asyncio.sleep(JOBS_EVERY_S)
        self._end(_JOBS)

    async def _measure_here(self) -> None:
        node = str(self._core.me.node)
        reader = FeedReader(self._home)
        while self._is_watched():
            self._take(node, await asyncio.to_thread(reader.read))
            await asyncio.sleep(FEED_EVERY_S)
        self._end(node)

    async def _follow(self, node: NodeId) -> None:
        while self._is_watched():
            try:
                await self._follow_once(node)
            except (RingleaderError, TimeoutError, OSError):
                self._feeds.pop(node, None)  # the page shows no load
            await asyncio.sleep(RETRY_S)
        self._end(node)

    async def _follow_once(self, node: NodeId) -> None:
        async with asyncio.timeout(DIAL_S):
            stream = await self._core.services.dial(node, MACHINE)
        try:
            while self._is_watched():
                async with asyncio.timeout(SILENT_S):
                    body = await stream.read(MAX_FEED_BYTES)
                self._take(node, decode_feed(body, stream.who))
        finally:
            stream.close()

    def _take(self, node: str, feed: MachineFeed) -> None:
        self._feeds[node] = feed
        for each in feed.ranks:
            numbers = self._numbers.setdefault(each.job, JobNumbers())
            numbers.add(node, each.rank, [point.point() for point in each.points])
        for sent in feed.traffic:
            numbers = self._numbers.setdefault(sent.job, JobNumbers())
            numbers.traffic[sent.rank] = (node, sent.traffic())

    def _end(self, node: str) -> None:
        self._tasks.pop(node, None)
        self._feeds.pop(node, None)
