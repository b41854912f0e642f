"""SurvivingGroup: torch's default group in a script that survives the loss of ranks.

Rank and size stay as they were at the start. all_reduce, broadcast, reduce, barrier and
gathers run among the living (survivors.py). In a gather, a lost rank has the part that
the next live rank gave: means stay means, and objects stay readable. What a lost rank
would broadcast, the lowest live rank does. All else, where a lost rank has a part that
nobody else has, raises PeerLost.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from types import FrameType
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    Store,
)
from torch.distributed import distributed_c10d as c10d

from ringleader.backend import host_memory, run_join, surviving_ddp
from ringleader.backend.living_collectives import (
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    Collective,
    Living,
    giver,
)
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.profiling import OPERATIONS, recorded
from ringleader.backend.torch_options import (
    options_of,
    reduction,
    single_tensor,
    split,
    tensor_list,
    unwrap,
)
from ringleader.backend.work import BackendWork
from ringleader.errors import ConfigError, PeerLost
from ringleader.groups.group import Group
from ringleader.groups.work import DONE

_log = logging.getLogger(__name__)

END_S: Final = 30.0
"""How long a script that has ended still serves its results to the others."""

_NEED_ALL: Final = (
    "all_gather_single_coalesced",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "recvAnysource",
    "allgather_into_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall_base",
)
"""Operations in which a lost rank has a part that nobody else has. The coalesced gather
is that of DTensor, which gathers shards."""

_SHARDED: Final = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.optim",
    "torch.distributed.checkpoint",
    "deepspeed",
)
"""Modules whose gathers and broadcasts collect parts of a model: another rank's part in
the place of a lost one would be a wrong model."""


class SurvivingGroup(RingleaderGroup):
    """A group that goes on with the ranks that are alive."""

    survivors: Living
    _has_ended = False
    _is_sharded = False
    """Whether the script has used reduce_scatter, as those that shard a model do."""
    _told: frozenset[int] = frozenset()
    """The lost ranks whose parts the user was told of."""
    _told_sources: frozenset[int] = frozenset()
    """The lost ranks of whose objects the user was told."""

    @classmethod
    def wrap(
        cls, group: Group, store: Store, ranks: list[int], intra_host: str = ""
    ) -> Self:
        """Wrap ``group`` and become a member of the run; all ranks call it."""
        wrapped = super().wrap(group, store, ranks, intra_host)
        wrapped.survivors = run_join.join(group)
        atexit.register(wrapped._end)
        surviving_ddp.install(wrapped)
        _read_whole_objects()
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
        _, result = self._broadcast("broadcast", tensor, opts.rootRank)
        return self._deliver([tensor], [result])

    def _broadcast(self, name: str, tensor: Tensor, root: int) -> tuple[int, Tensor]:
        """Return whose values all have now, and the values."""
        (result,) = self._complete(Broadcast(_sources([tensor]), root))
        present = self.survivors.contributors
        if root not in present:
            self._refuse_parts(name, root)
            root = min(present)
        return root, result

    def broadcast_objects(self, objects: list[Any], root: int) -> None:
        """Copy the objects of ``root`` to all; of the lowest live rank if it was lost.

        All serialize theirs, as each may have to. Lengths and contents that two ranks
        gave, since one was lost between them, are sent anew. Raises PeerLost if the
        lowest rank has None only, as programs pass that just receive.
        """
        name, here = "broadcast_object_list", torch.device("cpu")
        write: Any = c10d._object_to_tensor
        read: Any = c10d._tensor_to_object
        mine, sizes = map(
            torch.cat,
            zip(*(write(each, here, self) for each in objects), strict=True),
        )
        giver, teller = -1, -2
        lengths: list[int] = []
        data = torch.empty(0)
        while giver != teller:
            teller, result = self._broadcast(name, sizes, root)
            lengths = result.tolist()
            data = torch.zeros(sum(lengths), dtype=torch.uint8)
            if teller == self.rank():
                data = mine
            giver, data = self._broadcast(name, data, root)
        if giver != self.rank():
            parts = zip(torch.split(data, lengths), lengths, strict=True)
            objects[:] = [read(p, n, self) for p, n in parts]
        if giver == root:
            return
        if all(each is None for each in objects):
            text = f"was lost, and {name} needs its objects: rank {giver} gives None"
            raise PeerLost(root, f"{text}; restart the script from a checkpoint")
        if root not in self._told_sources:
            text = (
                "ringleader: in place of lost rank %d, rank %d broadcasts its objects"
            )
            _log.warning(text, root, giver)
            self._told_sources |= {root}

    def barrier(self, opts: Any = None) -> BackendWork:
        return self._run([], Barrier())

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        self._run([], Barrier())

    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> BackendWork:
        tensor = single_tensor(ins, "all_gather")
        return self._gather(
            "all_gather", [tensor], [tensor_list(outs, self.size(), "all_gather")]
        )

    def allgather_coalesced(self, outs: Any, ins: Any, opts: Any = None) -> BackendWork:
        columns = [[unwrap(row[i]) for row in outs] for i in range(len(ins))]
        return self._gather("all_gather", [unwrap(each) for each in ins], columns)

    def all_gather_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> BackendWork:
        parts = split(unwrap(output).view(-1), (), self.size())
        return self._gather("all_gather_into_tensor", [unwrap(source)], [parts])

    _allgather_base = all_gather_single

    def gather(
        self, outs: Any, ins: Any, opts: Any = None, **named: Any
    ) -> BackendWork:
        """Gather on all that are alive; only the root keeps the result."""
        opts = options_of(GatherOptions, opts, named)
        tensor = single_tensor(ins, "gather")
        if opts.rootRank == self.rank():
            return self._gather(
                "gather", [tensor], [tensor_list(outs, self.size(), "gather")]
            )
        source = _sources([tensor])
        self._complete(AllGather(source, [source * self.size()]))
        return self._deliver([], [])

    def gather_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> BackendWork:
        is_root = self.rank() == options_of(GatherOptions, opts).rootRank
        outs = split(unwrap(output).view(-1), (), self.size()) if is_root else []
        return self.gather([outs], [source], opts)

    gather_into_tensor = gather_single

    def _gather(
        self, name: str, tensors: list[Tensor], rows: list[list[Tensor]]
    ) -> BackendWork:
        """Gather each tensor into the row of its parts, one for each rank."""
        size = self.size()
        results = self._complete(AllGather(_sources(tensors), rows))
        present = self.survivors.contributors
        givers = [giver(rank, present, size) for rank in range(size)]
        if len(present) < size:
            self._tell_givers(name, givers)
        parts = [
            results[start + rank]
            for start in range(0, len(results), size)
            for rank in givers
        ]
        outs = [part for row in rows for part in row]
        for out, part in zip(outs, parts, strict=True):
            if out.numel() != part.numel():
                lost = next(r for r, by in enumerate(givers) if r != by)
                text = f"was lost, and {name} has parts of different lengths"
                raise PeerLost(lost, f"{text}, of which no other can stand for its own")
        return self._deliver(
            outs, [p.view_as(o) for o, p in zip(outs, parts, strict=True)]
        )

    def _tell_givers(self, name: str, givers: list[int]) -> None:
        """Say once for each lost rank what stands for its part, or refuse that."""
        lost = [rank for rank, by in enumerate(givers) if rank != by]
        self._refuse_parts(name, lost[0])
        for rank in lost:
            if rank not in self._told:
                text = "in place of lost rank %d, gathers have what rank %d gives: "
                text += "means stay means, sums count it twice"
                _log.warning(f"ringleader: {text}", rank, givers[rank])
        self._told |= set(lost)

    def _refuse_parts(self, name: str, lost: int) -> None:
        """Raise PeerLost if nobody else has what a lost rank would have given."""
        what = "the lost part of the model" if self._is_sharded else _only_there()
        if what:
            text = f"was lost, and {name} needs {what}, which nobody else has"
            raise PeerLost(lost, f"{text}: restart the script from a checkpoint")

    def _run(self, tensors: list[Tensor], collective: Collective) -> BackendWork:
        return self._deliver(tensors, self._complete(collective))

    def _complete(self, collective: Collective) -> list[Tensor]:
        self._sequence += 1
        return self.survivors.run(collective)

    def _deliver(self, tensors: list[Tensor], results: list[Tensor]) -> BackendWork:
        with torch.no_grad():
            for tensor, result in zip(tensors, results, strict=False):
                tensor.copy_(result)
        return self._make_handle(DONE, tensors, None)

    # -- among all ---------------------------------------------------------------------

    def require_all(self, name: str) -> None:
        """Raise PeerLost for an operation that needs all ranks, if one is lost."""
        self._is_sharded |= "reduce_scatter" in name
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
        self.survivors.is_ending = True
        is_failed |= getattr(sys, "last_value", None) is not None
        if not is_failed:
            # In a thread: others may be hung, and a barrier among them has no limit.
            last = threading.Thread(
                target=self.survivors.run, args=(Barrier(),), daemon=True
            )
            last.start()
            last.join(END_S)
        self.survivors.close(is_failed=is_failed)


def _needs_all(name: str) -> Callable[..., Any]:
    original = getattr(RingleaderGroup, name)

    def method(self: SurvivingGroup, *args: Any, **named: Any) -> Any:
        self.require_all(name)
        return original(self, *args, **named)

    method.__name__ = name
    return method


for _name in _NEED_ALL:
    setattr(SurvivingGroup, _name, _needs_all(_name))
for _name in OPERATIONS.keys() & vars(SurvivingGroup).keys():
    setattr(SurvivingGroup, _name, recorded(vars(SurvivingGroup)[_name]))


def _only_there() -> str:
    """Return what this call collects if only the lost rank has it; else nothing.

    Asked only once a rank is lost. All ranks run the same call, so that all raise.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if f"{module}.".startswith(tuple(f"{each}." for each in _SHARDED)):
            return "the lost part of the model"
        frame = frame.f_back
    return ""


def _read_whole_objects() -> None:
    """Let torch read gathered objects to their end, not to the length told before.

    It gathers the lengths and then the objects, padded to the longest one. If a rank
    is lost between the two, its length is its own and the object that of another.
    """
    original = c10d._tensor_to_object
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def read(tensor: Tensor, length: Any, group: Any = None) -> Any:
        chosen = group or c10d._get_default_group()
        if isinstance(chosen, SurvivingGroup):
            length = tensor.numel()
        return original(tensor, length, group)  # type: ignore[no-untyped-call]

    c10d._tensor_to_object = read


def _sources(tensors: list[Tensor]) -> list[Tensor]:
    """Return the values in host memory: the tensors themselves if they are there."""
    for each in tensors:
        host_memory.check(each, "an operation")
    return [each.detach().cpu().contiguous() for each in tensors]


def _operator(opts: Any) -> str:
    op = reduction(opts.reduceOp)
    if op.factor is not None:
        raise ConfigError("--survive: PREMUL_SUM is not supported; multiply first")
    return op.name
