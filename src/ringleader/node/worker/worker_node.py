"""``WorkerNode``: a worker with a life cycle, for programs that a platform runs.

``ringleader.join`` forms a group and no more. A worker node also tells an orchestrator
whether it is alive and ready, and ends in order. Its agent registers it at the
coordinator and sends the heartbeats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Self

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, GroupAborted, RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.join import TIMEOUT_S, WAIT_S, group_request, join_group
from ringleader.node.launch.own_agent import close_own_agent, own_agent
from ringleader.node.worker.closers import Closers
from ringleader.node.worker.health_server import HealthServer
from ringleader.node.worker.readiness import Check, ReadinessChecks

STOP_S = 15.0
"""How long ``close`` waits for a ``start`` in another thread to give up."""


class _State(Enum):
    NEW = "not started"
    STARTING = "starting"
    STARTED = "started"
    CLOSED = "closed"


class WorkerNode:
    """One worker of a job: start, readiness, health, shutdown.

    Any thread may call any method, in any order. One worker node per process.
    """

    def __init__(  # noqa: PLR0913 - all are options, and are given by name
        self,
        coordinator: str = "",
        *,
        nodes: int | None = None,
        min_nodes: int = 2,
        wait_s: float = WAIT_S,
        timeout_s: float = TIMEOUT_S,
        job: str = "default",
        worker_id: str = "",
        peers: str = "",
        rank0: str = "",
        transport: str = "auto",
        config: CollectiveConfig | None = None,
        health_host: str = "127.0.0.1",
        health_port: int | None = None,
        grpc_health_port: int | None = None,
    ) -> None:
        """Prepare a worker; nothing is opened before ``start``.

        ``coordinator`` is HOST:PORT; without one (and without
        ``RINGLEADER_COORDINATOR``) the others are found by multicast and ``peers``.
        ``worker_id`` is the name under which the worker is registered there, and gets
        its rank back after a restart; by default the id of its node. The other options
        up to ``config`` are those of ``ringleader.join``.

        With ``health_port``, ``/healthz`` and ``/readyz`` are served by HTTP, with
        ``grpc_health_port`` the gRPC health service; port 0 is any free one.
        """
        self._agent_config = agent_config(
            coordinator=coordinator, peers=peers, worker_id=worker_id
        )
        self._request = group_request(
            job, nodes, min_nodes, wait_s=wait_s, timeout_s=timeout_s, rank0=rank0
        )
        self._transport, self._config = transport, config
        self._ports = health_port, grpc_health_port
        probes = {"/healthz": self._health_failures, "/readyz": self.failures}
        self._server = HealthServer(probes, health_host)
        self._checks = ReadinessChecks()
        self._checks.add("worker", self._trouble)
        self._closers = Closers()
        self._parts = Closers()
        """What ``start`` has opened."""
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._group: Group | None = None
        self._is_idle = threading.Event()
        """Set while no ``start`` is under way."""
        self._is_idle.set()

    def start(self) -> None:
        """Register, wait for the other workers and form the group.

        Raises ``ConfigError`` if it is started or closed already, and
        ``DeadlineExceeded`` if too few workers come within ``timeout_s``. After an
        error nothing remains open or registered, and ``start`` may be called again.
        """
        with self._lock:
            if self._state is not _State.NEW:
                text = f"the worker node is {self._state.value}"
                raise ConfigError(f"{text}; start a node once, or make a new one")
            if own_agent() is not None:
                text = "this process has joined a cluster, by join() or another node"
                raise ConfigError(f"{text}; start worker nodes in other processes")
            self._state, self._parts = _State.STARTING, Closers()
            self._is_idle.clear()
        try:
            self._open()
        except BaseException as exc:
            self._parts.run()
            with self._lock:
                was_closed = self._state is _State.CLOSED
                self._state = _State.CLOSED if was_closed else _State.NEW
            if was_closed and isinstance(exc, RingleaderError):
                raise GroupAborted("the worker node was closed while starting") from exc
            raise
        finally:
            self._is_idle.set()

    def _open(self) -> None:
        http_port, grpc_port = self._ports
        self._parts.add("health server", self._server.close)
        self._server.start(http_port, grpc_port)
        self._parts.add("agent", close_own_agent)
        group = join_group(
            self._request,
            self._agent_config,
            transport=self._transport,
            config=self._config,
        )
        self._parts.add("group", group.close)
        with self._lock:
            if self._state is _State.CLOSED:
                raise GroupAborted("the worker node was closed while starting")
            self._group, self._state = group, _State.STARTED

    def close(self) -> None:
        """Run the closers, the last one first; then leave the group and unregister.

        Does nothing the second time. If closers failed, raises an ``ExceptionGroup``
        of all their errors, after everything is closed.
        """
        with self._lock:
            state, self._state = self._state, _State.CLOSED
        errors = self._closers.run()
        if state is _State.STARTING:
            self._interrupt_start()
        elif state is _State.STARTED:
            errors += self._parts.run()
        if errors:
            raise ExceptionGroup("closing the worker node", errors)

    def _interrupt_start(self) -> None:
        """Let a ``start`` in another thread give up, also if it is still about to
        start its agent."""
        deadline = Deadline.after(STOP_S)
        while not self._is_idle.wait(0.1) and not deadline.is_over():
            agent = own_agent()
            if agent is not None:
                agent.interrupt()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self._state is _State.NEW:  # the start failed, and nobody else closes it
                self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is --------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Rank in the group; -1 unless started."""
        group = self._group
        return -1 if group is None or self._state is not _State.STARTED else group.rank

    @property
    def size(self) -> int:
        """Number of ranks in the group; 0 unless started."""
        group = self._group
        return 0 if group is None or self._state is not _State.STARTED else group.size

    @property
    def group(self) -> Group:
        """The group; raises ``ConfigError`` unless started."""
        if self._group is None or self._state is not _State.STARTED:
            raise ConfigError(f"the worker node is {self._state.value}; start it first")
        return self._group

    @property
    def health_port(self) -> int:
        """Port of ``/healthz`` and ``/readyz``; 0 while it is not open."""
        return self._server.port

    @property
    def grpc_health_port(self) -> int:
        """Port of the gRPC health service; 0 while it is not open."""
        return self._server.grpc_port

    # -- readiness, health, shutdown ---------------------------------------------------

    def add_readiness_check(self, name: str, check: Check) -> None:
        """Register a check for ``ready``.

        It returns None or True if all is well, False or a reason if not, or raises.
        """
        self._checks.add(name, check)

    def add_closer(self, name: str, close: Callable[[], object]) -> None:
        """Register what ``close`` runs before the worker leaves the group.

        Raises ``ConfigError`` if the node is closed already.
        """
        self._closers.add(name, close)

    def ready(self) -> bool:
        """Return whether the worker is in a group that works, and all checks pass."""
        return not self.failures()

    def failures(self) -> Mapping[str, str]:
        """Return the readiness checks that fail, with the reasons."""
        return self._checks.failures()

    def health(self) -> bool:
        """Return False if the worker cannot recover: closed, or its agent has ended.

        A worker that waits for others, or whose group broke, is healthy but not ready.
        """
        return not self._health_failures()

    def _health_failures(self) -> Mapping[str, str]:
        if self._state is _State.CLOSED:
            return {"worker": "closed"}
        agent = own_agent()
        if agent is not None and not agent.is_alive:
            return {"agent": "the agent process has ended; start the program again"}
        return {}

    def _trouble(self) -> str | None:
        """Return why the worker itself is not ready."""
        group = self._group
        if self._state is not _State.STARTED or group is None:
            return self._state.value
        failure = handle_of(group).runner.failure
        if failure is not None:
            return f"the group has ended: {failure}"
        return next(iter(self._health_failures().values()), None)
