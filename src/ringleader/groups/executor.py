"""From a call to bytes: the header, the algorithm, the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ringleader.codec import registry as codecs
from ringleader.collectives.algorithm import program
from ringleader.collectives.algorithm_selection import (
    choose_algorithm,
    choose_codec,
    choose_coded_algorithm,
    hierarchy_program,
)
from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.collectives.schedule import Program
from ringleader.deadline import Deadline
from ringleader.engine import arrays, reductions
from ringleader.engine.arena import Arena
from ringleader.engine.arrays import Array
from ringleader.engine.coded import CodedEngine
from ringleader.engine.coded_frames import Parts
from ringleader.engine.exchange import ExchangeEngine
from ringleader.engine.float_view import Run
from ringleader.engine.flow import Plan, Windows
from ringleader.engine.prepared import (
    SMALL_BYTES,
    Prepared,
    Shape,
    in_memory,
    in_place,
    over_links,
)
from ringleader.engine.reductions import Combine
from ringleader.engine.shared_memory import barrier as shared_barrier
from ringleader.engine.stream import StreamEngine
from ringleader.engine.waiter import Waiter
from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups import shared
from ringleader.groups.call import Call, cut, some
from ringleader.groups.coded import chunks_of
from ringleader.groups.control_channel import ControlChannel, mismatch
from ringleader.groups.header_template import HeaderTemplates
from ringleader.groups.progress import Progress, final_runs, num_results
from ringleader.transport.link import wait_ready
from ringleader.transport.mesh import Mesh
from ringleader.wire import header as wire

PASSING = frozenset({"reduce", "reduce_scatter", "gather", "scatter"})
"""Where chunks pass through ranks that do not keep them. What is on its way has to fit
into its window as a whole: on a ring all ranks send before they pass on, and one that
cannot take any more in would wait for the others, who wait for it."""
EXPLAIN_S = 0.5
"""How long a peer whose call is not ours may take to tell what it called."""


_BYTE = torch.uint8
MAX_KEPT = 4096
"""Choices kept for calls like earlier ones; a model makes far fewer."""


class Executor:
    """Runs calls of one group, one at a time, in the order they come."""

    def __init__(
        self,
        rank: int,
        group: int,
        mesh: Mesh,
        control: ControlChannel,
        waiter: Waiter,
    ) -> None:
        self.rank = rank
        self.size = len(mesh.bulk) + 1
        self._network = Network.unknown(self.size)
        self.config = CollectiveConfig()
        self._control = control
        self._waiter = waiter
        self._templates = HeaderTemplates(group, control)
        self._windows = Windows()
        self._quiet = reductions.quiet_context()
        self._choices: dict[tuple[object, ...], tuple[str, int, str]] = {}
        self._codecs: dict[tuple[str, int], str | None] = {}
        self._plans: dict[tuple[str, str, int, int], Plan] = {}
        self._parts: dict[tuple[str, str, int, int], Parts] = {}
        self._stream = StreamEngine(mesh.bulk, waiter)
        self._coded = CodedEngine(mesh.bulk, waiter)
        self._exchange = ExchangeEngine(rank, mesh.bulk, waiter, self._mismatch)
        self.arena: Arena | None = None
        if mesh.segment and len(mesh.shm_peers) == self.size - 1 > 0:
            self.arena = Arena(
                rank, mesh.shm_peers, mesh.segment, waiter, self._mismatch
            )
        self._last: tuple[Call, Plan | None] | None = None
        """The operation under way or failed; what has succeeded is let go of."""
        self._last_sequence = 0

    def choose(self, call: Call, algorithm: str | None) -> tuple[str, int, str]:
        """(algorithm, arity, reason) for ``call``; what was priced once is kept."""
        if algorithm is not None:
            return self._check(self._choose(call, algorithm))
        key = (call.operation, call.num_bytes, call.root or 0, call.kind)
        choice = self._choices.get(key)
        if choice is None:
            if len(self._choices) >= MAX_KEPT:
                self._choices.clear()
            choice = self._choices[key] = self._check(self._choose(call, None))
        return choice

    def _choose(self, call: Call, algorithm: str | None) -> tuple[str, int, str]:
        if call.codec is not None:
            num_bytes = codecs.make_codec(call.codec).num_bytes(call.count)
            return choose_coded_algorithm(
                call.operation, num_bytes, self._network, algorithm
            )
        return choose_algorithm(
            call.operation,
            call.num_bytes,
            self._network,
            root=call.root or 0,
            config=self.config,
            algorithm=algorithm,
        )

    def _check(self, choice: tuple[str, int, str]) -> tuple[str, int, str]:
        if choice[0] == "shm" and self.arena is None and self.size > 1:
            raise ConfigError("shm: not all ranks of this group share memory")
        return choice

    @property
    def network(self) -> Network:
        """What choices are based on."""
        return self._network

    @network.setter
    def network(self, network: Network) -> None:
        self._network = network
        self._choices.clear()
        self._codecs.clear()

    def run(self, call: Call, name: str, arity: int, deadline: Deadline) -> None:
        """Do it; an exception leaves the group unusable."""
        header = self._begin(call, name, arity, deadline)
        self._quiet.run(self._run, call, name, arity, header)
        for finish in call.finishers:
            finish()
        self._last = None

    def codec(self, operation: str, num_bytes: int) -> str | None:
        """The codec that "auto" stands for; equal on all ranks."""
        key = (operation, num_bytes)
        if key not in self._codecs:
            if len(self._codecs) >= MAX_KEPT:
                self._codecs.clear()
            self._codecs[key] = choose_codec(operation, num_bytes, self._network)
        return self._codecs[key]

    def _run(self, call: Call, name: str, arity: int, header: bytes) -> None:
        if self.size == 1:
            self._copy_own(call, None)
            if call.residual is not None:
                self._pay(call)
            if call.error_out is not None:
                call.error_out.fill(0)
        elif call.codec is not None:
            self._run_coded(call, name, arity, header)
        else:
            self._run_plain(call, name, arity, header)
        if call.reduce_op == "mean" and not self._has_divided(call, name):
            for result in call.homes:
                if result is not None:
                    reductions.divide(result, call.dtype, self.size)

    def _run_plain(self, call: Call, name: str, arity: int, header: bytes) -> None:
        combine = None
        if call.reduce_op != "none":
            combine = reductions.combine(call.dtype, call.reduce_op)
        if name == "shm":
            self._run_shared(call, header, combine)
        elif name == "exchange":
            source, home = some(call.sources[0]), some(call.homes[0])
            self._exchange.all_reduce(header, source, home, some(combine))
        else:
            self._run_stream(call, name, arity, header, combine)

    def _has_divided(self, call: Call, name: str) -> bool:
        """Who completes a part has divided it while it was in its cache."""
        if name == "exchange":
            return False
        known = ("all_reduce", "reduce_scatter") if name == "shm" else ("all_reduce",)
        return call.codec is not None or call.operation in known

    def prepare(self, call: Call, name: str) -> Prepared | None:
        """The prepared form of ``call``, if it is one that can be prepared."""
        if (
            call.operation != "all_reduce"
            or not call.count
            or self.size == 1
            or call.dtype.is_complex
        ):
            return None
        shape = Shape(
            count=call.count,
            dtype=arrays.storage_dtype(call.dtype),
            combine=reductions.combine(call.dtype, call.reduce_op),
            stamp=self._templates.of(call, name, 0),
            finish=self._divider(call),
        )
        arena = self.arena
        if name == "exchange" and call.num_bytes <= SMALL_BYTES:
            run = over_links(self._exchange, shape)
        elif name != "shm" or arena is None:
            return None
        elif call.num_bytes <= arena.one_shot_bytes:
            run = in_memory(arena, shape)
        else:
            run = self._tracked(call, in_place(arena, shape))
        return partial(self._quiet.run, run)  # type: ignore[call-arg]

    def _tracked(self, call: Call, run: Prepared) -> Prepared:
        """``run``, of which one can see after a failure how far it came."""
        shape = replace(call, sources=[None], homes=[None], finishers=[])

        def tracked(address: int) -> None:
            self._last = (shape, None)
            self._last_sequence = self._templates.sequence + 1
            run(address)
            self._last = None

        return tracked

    def _divider(self, call: Call) -> Callable[[Array], None] | None:
        if call.reduce_op != "mean":
            return None
        dtype, size = call.dtype, self.size
        return lambda result: reductions.divide(result, dtype, size)

    def barrier(self, deadline: Deadline) -> None:
        """Return when every rank has called."""
        token = np.zeros(1, np.uint8)
        call = Call(
            operation="barrier",
            dtype=_BYTE,
            count=0,
            num_bytes=1,
            reduce_op="none",
            sources=[token],
            homes=[token],
            lengths=[1],
            whole=True,
        )
        name = "shm" if self.arena else "exchange"
        header = self._begin(call, name, 0, deadline)
        if self.arena:
            shared_barrier(self.arena, header)
        elif self.size > 1:
            combine = reductions.combine(_BYTE, "bor")
            self._exchange.all_reduce(header, token, token, combine)

    # -- header --------------------------------------------------------------------

    def _begin(self, call: Call, name: str, arity: int, deadline: Deadline) -> bytes:
        self._last = (call, None)
        self._last_sequence = self._templates.sequence + 1
        if self.arena is not None:
            self.arena.complete = 0
        header = self._templates.of(call, name, arity)()
        self._waiter.start(deadline, header)
        return header

    def _headers(self, call: Call, header: bytes) -> dict[int, tuple[bytes, bytes]]:
        """peer -> (ours, the expected); only all_to_all has different ones."""
        pairs = [(p, n) for p, n in call.pairs.items() if p != self.rank]
        if not pairs:
            return dict.fromkeys(range(self.size), (header, header))
        at = wire.COUNT_OFFSET

        def with_count(count: int) -> bytes:
            return header[:at] + count.to_bytes(8, "little") + header[at + 8 :]

        return {p: (with_count(out), with_count(into)) for p, (out, into) in pairs}

    def _mismatch(self, peer: int, theirs: bytes) -> None:
        """Raise what says best how ``peer`` and we differ."""
        ours = wire.decode(self._control.current, self.rank)
        if self._last is not None and peer in self._last[0].pairs:
            ours = replace(ours, count=self._last[0].pairs[peer][1])
        # What we read may be what the peer wrote in an earlier call, or nothing yet: in
        # shared memory its present call may use other slots. Then it tells when asked.
        if not any(theirs):
            self._control.ask([peer])
            self._hear_out()
            raise CallMismatch(peer, f"called something else while we called {ours}")
        call = wire.decode(theirs, peer)
        if call.sequence != ours.sequence:
            self._control.compare(peer, theirs)
            self._control.ask([peer])
            self._hear_out()
        elif replace(call, history=ours.history) == ours:
            # We agree now but did not before: both tell their calls, and compare.
            self._control.recount(peer)
            self._hear_out()
        raise mismatch(peer, call, self.rank, ours)

    def _hear_out(self) -> None:
        """Give the peer a moment to say what it called; that raises a better error."""
        until = Deadline.after(EXPLAIN_S)
        while not until.is_over():
            self._control.progress()
            wait_ready(self._control.wanted(), until.left_s())

    def _run_shared(self, call: Call, header: bytes, combine: Combine | None) -> None:
        arena = some(self.arena)
        arena.complete = 0
        shared.RUN[call.operation](
            arena,
            call,
            shared.Task(
                header=header,
                headers=self._headers(call, header),
                combine=combine,
                finish=self._divider(call),
            ),
        )

    # -- links ---------------------------------------------------------------------

    def _plan(self, call: Call, name: str, arity: int) -> Plan:
        key = (call.operation, name, call.root or 0, arity)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self._program(*key))
        return plan

    def _program(self, operation: str, name: str, root: int, arity: int) -> Program:
        if name == "hierarchy":
            return hierarchy_program(
                operation, self.rank, self.network, root, self.config
            )
        return program(operation, name, self.rank, self.size, root=root, arity=arity)

    def _run_stream(
        self, call: Call, name: str, arity: int, header: bytes, combine: Combine | None
    ) -> None:
        plan = self._plan(call, name, arity)
        sources, homes, lengths = call.sources, call.homes, call.lengths
        if call.whole:
            sources, homes, lengths = cut(call, plan.num_chunks)
        dtype = arrays.storage_dtype(call.dtype)
        self._windows.dtype = dtype
        longest = max(lengths, default=0)
        step = longest
        if call.operation in PASSING and name != "direct":
            step = self._windows.room(len(lengths)) // dtype.itemsize
        self._last = (call, plan if longest <= step else None)
        last = combine
        if combine and call.reduce_op == "mean" and self._has_divided(call, name):
            last = reductions.and_divide(combine, call.dtype, self.size)
        for start in range(0, max(longest, 1), max(step, 1)):
            run = slice(start, start + step)
            plan.bind(
                [None if s is None else s[run] for s in sources],
                [None if h is None else h[run] for h in homes],
                [max(0, min(step, n - start)) for n in lengths],
                self._windows,
            )
            self._stream.run(
                plan,
                headers=self._headers(call, header),
                dtype=dtype,
                combine=combine,
                last=last,
                on_mismatch=self._mismatch,
            )
        self._copy_own(call, plan)
        plan.release()

    def _run_coded(self, call: Call, name: str, arity: int, header: bytes) -> None:
        key = (call.operation, name, call.root or 0, arity)
        parts = self._parts.get(key)
        if parts is None:
            parts = self._parts[key] = Parts(self._program(*key))
        finish = None
        if call.reduce_op == "mean":
            finish = partial(reductions.divide, dtype=torch.float32, by=self.size)
        self._coded.run(
            parts,
            chunks_of(call, parts.num_chunks),
            codecs.make_codec(some(call.codec), self.rank),
            headers=self._headers(call, header),
            on_mismatch=self._mismatch,
            finish=finish,
        )

    def _pay(self, call: Call) -> None:
        """Nobody else is there: the result is the tensor and what is owed on it."""
        home = Run(some(call.homes[0]), call.dtype, call.residual)
        all_of_it = slice(0, call.count)
        room = home.room(all_of_it, np.empty(call.count, np.float32))
        home.write(all_of_it, home.read(all_of_it, room))

    def _copy_own(self, call: Call, plan: Plan | None) -> None:
        """What a rank keeps for itself never travels."""
        for chunk, (source, home) in enumerate(
            zip(call.sources, call.homes, strict=True)
        ):
            if source is None or home is None:
                continue
            if plan is not None and plan.is_written(chunk):
                continue
            if source.ctypes.data != home.ctypes.data:
                np.copyto(home, source)

    def progress(self) -> Progress:
        """What of the operation that failed is final on this rank."""
        if not self._control.current:
            return Progress("no operation yet", 0, ())
        header = wire.decode(self._control.current, self.rank)
        if self._last is None or self._last_sequence != self._templates.sequence:
            return Progress(str(header), header.count, ())
        call, plan = self._last
        in_memory = self.arena.complete if self.arena else 0
        return Progress(
            str(header), num_results(call), final_runs(call, plan, in_memory)
        )
