"""Connections wait cheaply, and addresses take turns."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ringleader.paramserver.server.http import waiting_connections
from ringleader.paramserver.server.http.connection_limits import (
    ConnectionAcceptor,
    LimitedProtocol,
)
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


@pytest.mark.parametrize(
    ("arrivals", "turns"),
    [("222339", "923232"), ("99992233", "92939293"), ("9999", "9999")],
)
def test_addresses_take_turns_and_those_of_workers_get_every_second(
    arrivals: str, turns: str
) -> None:
    async def go() -> list[str]:
        with ExitStack() as stack, waiting_on(stack, 300.0) as waiting:
            waiting.prefer("127.0.0.9")
            for number, last in enumerate(arrivals, 1):
                line = stack.enter_context(
                    socket.create_connection(
                        waiting._listener.getsockname(),
                        source_address=(f"127.0.0.{last}", 0),
                    )
                )
                line.sendall(b"x")
                async with asyncio.timeout(120):
                    while waiting._num_ready < number:
                        await asyncio.to_thread(time.sleep, 0.001)
            order = []
            for _ in arrivals:
                sock, host = await waiting.next()
                sock.close()
                order.append(host[-1])
            return order

    assert "".join(asyncio.run(go())) == turns


def test_an_address_is_preferred_only_while_one_of_its_workers_takes_part() -> None:
    def connection(acceptor: ConnectionAcceptor, host: str) -> LimitedProtocol:
        made = LimitedProtocol.__new__(LimitedProtocol)
        made.host, made.acceptor = host, acceptor
        acceptor.add(made)
        return made

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = ConnectionAcceptor(listener, LimitedProtocol, None)  # type: ignore[arg-type]
        known = acceptor._waiting._known
        home, again, other = (connection(acceptor, "home") for _ in range(3))
        away = connection(acceptor, "away")
        for protocol, worker in ((home, "w1"), (again, "w1"), (away, "w1")):
            acceptor.protect(protocol, worker)
        acceptor.protect(other, "w2")
        acceptor.unprotect(home, "w1")
        assert [p.worker for p in (home, again, away, other)] == [None] * 3 + ["w2"]
        assert list(known) == ["home"], "w2 is there"
        acceptor.unprotect(other, "w2")
        assert not known


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
