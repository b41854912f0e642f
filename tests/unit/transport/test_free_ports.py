"""free_ports: what was given out is not given out again before it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ringleader.errors import ConfigError
from ringleader.transport import free_ports as module
from ringleader.transport.free_ports import free_ports


@pytest.fixture(autouse=True)
def _ports_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests that run side by side share the usual ports, so that each has too few."""
    held = list[int]()
    monkeypatch.setattr(module, "_PORTS", range(7_000, 20_000))
    monkeypatch.setattr(module, "_turns", {})
    monkeypatch.setattr(module, "_held", held)
    yield
    for each in held:
        os.close(each)


def test_calls_in_a_row_return_different_ports() -> None:
    """15 ranks in six groups met on a port once in a hundred runs."""
    found = [port for _ in range(30) for port in free_ports(10)]
    assert len(set(found)) == len(found)


def test_eight_processes_with_any_ids_do_not_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts that ids choose are shared: here all eight have the same one."""
    pids = iter(range(10**6))
    monkeypatch.setattr(os, "getpid", lambda: 32 * next(pids))
    found = [*free_ports(100)]
    end_read, end = os.pipe()
    pipes, children = [], []
    for _ in range(7):
        source, sink = os.pipe()
        if not (child := os.fork()):
            os.close(end)
            os.write(sink, ",".join(map(str, free_ports(100))).encode())
            os.close(sink)
            os.read(end_read, 1)  # until the others have theirs
            os._exit(0)
        os.close(sink)
        pipes.append(source)
        children.append(child)
    for source in pipes:
        with os.fdopen(source) as pipe:
            found += [int(port) for port in pipe.read().split(",")]
    os.close(end)
    os.close(end_read)
    for child in children:
        os.waitpid(child, 0)
    assert len(set(found)) == len(found) == 800


def test_too_many_are_refused() -> None:
    with pytest.raises(ConfigError, match="no 1000 free ports"):
        free_ports(1000)
