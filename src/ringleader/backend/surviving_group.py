"""SurvivingGroup: torch's default group in a script that survives the loss of ranks.

Rank and size stay as they were at the start. all_reduce, broadcast, reduce and barrier
run among the living (survivors.py); all other operations need every rank, and raise
PeerLost once one is lost.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOptions,
    Store,
)

from ringleader.backend import run_join, surviving_ddp
from ringleader.backend.living_collectives import (
    AllReduce,
    Barrier,
    Broadcast,
    Collective,
    Living,
)
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.torch_options import (
    options_of,
    reduction,
    single_tensor,
    unwrap,
)
from ringleader.backend.work import BackendWork
from ringleader.errors import ConfigError, PeerLost
from ringleader.groups.group import Group
from ringleader.groups.work import DONE

END_S: Final = 30.0
"""How long a script that has ended still serves its results to the others."""

_NEED_ALL: Final = (
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "gather",
    "gather_single",
    "gather_into_tensor",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "recvAnysource",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall_base",
)
"""Operations whose result has a part for each rank."""


class SurvivingGroup(RingleaderGroup):
    """A group that goes on with the ranks that are alive."""

    survivors: Living
    _has_ended = False

    @classmethod
    def wrap(
        cls, group: Group, store: Store, ranks: list[int], intra_host: str = ""
    ) -> Self:
        """Wrap ``group`` and become a member of the run; all ranks call it."""
        wrapped = super().wrap(group, store, ranks, intra_host)
        wrapped.survivors = run_join.join(group)
        atexit.register(wrapped._end)
        surviving_ddp.install(wrapped)
        return wrapped

    # -- among the living --------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, **named: Any) -> BackendWork:
        opts = options_of(AllreduceOptions, opts, named)
        return self._all_reduce_living([single_tensor(tensors, "all_reduce")], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> BackendWork:
        opts = options_of(AllreduceCoalescedOptions, opts)
        return self._all_reduce_living([unwrap(each) for each in tensors], opts)

    def _all_reduce_living(self, tensors: list[Tensor], opts: Any) -> BackendWork:
        return self._run(tensors, AllReduce(_sources(tensors), _operator(opts)))

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, **named: Any
    ) -> BackendWork:
        """Reduce on all that are alive; only the root keeps the result."""
        named = named if op is None else {"op": op, **named}
        opts = options_of(ReduceOptions, opts, named)
        tensor = single_tensor(tensors, "reduce")
        kept = [tensor] if opts.rootRank == self.rank() else []
        return self._run(kept, AllReduce(_sources([tensor]), _operator(opts)))

    def broadcast(self, tensors: Any, opts: Any = None, **named: Any) -> BackendWork:
        opts = options_of(BroadcastOptions, opts, named)
        tensor = single_tensor(tensors, "broadcast")
        return self._run([tensor], Broadcast(_sources([tensor]), opts.rootRank))

    def barrier(self, opts: Any = None) -> BackendWork:
        return self._run([], Barrier())

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        self._run([], Barrier())

    def _run(self, tensors: list[Tensor], collective: Collective) -> BackendWork:
        self._sequence += 1
        results = self.survivors.run(collective)
        with torch.no_grad():
            for tensor, result in zip(tensors, results, strict=False):
                tensor.copy_(result)
        return self._make_handle(DONE, tensors, None)

    # -- among all ---------------------------------------------------------------------

    def require_all(self, name: str) -> None:
        """Raise PeerLost for an operation that needs all ranks, if one is lost."""
        lost = self.survivors.lost()
        if lost:
            text = f"was lost; the others go on, but {name} needs all ranks"
            raise PeerLost(lost[0], f"{text}: restart the script from a checkpoint")

    # -- the end -----------------------------------------------------------------------

    def abort(self) -> None:
        self._end(is_failed=True)
        super().abort()

    def shutdown(self) -> None:
        self._end()
        super().shutdown()

    def _end(self, *, is_failed: bool = False) -> None:
        """Leave the run, once the others have all results. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        atexit.unregister(self._end)
        if not is_failed and getattr(sys, "last_value", None) is None:
            # In a thread: others may be hung, and a barrier among them has no limit.
            last = threading.Thread(
                target=self.survivors.run, args=(Barrier(),), daemon=True
            )
            last.start()
            last.join(END_S)
        self.survivors.close()


def _needs_all(name: str) -> Callable[..., Any]:
    original = getattr(RingleaderGroup, name)

    def method(self: SurvivingGroup, *args: Any, **named: Any) -> Any:
        self.require_all(name)
        return original(self, *args, **named)

    method.__name__ = name
    return method


for _name in _NEED_ALL:
    setattr(SurvivingGroup, _name, _needs_all(_name))


def _sources(tensors: list[Tensor]) -> list[Tensor]:
    """Return the values in host memory: the tensors themselves if they are there."""
    return [each.detach().cpu().contiguous() for each in tensors]


def _operator(opts: Any) -> str:
    op = reduction(opts.reduceOp)
    if op.factor is not None:
        raise ConfigError("--survive: PREMUL_SUM is not supported; multiply first")
    return op.name
