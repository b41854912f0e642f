"""Another backend of torch as the inner layer: NCCL inside a host, ours across hosts.

The ranks of a host reduce a tensor by that backend to their local root, the local roots
reduce it among themselves by a group of ours, and the backend broadcasts the result
inside the host. It only ever adds: means are divided here, by the number of all ranks,
so they mean the same as in every other group of ours, whatever the sizes of the hosts.

The other ranks of a host learn from a group of ours, not from that backend, that their
local root is done: if it fails, they fail at once. In NCCL they would wait until its
timeout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ReduceOp,
    ReduceOptions,
    Store,
)

from ringleader.backend.availability import nccl_status
from ringleader.errors import ConfigError
from ringleader.groups.group import Group, handle_of

_OPS = {
    "sum": ReduceOp.SUM,
    "mean": ReduceOp.SUM,
    "product": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
}
"""Our reduction -> what the backend computes inside a host."""
_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
    }
)
"""The dtypes that NCCL and Gloo reduce."""
_DEVICES = {"nccl": "cuda", "gloo": "cpu"}
"""Backend -> the tensors that it serves as inner layer."""
NAMES = tuple(_DEVICES)


def check_name(name: str) -> str:
    """Return ``name`` if it can be an inner layer, else raise ConfigError."""
    if name not in _DEVICES:
        raise ConfigError(
            f"intra_host is {name!r}; choose one of: {', '.join(NAMES)}, or leave it "
            "out"
        )
    return name


def unavailable_reason(name: str) -> str:
    """Return why the backend cannot run here, or nothing."""
    if name == "nccl":
        is_available, reason = nccl_status()
        return "" if is_available else reason
    return "" if dist.is_gloo_available() else "this torch was built without Gloo"


Step = Callable[[list[Tensor]], None]
"""Works on flat tensors, in place."""


@dataclass(frozen=True, slots=True)
class Steps:
    """One collective in two layers.

    ``before`` and ``after`` run by the backend inside the host. They return when it has
    done its part or, for a device, has ordered the current stream after it. ``across``
    runs in between, on host memory; None on ranks that are no local root.
    """

    before: Step
    across: Step | None
    after: Step
    crosses_hosts: bool = True
    """Whether there are several hosts; equal on all ranks."""

    def run(self, tensors: list[Tensor]) -> None:
        """Run all steps on tensors in host memory."""
        flat = [tensor.detach().contiguous().view(-1) for tensor in tensors]
        self.before(flat)
        if self.across is not None:
            self.across(flat)
        self.after(flat)
        for tensor, each in zip(tensors, flat, strict=True):
            if each.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(each.view(tensor.shape))


class IntraHostLayer:
    """The inner layer of one group on one rank.

    ``backend`` is a backend of torch among the ranks of this host, ``across`` our group
    of the local roots: None on other ranks, and if there is only one host. ``inside``
    is our group of this host: None if there is only one host, or one rank on this one.
    """

    def __init__(
        self, name: str, backend: Any, hosts: Sequence[Sequence[int]], group: Group
    ) -> None:
        self._device = _DEVICES[name]
        self._backend = backend
        self._hosts = hosts
        self._host = next(h for h in hosts if group.rank in h)
        self._size = group.size
        self.across: Group | None = None
        if len(hosts) > 1:
            self.across = group.subgroup([h[0] for h in hosts])
        self.inside: Group | None = None
        if len(hosts) > 1 and len(self._host) > 1:
            self.inside = group.subgroup(self._host)
        for each in (self.across, self.inside):
            if each is not None:
                each.timeout_s = group.timeout_s

    @classmethod
    def create(cls, name: str, group: Group, store: Store) -> IntraHostLayer | None:
        """Create the layer, on all ranks of ``group``; None if each is on its own host.

        Which ranks share a host was exchanged when the group formed: all ranks agree.
        """
        hosts = handle_of(group).network.host_lists()
        if all(len(host) == 1 for host in hosts):
            return None
        return cls.of_hosts(name, group, store, hosts)

    @classmethod
    def of_hosts(
        cls, name: str, group: Group, store: Store, hosts: Sequence[Sequence[int]]
    ) -> IntraHostLayer:
        """Create the layer for these hosts."""
        host = next(h for h in hosts if group.rank in h)
        prefix = f"ringleader/{name}/{group.view_id}/{host[0]}"
        place = PrefixStore(prefix, store), host.index(group.rank), len(host)
        timeout = timedelta(seconds=group.timeout_s)
        backend: Any
        if name == "nccl":
            nccl: Any = dist.ProcessGroupNCCL
            options = nccl.Options()
            options._timeout = timeout
            backend = nccl(*place, options)
        else:
            backend = dist.ProcessGroupGloo(*place, timeout)
        return cls(name, backend, hosts, group)

    def serves(self, tensor: Tensor, op: str = "sum") -> bool:
        """Return whether it reduces such a tensor; equal on all ranks for one call."""
        return (
            tensor.device.type == self._device
            and tensor.layout is torch.strided
            and tensor.dtype in _DTYPES
            and op in _OPS
            and tensor.numel() > 0
        )

    def all_reduce(self, op: str, codec: str | None = None) -> Steps:
        """Return the steps of an all_reduce, encoded across hosts if there is a codec.

        With a codec there is a second tensor, which receives the error. Only the local
        roots encode, so it is 0 on the other ranks.
        """
        kind = "sum" if op == "mean" else op

        def across(tensors: list[Tensor]) -> None:
            assert self.across is not None
            if codec is None:
                self.across.all_reduce(tensors[0], kind)
            else:
                error_out = tensors[1] if len(tensors) > 1 else None
                self.across.all_reduce(
                    tensors[0], kind, codec=codec, error_out=error_out
                )

        def after(tensors: list[Tensor]) -> None:
            self._wait_for_local_root()
            for error in tensors[1:] if self.across is None else ():
                error.zero_()
            self._deliver(tensors[0], op)

        return self._steps(lambda tensors: self._reduce(tensors[0], op), across, after)

    def broadcast(self, root: int) -> Steps:
        """Return the steps of a broadcast from ``root``, a rank of the whole group.

        It need not be a local root: its host comes first, then the local roots, then
        the other hosts.
        """
        number = next(i for i, host in enumerate(self._hosts) if root in host)

        def before(tensors: list[Tensor]) -> None:
            if root in self._host:
                self._broadcast(tensors[0], self._host.index(root))

        def across(tensors: list[Tensor]) -> None:
            assert self.across is not None
            self.across.broadcast(tensors[0], number)

        def after(tensors: list[Tensor]) -> None:
            self._wait_for_local_root()
            if root not in self._host:
                self._broadcast(tensors[0], 0)

        return self._steps(before, across, after)

    def _steps(self, before: Step, across: Step, after: Step) -> Steps:
        return Steps(
            self._guarded(before),
            None if self.across is None else self._guarded(across),
            self._guarded(after),
            crosses_hosts=len(self._hosts) > 1,
        )

    def _wait_for_local_root(self) -> None:
        """Return when the local root has reduced across hosts; raise if it failed."""
        if self.inside is not None:
            self.inside.broadcast(torch.zeros(1, dtype=torch.uint8), 0)

    def _reduce(self, tensor: Tensor, op: str) -> None:
        """Reduce to the local root; to all ranks if there is only one host."""
        opts: Any
        if len(self._hosts) == 1:
            opts = AllreduceOptions()
            opts.reduceOp = _OPS[op]
            _finish(self._backend.allreduce([tensor], opts))
        else:
            opts = ReduceOptions()
            opts.reduceOp, opts.rootRank = _OPS[op], 0
            _finish(self._backend.reduce([tensor], opts))

    def _deliver(self, tensor: Tensor, op: str) -> None:
        """Broadcast the result from the local root; a mean is divided."""
        if len(self._hosts) > 1:
            self._broadcast(tensor, 0)
        if op == "mean" and tensor.dtype.is_floating_point:
            tensor.div_(self._size)
        elif op == "mean":  # of integers: toward zero, as everywhere
            tensor.copy_(torch.div(tensor, self._size, rounding_mode="trunc"))

    def _broadcast(self, tensor: Tensor, local_rank: int) -> None:
        opts = BroadcastOptions()
        opts.rootRank = local_rank
        _finish(self._backend.broadcast([tensor], opts))

    def _guarded(self, step: Step) -> Step:
        """Return ``step``; if it fails, the other ranks of this host do not wait."""

        def run(tensors: list[Tensor]) -> None:
            try:
                step(tensors)
            except BaseException as exc:
                self.abort(f"an operation in two layers failed ({exc})")
                raise

        return run

    def abort(self, reason: str) -> None:
        """End both layers now; ranks that wait in them get an error."""
        for group in (self.inside, self.across):
            if group is not None:
                group.abort(reason)
        with contextlib.suppress(RuntimeError):
            self._backend.abort()

    def close(self) -> None:
        """Leave both layers. Idempotent."""
        for group in (self.inside, self.across):
            if group is not None:
                group.close()
        with contextlib.suppress(RuntimeError):
            self._backend.shutdown()


def _finish(work: Any) -> None:
    """Wait; torch returns no work for some synchronous calls."""
    if work is not None:
        work.wait()
