"""A dashboard of a simulated cluster, on a real port, in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ringleader.dashboard.access import Access
from ringleader.dashboard.page_state import State
from ringleader.dashboard.server import DashboardServer, Sources
from ringleader.transport.listening_socket import listen

PATIENCE_S = 60.0


@dataclass(slots=True)
class SimulatedDashboard:
    """What the server shows; tests change it from their thread."""

    state: State
    url: str = ""
    stopped: list[str] = field(default_factory=list)
    access: Access = field(default_factory=Access)
    server: DashboardServer | None = None

    async def current(self) -> State:
        """Return the state."""
        return self.state

    async def log_tail(self, job: str, rank: int) -> str:
        """Return a line."""
        return f"rank {rank} of {job}: step 7 <b>done</b>"

    async def stop_job(self, job: str) -> str:
        """Note that a job was stopped."""
        self.stopped.append(job)
        return f"job {job} stops"

    async def run(self, opened: Future[None], end: asyncio.Event) -> None:
        """Serve until ``end``."""
        sock = listen("127.0.0.1", 0)
        origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
        sources = Sources(self.current, self.log_tail, self.stop_job)
        server = DashboardServer(self.access, sources, lambda: frozenset({origin}), 0.1)
        self.server = server
        await server.listen(sock)
        token = self.access.issue_link(time.monotonic())
        self.url = f"{origin}/#token={token}"
        opened.set_result(None)
        await end.wait()
        await server.close()


@contextmanager
def simulated_dashboard(state: State) -> Iterator[SimulatedDashboard]:
    """Serve ``state``."""
    made = SimulatedDashboard(state)
    opened: Future[None] = Future()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(made.run(opened, end),), name="dashboard"
    )
    thread.start()
    try:
        opened.result(PATIENCE_S)
        yield made
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE_S)
        loop.close()
