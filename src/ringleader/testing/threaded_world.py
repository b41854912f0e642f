"""Groups of several ranks inside one process, for tests and for trying things out.

Real groups over real links: only the processes are missing. Each rank is driven by a
thread of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded
from ringleader.groups.formation import group as form_group
from ringleader.groups.group import Group
from ringleader.transport import memory_link
from ringleader.transport.free_ports import free_ports
from ringleader.transport.link import Link
from ringleader.transport.mesh import Mesh

T = TypeVar("T")
FORM_S = 30.0


class Hub:
    """Makes socketpairs between the threads of one process as ranks ask for them."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._meshes: dict[str, dict[int, Mesh]] = {}

    def connector(self, rank: int) -> Callable[[Sequence[int], str, Deadline], Mesh]:
        """How the group of ``rank`` connects its sub-groups."""

        def connect(ranks: Sequence[int], view_id: str, deadline: Deadline) -> Mesh:
            return self.connect(list(ranks), rank, view_id, deadline)

        return connect

    def connect(
        self, ranks: list[int], rank: int, view_id: str, deadline: Deadline
    ) -> Mesh:
        """The mesh of ``rank`` in the group ``view_id``; made by whoever asks first."""
        with self._lock:
            if view_id not in self._meshes:
                made = memory_meshes(len(ranks))
                self._meshes[view_id] = dict(zip(ranks, made, strict=True))
                self._lock.notify_all()
            if deadline.is_over():
                raise DeadlineExceeded("the others", "did not form the group")
            return self._meshes[view_id].pop(rank)

    def close(self) -> None:
        """Close what nobody fetched."""
        for meshes in self._meshes.values():
            for mesh in meshes.values():
                mesh.close()


def memory_meshes(size: int) -> list[Mesh]:
    """One mesh per rank, connected by socketpairs."""
    meshes = [Mesh() for _ in range(size)]
    for a in range(size):
        for b in range(a + 1, size):
            link_a: Link
            link_b: Link
            link_a, link_b = memory_link.memory_link_pair(a, b)
            meshes[a].bulk[b], meshes[b].bulk[a] = link_a, link_b
            meshes[a].control[b], meshes[b].control[a] = memory_link.socket_pair()
    return meshes


@contextlib.contextmanager
def world(
    size: int, transport: str = "memory", *, config: CollectiveConfig | None = None
) -> Iterator[list[Group]]:
    """``size`` connected groups in this process, closed at the end.

    ``transport``: "memory" (socketpairs), "tcp" or "shm" (both on loopback).
    """
    if transport == "memory":
        hub = Hub()
        meshes = memory_meshes(size)
        groups = [
            Group(r, m, view_id="world", connect=hub.connector(r), config=config)
            for r, m in enumerate(meshes)
        ]
        try:
            yield groups
        finally:
            for each in groups:
                each.close()
            hub.close()
        return
    if transport not in ("tcp", "shm"):
        raise ConfigError(f"world: transport {transport!r}; memory, tcp or shm")
    peers = [f"127.0.0.1:{port}" for port in free_ports(size)]
    wish = "auto" if transport == "shm" else "tcp"

    def form(rank: int) -> Group:
        return form_group(peers, rank, transport=wish, config=config, timeout_s=FORM_S)

    groups = run_threads([lambda r=r: form(r) for r in range(size)])  # type: ignore[misc]
    try:
        yield groups
    finally:
        for each in groups:
            each.close()


def run_threads(bodies: Sequence[Callable[[], T]], within_s: float = 60.0) -> list[T]:
    """Run all at once, one thread each; results in order, or the first error."""
    results: dict[int, T] = {}
    failures: dict[int, BaseException] = {}

    def run(i: int, body: Callable[[], T]) -> None:
        try:
            results[i] = body()
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failures[i] = exc

    threads = [
        threading.Thread(target=run, args=(i, b), name=f"rank-{i}", daemon=True)
        for i, b in enumerate(bodies)
    ]
    deadline = Deadline.after(within_s)
    for thread in threads:
        thread.start()
    for i, thread in enumerate(threads):
        thread.join(deadline.left_s())
        if thread.is_alive() and not failures:
            raise DeadlineExceeded(i, f"still running after {within_s} s")
    if failures:  # the first in time: the others may only follow from it
        raise next(iter(failures.values()))
    return [results[i] for i in range(len(bodies))]


def run_world(
    size: int,
    body: Callable[[Group], T],
    transport: str = "memory",
    *,
    config: CollectiveConfig | None = None,
    within_s: float = 60.0,
) -> list[T]:
    """Run ``body`` on every rank of a world; the results in rank order."""
    with world(size, transport, config=config) as groups:
        return run_threads([lambda g=g: body(g) for g in groups], within_s)  # type: ignore[misc]
