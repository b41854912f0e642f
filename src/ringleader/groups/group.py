"""Group: the public interface for collectives and messages between ranks.

A group is immutable. When a peer is lost, calls differ or a deadline passes, it is
broken for good: every pending and later call raises the same typed error, and a new
group has to be formed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.deadline import Deadline
from ringleader.engine.arrays import bytes_of, dtype_name
from ringleader.engine.call import Call
from ringleader.errors import ConfigError, GroupAborted
from ringleader.groups import calls, group_metrics
from ringleader.groups.handle import GroupHandle
from ringleader.groups.messages import Outgoing, PendingRecv
from ringleader.groups.named_tensors import NamedTensors
from ringleader.groups.observation import attach_observers
from ringleader.groups.prepared_calls import (
    NO_TENSORS,
    Kind,
    kind_of,
    kind_of_one,
)
from ringleader.groups.progress import Progress
from ringleader.groups.tensors import (
    CopyBack,
    Tensors,
    check_tensor,
    input_array,
    output_array,
)
from ringleader.groups.work import Work
from ringleader.transport.mesh import Mesh

Connect = Callable[[Sequence[int], str, Deadline], Mesh]
"""(ranks of a sub-group, name to meet under, deadline) -> its mesh."""

CLOSE_S = 2.0
"""Time that ``close`` gives to an operation of another thread."""


class Group:
    """Collectives and messages between ``size`` ranks.

    Methods may be called from any thread. Collectives run in the order in which they
    are called, which must be the same on all ranks. A tensor belongs to the group until
    the operation on it has ended.

    ``ringleader.group()`` forms groups. Other packages of Ringleader reach the
    internals by ``handle_of``; everything public here is for users.
    """

    def __init__(self, handle: GroupHandle, *, view_id: str, connect: Connect) -> None:
        self.rank = handle.rank
        self.size = handle.executor.size
        self.view_id = view_id
        self.config = handle.executor.config
        self._handle = handle
        self._runner = handle.runner
        self._prepared = handle.prepared
        self._connect = connect
        self._barrier = calls.barrier()
        self._closed = False
        self._agreed_layouts: set[int] = set()
        """Layouts of dicts that all ranks were found to have alike."""

    @property
    def timeout_s(self) -> float:
        """The time limit of operations that are not given one."""
        return self._runner.waiter.default_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self._runner.waiter.default_s = seconds

    def links(self) -> dict[int, str]:
        """peer -> kind of the link, "shm" or "tcp", and why not shm if that failed."""
        mesh = self._handle.mesh
        return {
            p: link.kind + (f" ({mesh.notes[p]})" if p in mesh.notes else "")
            for p, link in mesh.bulk.items()
        }

    def progress(self) -> Progress:
        """The progress of the last collective; meant to be read after a failure."""
        return self._handle.executor.progress()

    def choice(self, operation: str, num_bytes: int) -> tuple[str, str]:
        """(algorithm, reason) that a call of this size would get."""
        call = calls.example(operation, num_bytes)
        reason = self._handle.executor.choose(call)
        return call.algorithm, reason

    # -- collectives ---------------------------------------------------------------

    def all_reduce(  # noqa: PLR0913 - one keyword each
        self,
        tensor: Tensor | Mapping[str, Tensor],
        op: str = "sum",
        *,
        out: Tensor | None = None,
        codec: str | None = None,
        residual: Tensor | None = None,
        error_out: Tensor | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Combine all ranks' ``tensor``, in place or into ``out``.

        A dict of tensors, gradients by name for example, is combined in place: names,
        shapes and dtypes are the same on all ranks, in any order.
        A "mean" of integers is truncated toward zero, as in NCCL.
        With a ``codec`` it travels in fewer bytes, and all ranks get the same bits.
        ``error_out`` (float32) then receives this rank's encoding error: summed over
        the ranks, it is what the sum lacks, also when ``op`` is "mean". Pass it as
        ``residual`` to the next call, which adds it to its ``tensor``, so that nothing
        is lost for good. The codec "auto" is chosen by the measured network.
        """
        if not isinstance(tensor, Tensor) and isinstance(tensor, Mapping):
            if any(each is not None for each in (out, codec, residual, error_out)):
                text = "a dict is combined in place and as it is; in fewer bytes"
                how = "ringleader.compression.compressor(NAME).average(group, tensors)"
                raise ConfigError(f"all_reduce: {text}: {how}")
            named = NamedTensors(tensor)
            body = partial(self._all_reduce_named, named, op, algorithm)
            return self._handle.together(body, timeout_s=timeout_s, async_op=async_op)
        if codec == "auto":
            codec = self._handle.auto_codec("all_reduce", tensor.nbytes)
            if codec is None:
                tensor = calls.without_codec(tensor, out, residual, error_out)
                residual = error_out = None
        kind = None
        if out is None and codec is None and algorithm is None and timeout_s is None:
            kind = kind_of_one("all_reduce", op, tensor)
            if work := self._prepared.run(kind, async_op, tensor):
                return work
        check_tensor(tensor, "all_reduce")
        call = calls.all_reduce(tensor, op, out)
        calls.encode(call, codec, residual, error_out)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def _all_reduce_named(
        self, named: NamedTensors, op: str, algorithm: str | None
    ) -> None:
        layout = named.layout()
        if int(layout) not in self._agreed_layouts:
            layouts = torch.empty(self.size, dtype=torch.int64)
            self.all_gather(layouts, layout)
            named.check_layouts(layouts)
            self._agreed_layouts.add(int(layout))
        named.reduce(lambda each: self.all_reduce(each, op, algorithm=algorithm))

    def reduce(
        self,
        tensor: Tensor,
        dst: int,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Combine all ranks' ``tensor`` on rank ``dst``; other ranks keep theirs."""
        self._check_rank(dst, "dst")
        kind = None
        if algorithm is None and timeout_s is None:
            kind = kind_of_one("reduce", (op, dst), tensor)
            if work := self._prepared.run(kind, async_op, tensor):
                return work
        call = calls.reduce(tensor, op, root=dst, is_root=self.rank == dst)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def broadcast(
        self,
        tensor: Tensor,
        src: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Copy rank ``src``'s ``tensor`` into the ``tensor`` of all ranks."""
        self._check_rank(src, "src")
        kind = None
        if algorithm is None and timeout_s is None:
            kind = kind_of_one("broadcast", src, tensor)
            if work := self._prepared.run(kind, async_op, tensor):
                return work
        call = calls.broadcast(tensor, root=src, is_root=self.rank == src)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def all_gather(
        self,
        outs: Tensors,
        tensor: Tensor,
        *,
        codec: str | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Copy all ranks' ``tensor`` into ``outs``: a list, or one tensor for all."""
        kind = None
        if codec is None and algorithm is None and timeout_s is None:
            kind = kind_of("all_gather", None, tensor, outs)
            if work := self._prepared.run(kind, async_op, tensor, outs):
                return work
        call = calls.all_gather(outs, tensor, rank=self.rank, size=self.size)
        if codec == "auto":
            codec = self._handle.auto_codec(call.operation, call.num_bytes)
        calls.encode(call, codec, None, None)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def reduce_scatter(  # noqa: PLR0913
        self,
        out: Tensor,
        tensors: Tensors,
        op: str = "sum",
        *,
        codec: str | None = None,
        error_out: Tensor | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Combine all ranks' part for this rank into ``out``."""
        kind = None
        if (
            codec is None
            and error_out is None
            and algorithm is None
            and timeout_s is None
        ):
            kind = kind_of("reduce_scatter", op, tensors, out)
            if work := self._prepared.run(kind, async_op, tensors, out):
                return work
        call = calls.reduce_scatter(out, tensors, op, rank=self.rank, size=self.size)
        if codec == "auto":
            codec = self._handle.auto_codec(call.operation, call.num_bytes)
            if codec is None and error_out is not None:
                error_out.zero_()
                error_out = None
        calls.encode(call, codec, None, error_out)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def gather(
        self,
        outs: Tensors | None,
        tensor: Tensor,
        dst: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Copy all ranks' ``tensor`` to ``outs`` of rank ``dst``; others pass None."""
        self._check_rank(dst, "dst")
        kind = None
        if algorithm is None and timeout_s is None:
            results = () if outs is None or self.rank != dst else outs
            kind = kind_of("gather", dst, tensor, results)
            if work := self._prepared.run(kind, async_op, tensor, results):
                return work
        call = calls.gather(outs, tensor, root=dst, rank=self.rank, size=self.size)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def scatter(
        self,
        out: Tensor,
        tensors: Tensors | None,
        src: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Copy rank ``src``'s i-th tensor into ``out`` of rank i; others pass None."""
        self._check_rank(src, "src")
        kind = None
        if algorithm is None and timeout_s is None:
            sources = () if tensors is None or self.rank != src else tensors
            kind = kind_of("scatter", src, sources, out)
            if work := self._prepared.run(kind, async_op, sources, out):
                return work
        call = calls.scatter(out, tensors, root=src, rank=self.rank, size=self.size)
        return self._submit(call, algorithm, timeout_s, async_op=async_op, kind=kind)

    def all_to_all(
        self,
        out: Tensors,
        tensor: Tensors,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Copy the i-th part of ``tensor`` to rank i, for all ranks at once.

        Parts are the tensors of a list, equal parts of one tensor, or as many of its
        rows as the splits say.
        """
        kind = None
        if timeout_s is None:
            rows = _splits(out, out_splits), _splits(tensor, in_splits)
            kind = kind_of("all_to_all", rows, tensor, out)
            if work := self._prepared.run(kind, async_op, tensor, out):
                return work
        call = calls.all_to_all(
            out, tensor, out_splits, in_splits, rank=self.rank, size=self.size
        )
        return self._submit(call, None, timeout_s, async_op=async_op, kind=kind)

    def barrier(
        self, *, timeout_s: float | None = None, async_op: bool = False
    ) -> Work:
        """Return when every rank has called it."""
        kind = NO_TENSORS if timeout_s is None else None
        if work := self._prepared.run(kind, async_op):
            return work
        return self._submit(
            self._barrier, None, timeout_s, async_op=async_op, kind=kind
        )

    def _submit(
        self,
        call: Call,
        algorithm: str | None,
        timeout_s: float | None,
        *,
        async_op: bool,
        kind: Kind | None,
    ) -> Work:
        """Run ``call``; later calls of ``kind`` may run prepared."""
        if kind is not None:
            self._prepared.keep(kind, call)
        return self._handle.submit(call, algorithm, timeout_s, async_op=async_op)

    # -- messages ------------------------------------------------------------------

    def send(
        self,
        tensor: Tensor,
        dst: int,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Send ``tensor`` to rank ``dst``; it is free when the work has ended."""
        self._check_peer(dst)
        _check_tag(tag)
        array = input_array(tensor, "send")
        message = Outgoing(
            peer=dst,
            tag=tag,
            view=bytes_of(array),
            dtype=dtype_name(tensor.dtype),
            count=tensor.numel(),
            deadline=Deadline.after(self.timeout_s if timeout_s is None else timeout_s),
            work=self._runner.message_work(),
        )
        return self._runner.deliver(message, async_op=async_op)

    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Receive into ``tensor`` from rank ``src``; None accepts any rank.

        ``work.source`` is the sender.
        """
        if src is not None:
            self._check_peer(src)
        _check_tag(tag)
        copy_back: CopyBack = []
        array = output_array(tensor, "recv", copy_back)
        work = self._runner.message_work()
        work.copy_back = copy_back
        pending = PendingRecv(
            source=src,
            tag=tag,
            view=bytes_of(array),
            dtype=dtype_name(tensor.dtype),
            count=tensor.numel(),
            deadline=Deadline.after(self.timeout_s if timeout_s is None else timeout_s),
            work=work,
        )
        return self._runner.deliver(pending, async_op=async_op)

    def sendrecv(
        self,
        tensor: Tensor,
        dst: int,
        out: Tensor,
        src: int | None,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
    ) -> Work:
        """Send one tensor and receive another at the same time."""
        sent = self.send(tensor, dst, tag=tag, timeout_s=timeout_s, async_op=True)
        received = self.recv(out, src, tag=tag, timeout_s=timeout_s)
        sent.wait()
        return received

    # -- the group itself ----------------------------------------------------------

    def subgroup(
        self, ranks: Sequence[int], *, timeout_s: float | None = None
    ) -> Group | None:
        """Form a group of some ranks, with its own links; None for other ranks.

        Every member must call it with the same ranks in the same order. The position in
        ``ranks`` becomes the rank. A call that failed can be repeated. Threads may form
        groups of different ranks at the same time, in any order.
        """
        chosen = tuple(ranks)
        if len(set(chosen)) != len(chosen) or not chosen:
            raise ConfigError(
                f"subgroup: ranks {list(ranks)} must be at least one, all different"
            )
        for rank in chosen:
            self._check_rank(rank, "rank")
        self._runner.check()
        if self.rank not in chosen:
            return None
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        # Attempts are not counted: ranks would disagree after one that failed on some
        # of them only. Members meet under one name; the mesh then tells groups of the
        # same ranks apart.
        name = f"{self.view_id}/{','.join(map(str, chosen))}"
        mesh = self._connect(chosen, name, Deadline.after(limit_s))
        view_id = f"{name}#{mesh.incarnation.hex()}"
        return open_group(
            chosen.index(self.rank),
            mesh,
            view_id=view_id,
            connect=lambda r, v, d: self._connect([chosen[i] for i in r], v, d),
            config=self.config,
            network=self._handle.network.part(chosen),
            world_ranks=tuple(self._handle.world_ranks[r] for r in chosen),
        )

    def abort(self, reason: str = "abort() was called") -> None:
        """End the group now, from any thread; pending calls raise GroupAborted."""
        self._runner.abort(GroupAborted(reason))

    def close(self) -> None:
        """Leave the group: say goodbye and close all connections. Idempotent."""
        if not self._closed:
            self._closed = True
            self._runner.close(CLOSE_S, self._handle.end)

    def __repr__(self) -> str:
        kinds = {link.kind for link in self._handle.mesh.bulk.values()}
        state = "+".join(sorted(kinds)) or "no links"
        if self._closed:
            state = "closed"
        elif self._runner.failure is not None:
            state = f"ended by {type(self._runner.failure).__name__}"
        return f"<Group rank {self.rank} of {self.size}, {state}, {self.view_id!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with contextlib.suppress(Exception):
                self.abort(
                    f"rank {self.rank} left with {type(error).__name__}: {error}"
                )
        self.close()

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self.size:
            raise ConfigError(f"{what} {rank} is not a rank of a group of {self.size}")

    def _check_peer(self, peer: int) -> None:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ConfigError(f"rank {peer} cannot exchange messages with itself")


def _splits(given: Tensors, splits: Sequence[int] | None) -> tuple[int, ...] | None:
    """Splits, and the rows that they split, as a part of the kind of a call."""
    if splits is None or not isinstance(given, Tensor) or not given.dim():
        return None
    return (given.shape[0], *splits)


def _check_tag(tag: object) -> None:
    if not isinstance(tag, int) or not -(2**63) <= tag < 2**63:
        raise ConfigError(f"tag {tag!r} is not a whole number of 64 bits")


def open_group(  # noqa: PLR0913
    rank: int,
    mesh: Mesh,
    *,
    view_id: str,
    connect: Connect,
    config: CollectiveConfig | None = None,
    network: Network | None = None,
    world_ranks: tuple[int, ...] = (),
) -> Group:
    """Set up a group over the connections of ``mesh``, which it then owns.

    ``connect`` makes the meshes of sub-groups. ``network`` is known for sub-groups.
    ``world_ranks`` are the ranks in the whole program, if the group is a part of it.
    """
    handle = GroupHandle.open(rank, mesh, view_id, config or CollectiveConfig())
    handle.world_ranks = world_ranks or tuple(range(handle.executor.size))
    if network is not None:
        handle.network = network
    group_metrics.measure_if_asked()
    attach_observers(handle)
    return Group(handle, view_id=view_id, connect=connect)


def handle_of(group: Group) -> GroupHandle:
    """The internals of ``group``, for other packages of Ringleader."""
    return group._handle


def connect_again(group: Group, purpose: str, deadline: Deadline) -> Mesh:
    """Return new connections between all ranks of ``group``, which all call this.

    They are made and authenticated like those of the group, and outlive it.
    """
    name = f"{group.view_id}/{purpose}"
    return group._connect(range(group.size), name, deadline)
