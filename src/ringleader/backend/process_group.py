"""The process group that torch sees: every method runs one operation of our group.

Python callers (``dist.*``, FSDP2, checkpoints) reach every method. C++ callers (DDP's
reducer, functional collectives) reach only the methods that torch's trampoline knows;
device_backend.py, and dispatcher_kernels.py before torch 2.14, serve the others. torch
2.13 renamed some methods; both names are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)
from torch.autograd import profiler

from ringleader.backend import (
    coo_all_reduce,
    dispatcher_kernels,
    dynamo,
    error_context,
    host_memory,
    monitored_barrier,
    rank_facts,
)
from ringleader.backend.completion_pool import CompletionPool
from ringleader.backend.device import Device, available_devices, device_of
from ringleader.backend.device_backend import can_subclass, register_devices
from ringleader.backend.device_exchange import DeviceExchange, Question
from ringleader.backend.host_run import run_on_host
from ringleader.backend.intra_host import (
    IntraHostLayer,
    Steps,
    check_name,
    unavailable_reason,
)
from ringleader.backend.name import NAME
from ringleader.backend.profiling import recorder
from ringleader.backend.repeated_calls import RAN, RepeatedCalls
from ringleader.backend.staging import HostStaging, is_one_chunk
from ringleader.backend.torch_options import (
    Reduction,
    is_split,
    one_or_all,
    options_of,
    reduction,
    single_tensor,
    split,
    tensor_list,
    timeout_of,
    unwrap,
)
from ringleader.backend.work import BackendWork, once
from ringleader.engine import reductions
from ringleader.errors import ConfigError, RingleaderError
from ringleader.groups.group import Group, handle_of
from ringleader.groups.work import Work

_CPU = torch.device("cpu")
Tensors = list[Tensor]
Body = Callable[..., Work]
"""Runs the operation on CPU tensors: (inputs, outputs, timeout_s=, async_op=)."""


class RingleaderGroup(ProcessGroup):
    """A ringleader group as a torch process group.

    Create it with ``wrap``, on all ranks of the group.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    def __init__(
        self, group: Group, store: Store, ranks: list[int], *, is_staged: bool
    ) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self.group = group
        self._store = store
        self._identity = error_context.GroupIdentity(ranks)
        self._completion_pool = CompletionPool()
        self._staging: dict[torch.device, HostStaging] = {}
        self._sequence = 0
        self._num_barriers = 0
        self._width = group.size + 1
        """Tensors that share a staging slot: one per rank, and our own."""
        self.is_staged = is_staged
        """Whether any rank may stage its tensors: then all ranks use its chunks."""
        self.layer: IntraHostLayer | None = None
        """Other collectives inside a host, for some tensors; on all ranks or none."""
        self.exchange: DeviceExchange | None = None
        """Collectives of tensors that are on one GPU; on all ranks or none."""
        self._coalesced: list[BackendWork] | None = None
        self.error_context = error_context.ErrorContext(group, self._identity)
        """Says in errors of this group which operation of which ranks has failed."""
        self._repeated = RepeatedCalls(group, self.error_context, self._staging)
        self._allow_repeated()
        register_devices(self, available_devices())

    @classmethod
    def wrap(
        cls, group: Group, store: Store, ranks: list[int], intra_host: str = ""
    ) -> Self:
        """Wrap ``group`` for torch; communicates, so that all ranks agree on staging.

        ``ranks`` are the global ranks of its members; ``intra_host`` is the backend for
        tensors inside a host, see intra_host.py.
        """
        can_run = not intra_host or not unavailable_reason(check_name(intra_host))
        facts = rank_facts.exchange(group, intra_host if can_run else f"!{intra_host}")
        is_staged = any(rank.has_accelerator for rank in facts)
        if is_staged:
            handle_of(group).expect_accelerators()
        if not can_subclass():  # else C++ finds our methods through the backend
            dispatcher_kernels.install(cls)
        wrapped = cls(group, store, ranks, is_staged=is_staged)
        if intra_host:
            wrapped.layer = IntraHostLayer.create(intra_host, group, store)
            wrapped._allow_repeated()
        if all(rank.has_cuda for rank in facts) and handle_of(group).shares_memory:
            wrapped.exchange = DeviceExchange(group)
        return wrapped

    def _allow_repeated(self) -> None:
        self._repeated.is_allowed = (
            not self.is_staged and self.layer is None and self._coalesced is None
        )
        self._repeated.on_devices.is_allowed = (
            self.is_staged and self._coalesced is None
        )

    # -- identity ------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    name = getBackendName

    def getRank(self) -> int:  # noqa: N802
        return self.group.rank

    def getSize(self) -> int:  # noqa: N802
        return self.group.size

    def getGroupName(self) -> str:  # noqa: N802
        return self._identity.name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._identity.name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._identity.desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._identity.desc = desc

    def get_group_store(self) -> Store:
        return self._store

    def _get_backend(self, device: object) -> RingleaderGroup:
        return self

    def supports_tensor_alloc(self, device: object) -> bool:
        return False

    # -- collectives ---------------------------------------------------------------

    def allreduce(
        self, tensors: Any, opts: Any = None, **named: Any
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.allreduce)):
            return run(tensors, opts, **named)
        if work := self._repeated.all_reduce(tensors, opts):
            return None if work is RAN else self._make_handle(work, list(tensors))
        opts = options_of(AllreduceOptions, opts, named)
        tensor, op = single_tensor(tensors, "all_reduce"), reduction(opts.reduceOp)
        if op.factor is None and self._is_plain(opts, tensor, width=1):
            return self._run_now(self.group.all_reduce, tensor, op.name)
        if tensor.layout is torch.sparse_coo:
            body = partial(coo_all_reduce.all_reduce, self.group, tensor, op)
            return self.run_together(opts, body, [tensor])
        return self._all_reduce(opts, tensor, op)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> BackendWork:
        if profiler._is_profiler_enabled and (
            run := recorder(self.allreduce_coalesced)
        ):
            return run(tensors, opts)
        opts = options_of(AllreduceCoalescedOptions, opts)
        op = reduction(opts.reduceOp)
        tensors = [unwrap(t) for t in tensors]
        works = [self._all_reduce(opts, tensor, op) for tensor in tensors]
        return self._all_of(works, tensors)

    def _in_layers(self, opts: Any, tensors: Tensors, steps: Steps) -> BackendWork:
        """Run one operation by ``layer``; the first tensor is its result."""
        how = self._call_options(opts)
        with self.error_context:
            if tensors[0].is_cpu:
                run = partial(steps.run, tensors)
                work = handle_of(self.group).together(run, **how)
                return self._make_handle(work, tensors[:1])
            stage = self.stage(tensors[0].device)
            work, deliver = stage.in_layers(self.group, steps, tensors, **how)
            return self._make_handle(work, tensors[:1], deliver, stage.device)

    def _all_reduce(self, opts: Any, tensor: Tensor, op: Reduction) -> BackendWork:
        """Reduce by a relay if possible; a device takes part in it without staging."""
        layer = self.layer
        if layer is not None and op.factor is None and layer.serves(tensor, op.name):
            return self._in_layers(opts, [tensor], layer.all_reduce(op.name))
        relay, both = None, [tensor]
        if self.is_staged and op.factor is None:
            relay = handle_of(self.group).relay(tensor.nbytes)
        if relay is None or tensor.is_cpu:
            width = 1 if relay is None else 0
            body = _all_reduce(self.group, op)
            return self._start(opts, both, both, body, both, width=width)
        how = self._call_options(opts)
        how["attempt"] = self._question(opts, both, both)
        with self.error_context:
            reductions.combine(tensor.dtype, op.name)  # raises now, not when it runs
            stage = self.stage(tensor.device)
            work, deliver = stage.all_reduce(self.group, relay, tensor, op.name, **how)
            self._repeated.on_devices.keep(opts, tensor, op.name)
            return self._make_handle(work, both, deliver, stage.device)

    def allreduce_coded(
        self,
        tensor: Tensor,
        codec: str,
        *,
        op: str = "mean",
        error_out: Tensor | None = None,
    ) -> BackendWork:
        """Reduce ``tensor``, encoded by ``codec`` on the way; see Group.all_reduce."""
        if profiler._is_profiler_enabled and (run := recorder(self.allreduce_coded)):
            return run(tensor, codec, op=op, error_out=error_out)
        opts = ReduceOptions()  # not those of a call that an exchange may do
        opts.asyncOp = True

        def body(_: Tensors, outs: Tensors, **how: Any) -> Work:
            rest = outs[1] if len(outs) > 1 else None
            return self.group.all_reduce(
                outs[0], op, codec=codec, error_out=rest, **how
            )

        tensor = unwrap(tensor)
        outs = [tensor] if error_out is None else [tensor, error_out]
        if self.layer is not None and self.layer.serves(tensor):
            return self._in_layers(opts, outs, self.layer.all_reduce(op, codec))
        return self._start(opts, [tensor], outs, body, [tensor], width=len(outs))

    def broadcast(
        self, tensors: Any, opts: Any = None, **named: Any
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.broadcast)):
            return run(tensors, opts, **named)
        if work := self._repeated.broadcast(tensors, opts):
            return None if work is RAN else self._make_handle(work, list(tensors))
        opts = options_of(BroadcastOptions, opts, named)
        tensor, root = single_tensor(tensors, "broadcast"), opts.rootRank
        if self._is_plain(opts, tensor, width=1):
            return self._run_now(self.group.broadcast, tensor, root)
        if self.layer is not None and self.layer.serves(tensor):
            return self._in_layers(opts, [tensor], self.layer.broadcast(root))

        def body(ins: Tensors, outs: Tensors, **how: Any) -> Work:
            return self.group.broadcast((ins or outs)[0], root, **how)

        ins, outs = ([tensor], []) if self.group.rank == root else ([], [tensor])
        return self._start(opts, ins, outs, body, [tensor], width=1)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, **named: Any
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.reduce)):
            return run(tensors, opts, op, **named)
        opts = options_of(
            ReduceOptions, opts, named if op is None else {"op": op, **named}
        )
        tensor, root = single_tensor(tensors, "reduce"), opts.rootRank
        kind = reduction(opts.reduceOp)
        if kind.factor is None and self._is_plain(opts, tensor, width=1):
            return self._run_now(self.group.reduce, tensor, root, kind.name)

        def plain(ins: Tensors, _: Tensors, **how: Any) -> Work:
            return self.group.reduce(ins[0], root, kind.name, **how)

        outs = [tensor] if self.group.rank == root else []
        body = kind.around(plain)
        return self._start(opts, [tensor], outs, body, [tensor], width=1)

    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.allgather)):
            return run(outs, ins, opts)
        opts = options_of(AllgatherOptions, opts)
        tensor = single_tensor(ins, "all_gather")
        result = tensor_list(outs, self.group.size, "all_gather")
        if self._is_plain(opts, tensor):
            return self._run_now(self.group.all_gather, result, tensor)
        return self._start(
            opts, [tensor], result, self._all_gather, result, width=self._width
        )

    def allgather_coalesced(
        self, outs: list[Tensors], ins: Tensors, opts: Any = None
    ) -> BackendWork:
        if profiler._is_profiler_enabled and (
            run := recorder(self.allgather_coalesced)
        ):
            return run(outs, ins, opts)
        opts = options_of(AllgatherOptions, opts)
        columns = [[unwrap(row[i]) for row in outs] for i in range(len(ins))]
        pairs = zip(ins, columns, strict=True)
        parts = [([unwrap(t)], column, self._all_gather) for t, column in pairs]
        result = [t for row in outs for t in row]
        return self._start_all(opts, parts, result, width=self._width)

    def all_gather_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.all_gather_single)):
            return run(output, source, opts)
        if work := self._repeated.all_gather(output, source, opts):
            return None if work is RAN else self._make_handle(work, [output])
        opts = options_of(AllgatherOptions, opts)
        if self._is_plain(opts, source):
            whole = unwrap(output)
            return self._run_now(self.group.all_gather, whole, unwrap(source))
        outs = self._split_by_rank(output)
        return self._start(
            opts, [unwrap(source)], outs, self._all_gather, [output], width=self._width
        )

    def all_gather_single_coalesced(
        self, outs: Tensors, ins: Tensors, opts: Any = None
    ) -> BackendWork:
        if profiler._is_profiler_enabled and (
            run := recorder(self.all_gather_single_coalesced)
        ):
            return run(outs, ins, opts)
        opts = options_of(AllgatherOptions, opts)
        pairs = zip(ins, outs, strict=True)
        parts = [
            ([unwrap(i)], self._split_by_rank(o), self._all_gather) for i, o in pairs
        ]
        return self._start_all(opts, parts, outs, width=self._width)

    def _all_gather(self, ins: Tensors, outs: Tensors, **how: Any) -> Work:
        return self.group.all_gather(one_or_all(outs), ins[0], **how)

    def reduce_scatter(
        self, outs: Any, ins: Any, opts: Any = None
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.reduce_scatter)):
            return run(outs, ins, opts)
        opts = options_of(ReduceScatterOptions, opts)
        tensor = single_tensor(outs, "reduce_scatter")
        parts = tensor_list(ins, self.group.size, "reduce_scatter")
        op = reduction(opts.reduceOp)
        if op.factor is None and self._is_plain(opts, tensor):
            return self._run_now(self.group.reduce_scatter, tensor, parts, op.name)
        body = self._scatter(opts)
        return self._start(opts, parts, [tensor], body, [tensor], width=self._width)

    def reduce_scatter_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (
            run := recorder(self.reduce_scatter_single)
        ):
            return run(output, source, opts)
        if work := self._repeated.reduce_scatter(output, source, opts):
            return None if work is RAN else self._make_handle(work, [output])
        opts = options_of(ReduceScatterOptions, opts)
        op = reduction(opts.reduceOp)
        if op.factor is None and self._is_plain(opts, source):
            out, whole = unwrap(output), unwrap(source)
            return self._run_now(self.group.reduce_scatter, out, whole, op.name)
        ins, body = self._split_by_rank(source), self._scatter(opts)
        return self._start(
            opts, ins, [unwrap(output)], body, [output], width=self._width
        )

    def reduce_scatter_single_coalesced(
        self, outs: Tensors, ins: Tensors, opts: Any = None
    ) -> BackendWork:
        if profiler._is_profiler_enabled and (
            run := recorder(self.reduce_scatter_single_coalesced)
        ):
            return run(outs, ins, opts)
        opts = options_of(ReduceScatterOptions, opts)
        body = self._scatter(opts)
        pairs = zip(ins, outs, strict=True)
        parts = [(self._split_by_rank(i), [unwrap(o)], body) for i, o in pairs]
        return self._start_all(opts, parts, outs, width=self._width)

    def _scatter(self, opts: Any) -> Body:
        op = reduction(opts.reduceOp)

        def body(ins: Tensors, outs: Tensors, **how: Any) -> Work:
            return self.group.reduce_scatter(outs[0], one_or_all(ins), op.name, **how)

        return op.around(body)

    def gather(
        self, outs: Any, ins: Any, opts: Any = None, **named: Any
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.gather)):
            return run(outs, ins, opts, **named)
        opts = options_of(GatherOptions, opts, named)
        tensor, root = single_tensor(ins, "gather"), opts.rootRank
        is_root = self.group.rank == root

        def body(ins: Tensors, outs: Tensors, **how: Any) -> Work:
            return self.group.gather(outs if is_root else None, ins[0], root, **how)

        result = tensor_list(outs, self.group.size, "gather") if is_root else []
        if self._is_plain(opts, tensor):
            return self._run_now(self.group.gather, result or None, tensor, root)
        return self._start(opts, [tensor], result, body, result)

    def gather_single(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.gather_single)):
            return run(output, source, opts)
        is_root = self.group.rank == options_of(GatherOptions, opts).rootRank
        outs = split(unwrap(output).view(-1), (), self.group.size) if is_root else []
        return self.gather([outs], [source], opts)

    gather_into_tensor = gather_single

    def scatter(
        self, outs: Any, ins: Any, opts: Any = None, **named: Any
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.scatter)):
            return run(outs, ins, opts, **named)
        opts = options_of(ScatterOptions, opts, named)
        tensor, root = single_tensor(outs, "scatter"), opts.rootRank
        is_root = self.group.rank == root

        def body(ins: Tensors, outs: Tensors, **how: Any) -> Work:
            return self.group.scatter(outs[0], ins if is_root else None, root, **how)

        parts = tensor_list(ins, self.group.size, "scatter") if is_root else []
        if self._is_plain(opts, tensor):
            return self._run_now(self.group.scatter, tensor, parts or None, root)
        return self._start(opts, parts, [tensor], body, [tensor])

    def alltoall(
        self, outs: Tensors, ins: Tensors, opts: Any = None
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.alltoall)):
            return run(outs, ins, opts)
        opts = options_of(AllToAllOptions, opts)
        ins, outs = (tensor_list(x, self.group.size, "all_to_all") for x in (ins, outs))
        if self._is_plain(opts, ins[0]):
            return self._run_now(self.group.all_to_all, outs, ins)
        return self._start(opts, ins, outs, self._all_to_all, outs)

    def _all_to_all(self, ins: Tensors, outs: Tensors, **how: Any) -> Work:
        return self.group.all_to_all(outs, ins, **how)

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.all_to_all_single)):
            return run(output, source, output_split_sizes, input_split_sizes, opts)
        splits = output_split_sizes or input_split_sizes
        if work := self._repeated.all_to_all(output, source, splits, opts):
            return None if work is RAN else self._make_handle(work, [output])
        opts = options_of(AllToAllOptions, opts)
        out, whole, size = unwrap(output), unwrap(source), self.group.size
        if (
            not self.is_staged
            and whole.is_cpu
            and is_split(out, output_split_sizes, size)
            and is_split(whole, input_split_sizes, size)
        ):
            given = (out, whole, output_split_sizes or None, input_split_sizes or None)
            if self._is_plain(opts, whole):
                return self._run_now(self.group.all_to_all, *given)

            def body(_i: Tensors, _o: Tensors, **how: Any) -> Work:
                return self.group.all_to_all(*given, **how)

            return self._start(opts, [whole], [out], body, [output])
        outs = split(out, output_split_sizes, size)
        ins = split(whole, input_split_sizes, size)
        return self._start(opts, ins, outs, self._all_to_all, [output])

    def barrier(self, opts: Any = None) -> BackendWork | None:
        if profiler._is_profiler_enabled and (run := recorder(self.barrier)):
            return run(opts)
        if work := self._repeated.barrier(opts):
            return None if work is RAN else self._make_handle(work, None)
        opts = options_of(BarrierOptions, opts)
        if not opts.asyncOp and self._coalesced is None and timeout_of(opts) is None:
            return self._run_now(self.group.barrier)
        return self._start(
            opts, [], [], lambda _i, _o, **how: self.group.barrier(**how)
        )

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        limit = self.group.timeout_s if timeout is None else timeout.total_seconds()
        self._num_barriers += 1
        monitored_barrier.run(
            self.group, limit, self._num_barriers, wait_all_ranks=wait_all_ranks
        )

    # The names in torch < 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- point-to-point ------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> BackendWork:
        if profiler._is_profiler_enabled and (run := recorder(self.send)):
            return run(tensors, dst, tag)
        tensor = single_tensor(tensors, "send")
        host_memory.check(tensor, "send")
        if not tensor.is_cpu:
            tensor = tensor.to("cpu")
        return self._post(
            lambda: self.group.send(tensor, dst, tag=tag, async_op=True), [tensor], None
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> BackendWork:
        if profiler._is_profiler_enabled and (run := recorder(self.recv)):
            return run(tensors, src, tag)
        return self._receive(single_tensor(tensors, "recv"), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> BackendWork:
        if profiler._is_profiler_enabled and (run := recorder(self.recv_anysource)):
            return run(tensors, tag)
        return self._receive(single_tensor(tensors, "recv"), None, tag)

    recvAnysource = recv_anysource  # noqa: N815 - the name in C++

    def _receive(self, tensor: Tensor, source: int | None, tag: int) -> BackendWork:
        host_memory.check(tensor, "recv")
        host = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
        deliver = None if tensor.is_cpu else once(lambda: _copy(tensor, host))
        return self._post(
            lambda: self.group.recv(host, source, tag=tag, async_op=True),
            [tensor],
            deliver,
        )

    def _post(
        self,
        post: Callable[[], Work],
        result: Tensors,
        deliver: Callable[[], None] | None,
    ) -> BackendWork:
        with self.error_context:
            return self._make_handle(post(), result, deliver)

    # -- running operations --------------------------------------------------------

    def _is_plain(self, opts: Any, tensor: Tensor, *, width: int = 0) -> bool:
        """Return whether an operation can run in this thread on the tensor itself.

        If ranks stage tensors, only operations on one tensor (``width`` is 1) are.
        """
        return (
            not opts.asyncOp
            and (not self.is_staged or (width == 1 and is_one_chunk(tensor.nbytes)))
            and (self.exchange is None or self.exchange.leaves(tensor.nbytes))
            and self._coalesced is None
            and tensor.is_cpu
            and (self.layer is None or not self.layer.serves(tensor))
            and tensor.layout is torch.strided
            and timeout_of(opts) is None
        )

    def _run_now(
        self, operation: Callable[..., Work], *arguments: Any
    ) -> BackendWork | None:
        """Run a plain operation: the path of many small calls, with nothing else.

        Returns None, as torch allows after a synchronous call: a handle costs 1 us.
        """
        self._sequence += 1
        try:
            operation(*arguments)
        except RingleaderError:
            with self.error_context:  # entering it for every call takes time
                raise
        return None

    def _start(
        self,
        opts: Any,
        ins: Tensors,
        outs: Tensors,
        body: Body,
        result: Tensors | None = None,
        *,
        width: int = 0,
    ) -> BackendWork:
        """Run one operation; ``width`` as in ``HostStaging.run``."""
        how = self._call_options(opts)
        device = next((t.device for t in (*outs, *ins)), _CPU)
        question = self._question(opts, ins, outs)
        with self.error_context:
            if device != _CPU:
                _check_reduction(opts, (*outs, *ins)[0].dtype)
                stage, how["attempt"] = self.stage(device), question
                work, deliver = stage.run(self.group, ins, outs, body, width, **how)
                return self._make_handle(work, result, deliver, stage.device)
            if self.is_staged:
                how["are_on_host"] = question and question.are_on_host
                work = run_on_host(self.group, ins, outs, body, width, **how)
            else:
                work = body(ins, outs, **how)
            return self._make_handle(work, result)

    def run_together(
        self, opts: Any, body: Callable[[], object], result: Tensors
    ) -> BackendWork:
        """Run what ``body`` calls on our group as one operation."""
        how = self._call_options(opts)
        with self.error_context:
            work = handle_of(self.group).together(body, **how)
            return self._make_handle(work, result)

    def count_call(self) -> None:
        """Count an operation that another object runs on our group."""
        self._sequence += 1

    def _question(self, opts: Any, ins: Tensors, outs: Tensors) -> Question | None:
        """Return what ranks agree on before such a call, if they have to."""
        return (
            None if self.exchange is None else self.exchange.question(opts, ins, outs)
        )

    def _start_all(
        self,
        opts: Any,
        parts: list[tuple[Tensors, Tensors, Body]],
        result: Tensors,
        *,
        width: int,
    ) -> BackendWork:
        """Start several operations in order; return one handle for all."""
        works = [self._start(opts, i, o, b, o, width=width) for i, o, b in parts]
        return self._all_of(works, result)

    def _all_of(self, works: list[BackendWork], result: Tensors) -> BackendWork:
        return BackendWork.of_all(
            works, self._completion_pool, add_context=self.error_context, result=result
        )

    def _call_options(self, opts: Any) -> dict[str, Any]:
        """Count the operation and return its arguments for the group."""
        self._sequence += 1
        is_async = self._coalesced is not None or bool(opts.asyncOp)
        return {"timeout_s": timeout_of(opts), "async_op": is_async}

    def _make_handle(
        self,
        work: Work,
        result: Tensors | None,
        deliver: Callable[[], None] | None = None,
        device: Device | None = None,
    ) -> BackendWork:
        handle = BackendWork(
            [work],
            result or [],
            self._completion_pool,
            add_context=self.error_context,
            deliver=deliver,
            device=device,
        )
        if self._coalesced is not None:
            self._coalesced.append(handle)
        return handle

    def stage(self, device: torch.device) -> HostStaging:
        """Return what copies tensors of ``device``."""
        if device not in self._staging:  # two threads may run this at once
            self._staging.setdefault(device, HostStaging(device_of(device)))
        return self._staging[device]

    def _split_by_rank(self, tensor: Tensor) -> Tensors:
        """Return the tensor of all ranks' parts; split by rank if it may be staged."""
        tensor = unwrap(tensor)
        if not self.is_staged:
            return [tensor]
        return split(tensor.view(-1), (), self.group.size)

    def _start_coalescing(self, device: object = None) -> None:
        self._coalesced = []  # drops what an exception interrupted
        self._allow_repeated()

    def _end_coalescing(self, device: object = None) -> BackendWork:
        handles, self._coalesced = self._coalesced, None
        self._allow_repeated()
        if handles is None:
            raise ConfigError("_end_coalescing without _start_coalescing")
        return BackendWork.of_all(
            handles, self._completion_pool, add_context=self.error_context
        )

    start_coalescing = _start_coalescing  # the names for C++
    end_coalescing = _end_coalescing

    # -- the group itself ----------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        self.group.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = self._repeated.count = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence + self._repeated.count

    def abort(self) -> None:
        if self.layer is not None:
            self.layer.abort("torch.distributed aborted the group")
        self.group.abort("torch.distributed aborted the group")

    def shutdown(self) -> None:
        if self.layer is not None:
            self.layer.close()
        self.group.close()
        for stage in self._staging.values():
            stage.close()
        if self.exchange is not None:
            self.exchange.close()
        self._completion_pool.close()


dynamo.skip_compilation(RingleaderGroup)
dynamo.skip_compilation(BackendWork)


def _all_reduce(group: Group, op: Reduction) -> Body:
    def body(_: Tensors, outs: Tensors, **how: Any) -> Work:
        return group.all_reduce(outs[0], op.name, **how)

    return op.around(body)


def _check_reduction(opts: Any, dtype: torch.dtype) -> None:
    """Raise for an unsupported reduction now: inside an operation it ends the group."""
    if hasattr(opts, "reduceOp"):
        reductions.combine(dtype, reduction(opts.reduceOp).name)


def _copy(tensor: Tensor, host: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(host)
