"""A group: ranks that move tensors together, in one epoch of the membership.

A group is immutable. When a peer is lost, calls differ or time runs out, it is broken
for good: every pending and later call raises the same typed error, and a new group is
formed instead.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.deadline import Deadline
from ringleader.engine import arrays
from ringleader.engine.prepared import Prepared
from ringleader.engine.relay import Carrier, Relay
from ringleader.errors import ConfigError, GroupAborted
from ringleader.groups import call as calls
from ringleader.groups.call import Call
from ringleader.groups.coded import as_it_is, code
from ringleader.groups.control_channel import ControlChannel
from ringleader.groups.executor import Executor
from ringleader.groups.messages import Outgoing, PendingRecv
from ringleader.groups.progress import Progress
from ringleader.groups.runner import Runner
from ringleader.groups.work import DONE, Work
from ringleader.transport.mesh import Mesh

Connect = Callable[[Sequence[int], str, Deadline], Mesh]
"""(ranks of a sub-group, its view id, deadline) -> its mesh."""

CLOSE_S = 2.0
MAX_PREPARED = 256
"""Prepared operations kept; a model has far fewer sizes of tensors."""


def view_hash(view_id: str) -> int:
    """The 64 bits that stand for a view on the wire."""
    return int.from_bytes(
        hashlib.blake2b(view_id.encode(), digest_size=8).digest(), "little"
    )


class Group:
    """Collectives and messages between ``size`` ranks. Methods may be called from any
    thread; collectives run in the order they are called, which must be the same on all
    ranks. Tensors belong to the group until the operation has ended.
    """

    def __init__(
        self,
        rank: int,
        mesh: Mesh,
        *,
        view_id: str,
        connect: Connect,
        config: CollectiveConfig | None = None,
        network: Network | None = None,
    ) -> None:
        self.rank = rank
        self.size = len(mesh.bulk) + 1
        self.view_id = view_id
        self.config = config or CollectiveConfig()
        self._mesh = mesh
        self._connect = connect
        self._control = ControlChannel(rank, mesh.control)
        self._runner = Runner(self._control, f"rank{rank}")
        self._executor = Executor(
            rank, view_hash(view_id), mesh, self._control, self._runner.waiter
        )
        self._executor.config = self.config
        self._prepared: dict[tuple[torch.dtype, int, str], Prepared] = {}
        self.network = network or Network.unknown(self.size)
        self.timeout_s = self.config.timeout_s
        self._subgroups: dict[tuple[int, ...], int] = {}
        self._closed = False
        self.on_close: Callable[[], None] = lambda: None
        """What else ends with the group: the listener it was formed with."""

    @property
    def timeout_s(self) -> float:
        """The limit of operations that are not given one."""
        return self._runner.waiter.default_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self._runner.waiter.default_s = seconds

    @property
    def network(self) -> Network:
        """What is known of the links; equal on all ranks."""
        return self._executor.network

    @network.setter
    def network(self, network: Network) -> None:
        self._executor.network = network
        self._prepared.clear()

    def auto_codec(self, operation: str, num_bytes: int) -> str | None:
        """The codec that "auto" stands for in such a call; equal on all ranks."""
        return self._executor.codec(operation, num_bytes)

    def links(self) -> dict[int, str]:
        """peer -> what connects us: "shm", "tcp", and why not shm where that failed."""
        notes = self._mesh.notes
        return {
            p: link.kind + (f" ({notes[p]})" if p in notes else "")
            for p, link in self._mesh.bulk.items()
        }

    def progress(self) -> Progress:
        """How far the last collective came; meant to be read after a failure."""
        return self._executor.progress()

    def choice(self, operation: str, num_bytes: int) -> tuple[str, str]:
        """(algorithm, reason) that a call of this size would get."""
        blank: list[arrays.Array | None] = []
        call = Call(
            operation=operation,
            dtype=torch.uint8,
            count=num_bytes,
            num_bytes=num_bytes,
            sources=blank,
            homes=blank,
            lengths=[],
        )
        name, _, reason = self._executor.choose(call, None)
        return name, reason

    # -- collectives ---------------------------------------------------------------

    def all_reduce(  # noqa: PLR0913 - one keyword each
        self,
        tensor: Tensor,
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
        """Combine everybody's ``tensor``, in place, or into ``out`` and leave it.

        With a ``codec`` it travels in fewer bytes, and all ranks get the same bits.
        ``error_out`` (float32) then receives this rank's encoding error: summed over
        the ranks, it is what the sum lacks, also when ``op`` is "mean". Pass it as
        ``residual`` to the next call, which adds it to its ``tensor``, so that nothing
        is lost for good. The codec "auto" is chosen by the measured network.
        """
        if codec == "auto":
            codec = self.auto_codec("all_reduce", tensor.nbytes)
            if codec is None:
                tensor, residual, error_out = as_it_is(tensor, out, residual, error_out)
        plain = (
            out is None
            and codec is None
            and algorithm is None
            and timeout_s is None
            and not async_op
        )
        try:
            key = (tensor.dtype, tensor.numel(), op)
        except AttributeError as exc:
            text = f"all_reduce: expected a tensor, got {type(tensor).__name__}"
            raise ConfigError(text) from exc
        if plain:
            prepared = self._prepared.get(key)
            if (
                prepared is not None
                and tensor.is_cpu
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and (address := tensor.data_ptr())
                and self._runner.run_prepared(prepared, address)
            ):
                return DONE
        call = code(calls.all_reduce(tensor, op, out), codec, residual, error_out)
        if plain and key not in self._prepared:
            self._prepare(key, call)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def relay(self, num_bytes: int) -> Relay | None:
        """What all_reduces so many bytes, if that is a relay; the same on all ranks."""
        arena = self._executor.arena
        if arena is None or num_bytes <= arena.one_shot_bytes:
            return None
        return arena.relay if self.choice("all_reduce", num_bytes)[0] == "shm" else None

    def all_reduce_carried(
        self,
        carrier: Carrier,
        dtype: torch.dtype,
        count: int,
        op: str = "sum",
        finishers: Sequence[Callable[[], object]] = (),
    ) -> Work:
        """Combine a tensor on an accelerator, in place, if ``relay`` says that it can.

        On other ranks, the same call may be an ``all_reduce``. ``finishers`` are called
        at the end; only then is anything final.
        """
        call = calls.all_reduce_carried(carrier, dtype, count, op, list(finishers))
        if self.relay(call.num_bytes) is None:
            raise ConfigError(
                f"all_reduce: {call.num_bytes} bytes are not relayed here"
            )
        return self._submit(call, "shm", None, async_op=False)

    def expect_accelerators(self) -> None:
        """Relay in larger parts from now on; called by all ranks at the same time."""
        if self._executor.arena is not None:
            self._executor.arena.expect_accelerators()

    def _prepare(self, key: tuple[torch.dtype, int, str], call: Call) -> None:
        """Next time a tensor like this comes, everything is looked up already."""
        name, _, _ = self._executor.choose(call, None)
        prepared = self._executor.prepare(call, name)
        if prepared is not None:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.clear()
            self._prepared[key] = prepared

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
        call = calls.reduce(tensor, op, root=dst, is_root=self.rank == dst)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def broadcast(
        self,
        tensor: Tensor,
        src: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Put rank ``src``'s values into everybody's ``tensor``."""
        self._check_rank(src, "src")
        call = calls.broadcast(tensor, root=src, is_root=self.rank == src)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def all_gather(
        self,
        outs: Tensor | Sequence[Tensor],
        tensor: Tensor,
        *,
        codec: str | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Everybody's ``tensor`` into ``outs``: one per rank, or one tensor for all."""
        call = calls.all_gather(outs, tensor, rank=self.rank, size=self.size)
        if codec == "auto":
            codec = self.auto_codec(call.operation, call.num_bytes)
        call = code(call, codec, None, None)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def reduce_scatter(  # noqa: PLR0913
        self,
        out: Tensor,
        tensors: Tensor | Sequence[Tensor],
        op: str = "sum",
        *,
        codec: str | None = None,
        error_out: Tensor | None = None,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Combine the parts meant for this rank into ``out``."""
        call = calls.reduce_scatter(out, tensors, op, rank=self.rank, size=self.size)
        if codec == "auto":
            codec = self.auto_codec(call.operation, call.num_bytes)
            if codec is None and error_out is not None:
                error_out.zero_()
                error_out = None
        call = code(call, codec, None, error_out)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def gather(
        self,
        outs: Tensor | Sequence[Tensor] | None,
        tensor: Tensor,
        dst: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Everybody's ``tensor`` into ``outs`` of rank ``dst``; others pass None."""
        self._check_rank(dst, "dst")
        call = calls.gather(outs, tensor, root=dst, rank=self.rank, size=self.size)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def scatter(
        self,
        out: Tensor,
        tensors: Tensor | Sequence[Tensor] | None,
        src: int,
        *,
        algorithm: str | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Rank ``src``'s i-th tensor into ``out`` of rank i; others pass None."""
        self._check_rank(src, "src")
        call = calls.scatter(out, tensors, root=src, rank=self.rank, size=self.size)
        return self._submit(call, algorithm, timeout_s, async_op=async_op)

    def all_to_all(
        self,
        out: Tensor | Sequence[Tensor],
        tensor: Tensor | Sequence[Tensor],
        *,
        out_splits: Sequence[int] | None = None,
        in_splits: Sequence[int] | None = None,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Send the i-th part of ``tensor`` to rank i, for every i at once.

        Parts are tensors of a list, equal cuts of one tensor, or ``splits`` rows of it.
        """
        finishers: list[Callable[[], object]] = []
        homes = calls.split_all_to_all(out, out_splits, self.size, finishers)
        sources = calls.split_all_to_all(tensor, in_splits, self.size, None)
        some = tensor if isinstance(tensor, Tensor) else tensor[0]
        dtype = some.dtype
        calls.check_dtypes(some, out, "all_to_all")
        call = calls.all_to_all(homes, sources, dtype, finishers, rank=self.rank)
        return self._submit(call, None, timeout_s, async_op=async_op)

    def barrier(
        self, *, timeout_s: float | None = None, async_op: bool = False
    ) -> Work:
        """Return when every rank has called it."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self._runner.call(self._executor.barrier, limit_s, async_op=async_op)

    def together(
        self,
        body: Callable[[], object],
        *,
        timeout_s: float | None = None,
        async_op: bool = False,
    ) -> Work:
        """Run the collectives that ``body`` calls on this group as one operation.

        Nothing comes between them, and they share one deadline. ``body`` may run in
        another thread; an exception in it breaks the group, as the others wait for us.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s

        def run(_: Deadline) -> None:
            body()

        return self._runner.call(run, limit_s, async_op=async_op, nests=True)

    def _submit(
        self,
        call: Call,
        algorithm: str | None,
        timeout_s: float | None,
        *,
        async_op: bool,
    ) -> Work:
        name, arity, _ = self._executor.choose(call, algorithm)
        limit_s = self.timeout_s if timeout_s is None else timeout_s

        def body(deadline: Deadline) -> None:
            self._executor.run(call, name, arity, deadline)

        return self._runner.call(body, limit_s, async_op=async_op)

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
        """Send ``tensor`` to rank ``dst``; ends when the tensor may be used again."""
        self._check_peer(dst)
        _check_tag(tag)
        array = calls.reading(tensor, "send")
        message = Outgoing(
            peer=dst,
            tag=tag,
            view=arrays.bytes_of(array),
            dtype=arrays.dtype_name(tensor.dtype),
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
        """Receive into ``tensor`` from rank ``src``, or from who sends this tag first.

        ``work.source`` says who it was.
        """
        if src is not None:
            self._check_peer(src)
        _check_tag(tag)
        finishers: list[Callable[[], object]] = []
        array = calls.writing(tensor, "recv", finishers)
        work = self._runner.message_work()
        work.finishers = finishers
        pending = PendingRecv(
            source=src,
            tag=tag,
            view=arrays.bytes_of(array),
            dtype=arrays.dtype_name(tensor.dtype),
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
        """A group of some of us, with links of its own; None if we are not in it.

        Every member must call it with the same ranks in the same order; the position in
        ``ranks`` becomes the rank.
        """
        chosen = tuple(ranks)
        if len(set(chosen)) != len(chosen) or not chosen:
            raise ConfigError(
                f"subgroup: ranks {list(ranks)} must be different, not none"
            )
        for rank in chosen:
            self._check_rank(rank, "rank")
        self._runner.check()
        turn = self._subgroups[chosen] = self._subgroups.get(chosen, 0) + 1
        if self.rank not in chosen:
            return None
        view_id = f"{self.view_id}/{','.join(map(str, chosen))}#{turn}"
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        mesh = self._connect(chosen, view_id, Deadline.after(limit_s))
        return Group(
            chosen.index(self.rank),
            mesh,
            view_id=view_id,
            connect=lambda r, v, d: self._connect([chosen[i] for i in r], v, d),
            config=self.config,
            network=self.network.part(chosen),
        )

    def abort(self, reason: str = "abort() was called") -> None:
        """End the group now, from any thread; pending calls raise GroupAborted."""
        self._runner.abort(GroupAborted(reason))

    def close(self) -> None:
        """Leave the group: tell the others, end the thread, hang up. Idempotent."""
        if not self._closed:
            self._closed = True
            self._runner.close(CLOSE_S, self._end)

    def _end(self) -> None:
        self.hang_up()
        self.on_close()

    def hang_up(self) -> None:
        """Close all connections without a word; what a forked child does at once."""
        self._control.close()
        self._mesh.close()

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


def _check_tag(tag: object) -> None:
    if not isinstance(tag, int) or not -(2**63) <= tag < 2**63:
        raise ConfigError(f"tag {tag!r} is not a whole number of 64 bits")
