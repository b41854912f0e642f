"""Groups of several ranks in one process, one thread per rank.

The groups and their links are the real ones; only the processes are missing.
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
from ringleader.groups.group import Group, open_group
from ringleader.transport import memory_link
from ringleader.transport.free_ports import free_ports
from ringleader.transport.host_token import new_incarnation
from ringleader.transport.link import Link
from ringleader.transport.mesh import Mesh

T = TypeVar("T")
FORM_S = 90.0


class SubgroupConnector:
    """Connects sub-groups of threads by socketpairs, on request of their ranks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meshes: dict[str, list[dict[int, Mesh]]] = {}
        """name -> the meshes that some rank has not taken yet, of each group."""

    def connect_of(self, rank: int) -> Callable[[Sequence[int], str, Deadline], Mesh]:
        """Return the connect function for the group of ``rank``."""

        def connect(ranks: Sequence[int], name: str, deadline: Deadline) -> Mesh:
            return self.connect(list(ranks), rank, name, deadline)

        return connect

    def connect(
        self, ranks: list[int], rank: int, name: str, deadline: Deadline
    ) -> Mesh:
        """Return the mesh of ``rank`` in its next group called ``name``.

        The first rank to ask creates the meshes of all.
        """
        if deadline.is_over():
            raise DeadlineExceeded("other ranks", "did not form the sub-group in time")
        with self._lock:
            groups = self._meshes.setdefault(name, [])
            if not any(rank in meshes for meshes in groups):
                made = memory_meshes(len(ranks))
                groups.append(dict(zip(ranks, made, strict=True)))
            return next(m for m in groups if rank in m).pop(rank)

    def close(self) -> None:
        """Close the meshes that no rank has taken."""
        for groups in self._meshes.values():
            for meshes in groups:
                for mesh in meshes.values():
                    mesh.close()


def memory_meshes(size: int) -> list[Mesh]:
    """Return one mesh per rank, connected by socketpairs."""
    incarnation = new_incarnation()
    meshes = [Mesh(incarnation=incarnation) for _ in range(size)]
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
    """Yield ``size`` connected groups in this process and close them on exit.

    ``transport``: "memory" (socketpairs), "tcp", "shm" or "grpc" (on loopback).
    """
    if transport == "memory":
        connector = SubgroupConnector()
        meshes = memory_meshes(size)
        groups = [
            open_group(
                r, m, view_id="world", connect=connector.connect_of(r), config=config
            )
            for r, m in enumerate(meshes)
        ]
        try:
            yield groups
        finally:
            for each in groups:
                each.close()
            connector.close()
        return
    if transport not in ("tcp", "shm", "grpc"):
        raise ConfigError(
            f"world: unknown transport {transport!r}; use memory, tcp, shm or grpc"
        )
    peers = [f"127.0.0.1:{port}" for port in free_ports(size)]
    form_transport = "auto" if transport == "shm" else transport

    def form(rank: int) -> Group:
        return form_group(
            peers, rank, transport=form_transport, config=config, timeout_s=FORM_S
        )

    groups = run_threads([lambda r=r: form(r) for r in range(size)])  # type: ignore[misc]
    try:
        yield groups
    finally:
        for each in groups:
            each.close()


def run_threads(bodies: Sequence[Callable[[], T]], within_s: float = 300.0) -> list[T]:
    """Run all bodies at once, one thread each, and return their results in order.

    Raises the first error in time, or DeadlineExceeded after ``within_s``.
    """
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
    if failures:  # the first in time: the others may be consequences
        raise next(iter(failures.values()))
    return [results[i] for i in range(len(bodies))]


def run_world(
    size: int,
    body: Callable[[Group], T],
    transport: str = "memory",
    *,
    config: CollectiveConfig | None = None,
    within_s: float = 300.0,
) -> list[T]:
    """Run ``body`` on every rank of a world; return the results in rank order."""
    with world(size, transport, config=config) as groups:
        return run_threads([lambda g=g: body(g) for g in groups], within_s)  # type: ignore[misc]
