"""An agent's link to a real coordinator, while the network of its machine changes."""

from __future__ import annotations

import asyncio

import pytest

from ringleader.coordinator.server.listen_address import ListenAddress
from ringleader.coordinator.server.server import CoordinatorServer, ServerOptions
from ringleader.deadline import Deadline
from ringleader.identity.secret_value import Secret
from ringleader.node.peering import coordinator_link
from ringleader.node.peering.coordinator_link import CoordinatorLink
from ringleader.node.peering.peer_connection import Address


def link(port: int, worker_id: str, addresses: list[Address]) -> CoordinatorLink:
    return CoordinatorLink(
        address=f"127.0.0.1:{port}",
        worker_id=worker_id,
        key=Secret(b"r" * 32),
        tls=None,
        addresses=lambda _: list(addresses),
        on_rank=lambda: None,
        on_event=lambda _: None,
    )


def test_a_link_follows_the_addresses_of_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without an address registers when it has one. One that loses all of
    them, or has some that the coordinator refuses, stays registered, and its agent
    goes on: the agent ends when a task of it fails."""
    monkeypatch.setattr(coordinator_link, "RETRY_S", 0.02)

    async def scenario() -> None:
        listen = ListenAddress("127.0.0.1", 0)
        server = CoordinatorServer(ServerOptions(listen=listen))
        await server.start()
        mine: list[Address] = []
        links = [link(server.port, "a", mine), link(server.port, "b", [("::1", 9)])]
        tasks = [asyncio.create_task(each.run()) for each in links]

        async def until_b_sees(*addresses: Address) -> None:
            deadline = Deadline.after(60)
            while links[1].others.get("a", []) != list(addresses):
                assert not deadline.is_over(), links[1].others
                await asyncio.sleep(0.01)

        deadline = Deadline.after(60)
        while "addresses are missing" not in links[0].trouble:
            assert not deadline.is_over(), links[0].trouble
            await asyncio.sleep(0.01)
        for found in ("127.0.0.1", "127.0.0.2"):
            mine[:] = [(found, 1)]
            await until_b_sees((found, 1))
        for useless in ([], [("no host", 1)]):
            mine[:] = useless
            await asyncio.sleep(0.1)
            await until_b_sees(("127.0.0.2", 1))
        assert not any(task.done() for task in tasks)
        await links[0].close()
        await until_b_sees()
        await links[1].close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 500))
