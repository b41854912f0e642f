"""The internal side of a group: what other packages of Ringleader need of it.

``Group`` is the interface for users. The torch backend, gradient compression, the
formation of groups and tests also use its ``GroupHandle``, by ``handle_of(group)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.deadline import Deadline
from ringleader.engine.call import Call, DeviceCopier
from ringleader.engine.observer import Observer
from ringleader.engine.shared_memory.relay import Relay
from ringleader.errors import ConfigError
from ringleader.groups import calls
from ringleader.groups.control_channel import ControlChannel
from ringleader.groups.executor import MAX_KEPT, Executor
from ringleader.groups.prepared_calls import PreparedCalls
from ringleader.groups.runner import Runner
from ringleader.groups.work import Work
from ringleader.transport.mesh import Mesh


def view_hash(view_id: str) -> int:
    """The 64 bits that stand for a view on the wire."""
    return int.from_bytes(
        hashlib.blake2b(view_id.encode(), digest_size=8).digest(), "little"
    )


@dataclass(slots=True, eq=False, weakref_slot=True)
class GroupHandle:
    """The connections, the queue and the executor of one group."""

    rank: int
    mesh: Mesh
    control: ControlChannel
    runner: Runner
    executor: Executor
    prepared: PreparedCalls
    world_ranks: tuple[int, ...] = ()
    """The rank in the whole program of each rank of this group."""
    is_view: bool = False
    """True if the ranks are numbers in a view: no ranks of the program."""
    relayed: dict[int, bool] = field(default_factory=dict)
    """Bytes of an all_reduce -> whether a relay does it, as found before."""
    is_open: bool = True
    """False from the moment when its connections begin to close."""
    on_close: Callable[[], None] = lambda: None
    """Called after the connections are closed; closes the listener, for example."""

    @classmethod
    def open(
        cls, rank: int, mesh: Mesh, view_id: str, config: CollectiveConfig
    ) -> GroupHandle:
        """Set up a group over the connections of ``mesh``, which it then owns."""
        control = ControlChannel.open(rank, mesh.control)
        runner = Runner(control, f"rank{rank}", config.timeout_s)
        executor = Executor(
            rank, view_hash(view_id), mesh, control, runner.waiter, config
        )
        prepared = PreparedCalls(executor, runner)
        return cls(rank, mesh, control, runner, executor, prepared)

    @property
    def network(self) -> Network:
        """The measured network; equal on all ranks."""
        return self.executor.network

    @network.setter
    def network(self, network: Network) -> None:
        self.executor.network = network
        self.relayed.clear()
        self.prepared.clear()

    def observe(self, observer: Observer | None) -> None:
        """Tell ``observer`` about the calls of this group from now on."""
        self.executor.observer = observer
        self.prepared.clear()  # they were prepared for another observer, or for none
        if not self.is_open:  # it closed meanwhile, in another thread
            self._end_observation()

    def _end_observation(self) -> None:
        observer, self.executor.observer = self.executor.observer, None
        if observer is not None:
            observer.closed()

    def auto_codec(self, operation: str, num_bytes: int) -> str | None:
        """The codec that "auto" stands for in such a call; equal on all ranks."""
        return self.executor.codec(operation, num_bytes)

    def submit(
        self,
        call: Call,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        *,
        async_op: bool = False,
    ) -> Work:
        """Run ``call`` after all calls before it."""
        self.executor.choose(call, algorithm)
        executor = self.executor
        limit_s = self.runner.waiter.default_s if timeout_s is None else timeout_s

        def body(deadline: Deadline) -> None:
            executor.run(call, deadline)

        return self.runner.call(body, limit_s, async_op=async_op)

    def together(
        self,
        body: Callable[[], object],
        *,
        timeout_s: float | None = None,
        async_op: bool = False,
        is_postponed: bool | None = None,
    ) -> Work:
        """Run the collectives that ``body`` calls on this group as one operation.

        No other operation runs between them, and they share one deadline. ``body`` may
        run in another thread. An exception in it breaks the group, because the other
        ranks wait for this one. ``is_postponed``: whether the end of a backward pass
        runs it; None lets the group decide.
        """
        limit_s = self.runner.waiter.default_s if timeout_s is None else timeout_s

        def run(_: Deadline) -> None:
            body()

        return self.runner.call(
            run, limit_s, async_op=async_op, nests=True, is_postponed=is_postponed
        )

    # -- accelerators --------------------------------------------------------------

    @property
    def shares_memory(self) -> bool:
        """Whether all ranks share memory; equal on all of them."""
        return self.executor.shared is not None

    def relay(self, num_bytes: int) -> Relay | None:
        """The relay that an all_reduce of ``num_bytes`` uses; None if it uses none.

        The answer is the same on all ranks.
        """
        shared = self.executor.shared
        if shared is None or not shared.is_relayed(num_bytes):
            return None
        is_relayed = self.relayed.get(num_bytes)
        if is_relayed is None:
            call = calls.example("all_reduce", num_bytes)
            self.executor.choose(call)
            if len(self.relayed) >= MAX_KEPT:
                self.relayed.clear()
            is_relayed = self.relayed[num_bytes] = call.algorithm == "shm"
        return shared.relay if is_relayed else None

    def all_reduce_device(
        self,
        copier: DeviceCopier,
        dtype: torch.dtype,
        count: int,
        op: str = "sum",
        copy_back: Sequence[Callable[[], object]] = (),
    ) -> Work:
        """Combine a tensor on an accelerator, in place, if ``relay`` returns a relay.

        On other ranks the same call may be an ``all_reduce``. The functions in
        ``copy_back`` are called at the end; no value is final before.
        """
        call = calls.all_reduce_device(copier, dtype, count, op, list(copy_back))
        if self.relay(call.num_bytes) is None:
            text = f"{call.num_bytes} bytes are not reduced by a relay here"
            raise ConfigError(f"all_reduce: {text}")
        return self.submit(call)

    def expect_accelerators(self) -> None:
        """Relay in larger parts from now on; all ranks call it at the same time."""
        if self.executor.shared is not None:
            self.executor.shared.relay.use_device_parts()

    # -- the end -------------------------------------------------------------------

    def hang_up(self) -> None:
        """Close all connections without telling the peers, as a forked child must.

        Shared memory and descriptors are free when it returns.
        """
        self.is_open = False
        self._end_observation()
        self.prepared.clear()
        self.runner.postponed = None  # it looks into the shared memory
        self.executor.close()
        self.control.close()
        self.mesh.close()

    def end(self) -> None:
        """Close all connections and call ``on_close``."""
        self.hang_up()
        self.on_close()
