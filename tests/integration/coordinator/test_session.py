"""Workers at a real coordinator, over gRPC on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ringleader.coordinator.client.channel import JobNamespace
from ringleader.coordinator.client.session import CoordinatorSession, WorkerInfo
from ringleader.coordinator.grpc_tls import TlsSource
from ringleader.coordinator.server.listen_address import ListenAddress
from ringleader.coordinator.server.server import CoordinatorServer, ServerOptions
from ringleader.deadline import Deadline
from ringleader.identity.secret_value import Secret

RED, BLUE = Secret(b"r" * 32), Secret(b"b" * 32)
WAIT_S = 30.0


@asynccontextmanager
async def coordinator(
    *,
    port: int = 0,
    timeout_s: float = 10.0,
    state: Path | None = None,
    tls: TlsSource | None = None,
) -> AsyncIterator[CoordinatorServer]:
    listen = ListenAddress("127.0.0.1", port)
    options = ServerOptions(
        listen=listen, heartbeat_timeout_s=timeout_s, state=state, tls=tls
    )
    server = CoordinatorServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def session(
    server: CoordinatorServer,
    worker_id: str,
    key: Secret[bytes] = RED,
    *,
    job: str = "",
    tls: TlsSource | None = None,
) -> CoordinatorSession:
    worker = WorkerInfo(
        namespace=JobNamespace(key, job), worker_id=worker_id, addresses=("10.0.0.1:1",)
    )
    return CoordinatorSession(f"127.0.0.1:{server.port}", worker, tls=tls)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = Deadline.after(WAIT_S)
    while not is_so():
        assert not deadline.is_over()
        await asyncio.sleep(0.01)


def names(of: CoordinatorSession) -> dict[int, str]:
    return {rank: peer.worker_id for rank, peer in of.peers.items()}


def test_every_worker_learns_of_all_others_by_rank() -> None:
    """ZF-8: the first worker knows those that came later, also after departures."""

    async def scenario() -> None:
        async with coordinator() as server:
            workers = [session(server, name) for name in "abc"]
            for rank, each in enumerate(workers):
                assert await each.start(Deadline.after(WAIT_S)) == rank
            everybody = {0: "a", 1: "b", 2: "c"}
            await until(lambda: all(names(each) == everybody for each in workers))
            await workers[1].close()
            others = {0: "a", 2: "c"}
            await until(lambda: names(workers[0]) == names(workers[2]) == others)
            late = session(server, "d")
            assert await late.start(Deadline.after(WAIT_S)) == 1
            await until(lambda: names(workers[0]) == {0: "a", 1: "d", 2: "c"})
            for each in (workers[0], workers[2], late):
                await each.close()
            await late.close()  # twice

    asyncio.run(scenario())
