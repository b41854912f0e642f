"""free_ports: what was given out is not given out again before it is used."""

from __future__ import annotations

import os

import pytest

from ringleader.errors import ConfigError
from ringleader.transport import free_ports as module
from ringleader.transport.free_ports import free_ports


@pytest.fixture(autouse=True)
def _ports_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side share the usual ports, so that each has too few."""
    monkeypatch.setattr(module, "_PORTS", range(7_000, 20_000))
    monkeypatch.setattr(module, "_turns", {})


def test_calls_in_a_row_return_different_ports() -> None:
    """15 ranks in six groups met on a port once in a hundred runs."""
    found = [port for _ in range(30) for port in free_ports(10)]
    assert len(set(found)) == len(found)


def test_a_fork_and_its_parent_do_not_meet() -> None:
    ours = free_ports(100)
    source, sink = os.pipe()
    if not (child := os.fork()):
        os.write(sink, ",".join(map(str, free_ports(100))).encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as pipe:
        theirs = [int(port) for port in pipe.read().split(",")]
    os.waitpid(child, 0)
    if (child - os.getpid()) % 32:
        assert not {*ours, *free_ports(100)} & {*theirs}


def test_too_many_are_refused() -> None:
    with pytest.raises(ConfigError, match="no 1000 free ports"):
        free_ports(1000)
