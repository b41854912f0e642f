"""Connections wait cheaply, and addresses take turns."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ringleader.paramserver.server.http import waiting_connections
from ringleader.paramserver.server.http.waiting_connections import (
    Pace,
    WaitingConnections,
)


def test_a_pace_grants_a_burst_and_then_its_rate() -> None:
    pace = Pace(10.0, burst=3.0)
    assert [pace.wait_s(100.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert pace.wait_s(100.0) == pytest.approx(0.1)
    assert pace.wait_s(100.11) == 0.0
    assert pace.wait_s(100.11) > 0.0


@contextmanager
def waiting_on(stack: ExitStack, silent_s: float) -> Iterator[WaitingConnections]:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    waiting = WaitingConnections(listener, silent_s)
    waiting.start()
    try:
        yield waiting
    finally:
        waiting.close()


def test_addresses_take_turns_and_those_of_workers_are_first() -> None:
    async def go() -> list[str]:
        with ExitStack() as stack, waiting_on(stack, 10.0) as waiting:
            waiting.prefer("127.0.0.9")
            for last in (2, 2, 2, 3, 3, 9):
                line = stack.enter_context(
                    socket.create_connection(
                        waiting._listener.getsockname(),
                        source_address=(f"127.0.0.{last}", 0),
                    )
                )
                line.sendall(b"x")
                async with asyncio.timeout(20):
                    while not waiting._ready.get(f"127.0.0.{last}") or waiting._silent:
                        await asyncio.to_thread(time.sleep, 0.001)
            order = []
            for _ in range(6):
                sock, host = await waiting.next()
                sock.close()
                order.append(host[-1])
            return order

    assert asyncio.run(go()) == ["9", "2", "3", "2", "3", "2"]


def test_silent_connections_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_connections, "MAX_SILENT", 3)

    async def go() -> None:
        with ExitStack() as stack, waiting_on(stack, 0.3) as waiting:
            lines = [
                stack.enter_context(
                    socket.create_connection(waiting._listener.getsockname(), 20)
                )
                for _ in range(5)
            ]
            for line in lines[:2]:
                assert await asyncio.to_thread(line.recv, 1) == b"", "the oldest"
            assert len(waiting._silent) <= 3
            for line in lines[2:]:
                assert await asyncio.to_thread(line.recv, 1) == b"", "in time"
            assert not waiting._silent

    asyncio.run(go())
