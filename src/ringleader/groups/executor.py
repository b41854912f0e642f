"""Chooses the algorithm of a call, gives it a header and runs it on an engine.

A table maps the chosen algorithm to the engine that implements it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ringleader.codec.registry import make_codec
from ringleader.collectives.algorithm_selection import (
    choose_algorithm,
    choose_codec,
    choose_coded_algorithm,
)
from ringleader.collectives.config import CollectiveConfig
from ringleader.collectives.cost_model import Network
from ringleader.deadline import Deadline
from ringleader.engine.arrays import Array
from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call
from ringleader.engine.engine import Engine, Finish, Prepared, Start
from ringleader.engine.observer import Observer, observed
from ringleader.engine.over_links.coded_engine import CodedEngine
from ringleader.engine.over_links.exchange_engine import ExchangeEngine
from ringleader.engine.over_links.programs import Programs
from ringleader.engine.over_links.stream_engine import StreamEngine
from ringleader.engine.reductions import quiet_context
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.shared_memory_engine import SharedMemoryEngine
from ringleader.engine.single_rank_engine import SingleRankEngine
from ringleader.engine.waiter import Waiter
from ringleader.errors import ConfigError
from ringleader.groups.control_channel import ControlChannel
from ringleader.groups.header_template import HeaderTemplates
from ringleader.groups.progress import Progress
from ringleader.groups.started_calls import watched_start
from ringleader.transport.mesh import Mesh
from ringleader.wire import header as wire
from ringleader.wire.names import ALGORITHMS

Choice = tuple[str, int, str]
"""(algorithm, arity of a tree, reason)."""
CODED = "coded"
"""Key of the engine for calls with a codec, whatever their algorithm."""
TRACKED_BYTES = 64 << 10
"""Prepared calls beyond this size report their progress, and those whose result has
another length than their header says. The others end at once, and tracking them would
take a tenth of a microsecond of the ten that they take."""
MAX_KEPT = 4096
"""Choices kept for calls like earlier ones; a model makes far fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A function that does calls of one kind."""

    run: Prepared
    """The function, observed by ``observer``."""
    observer: Observer | None
    """The observer at the time when it was prepared."""
    plain: Prepared
    """The function, not observed."""
    shape: Call
    """A call of this kind, without its arrays."""
    start: Start | None
    """Begins such a call, observed by ``observer``."""


class Executor:
    """Runs the calls of one group, one at a time, in the order they come."""

    def __init__(
        self,
        rank: int,
        group: int,
        mesh: Mesh,
        control: ControlChannel,
        waiter: Waiter,
        config: CollectiveConfig,
    ) -> None:
        self.rank = rank
        self.size = len(mesh.bulk) + 1
        self.config = config
        self.shared: SharedMemoryEngine | None = None
        """The engine for shared memory; None unless all ranks share memory."""
        if mesh.segment and len(mesh.shm_peers) == self.size - 1 > 0:
            arena = Arena(rank, mesh.shm_peers, mesh.segment, waiter)
            self.shared = SharedMemoryEngine(arena)
        self._control = control
        self._waiter = waiter
        self._templates = HeaderTemplates(group, control)
        self._quiet = quiet_context()
        self._programs = Programs(rank, Network.unknown(self.size), config)
        self._engines = self._make_engines(mesh)
        self._choices: dict[tuple[object, ...], Choice] = {}
        self._codecs: dict[tuple[str, int], str | None] = {}
        self._has_shared_memory = self.shared is not None
        self._progress: Progress | None = None
        """The progress at the end of the group."""
        self._running: Call | None = None
        """The call that is running or has failed; None after success."""

    def _make_engines(self, mesh: Mesh) -> dict[str, Engine]:
        """The table from algorithm to engine."""
        if self.size == 1:
            return dict.fromkeys((*ALGORITHMS, CODED), SingleRankEngine())
        over_links = self.rank, mesh.bulk, self._waiter
        stream = StreamEngine(*over_links, self._programs)
        engines: dict[str, Engine] = dict.fromkeys(ALGORITHMS, stream)
        engines["exchange"] = ExchangeEngine(*over_links)
        engines[CODED] = CodedEngine(*over_links, self._programs)
        if self.shared is not None:
            engines["shm"] = self.shared
        return engines

    def _engine(self, call: Call) -> Engine:
        return self._engines[call.algorithm if call.codec is None else CODED]

    @property
    def observer(self) -> Observer | None:
        """Told about every call from the next one on, except those prepared before."""
        return self._waiter.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._waiter.observer = observer

    # -- choices -------------------------------------------------------------------

    @property
    def network(self) -> Network:
        """The measured network, which choices are based on."""
        return self._programs.network

    @network.setter
    def network(self, network: Network) -> None:
        self._programs.network = network
        self._choices.clear()
        self._codecs.clear()

    def choose(self, call: Call, algorithm: str | None = None) -> str:
        """Set the algorithm of ``call`` and return the reason for it.

        ``algorithm`` is the one that was asked for. Choices are kept per kind of call.
        """
        key = (call.operation, call.num_bytes, call.root or 0, call.codec_name)
        choice = self._choices.get(key) if algorithm is None else None
        if choice is None:
            choice = self._choose(call, algorithm)
            if choice[0] == "shm" and not self._has_shared_memory and self.size > 1:
                raise ConfigError("shm: not all ranks of this group share memory")
            if algorithm is None:
                if len(self._choices) >= MAX_KEPT:
                    self._choices.clear()
                self._choices[key] = choice
        call.algorithm, call.arity, reason = choice
        return reason

    def _choose(self, call: Call, algorithm: str | None) -> Choice:
        if call.operation == "barrier":
            name = "shm" if self._has_shared_memory else "exchange"
            return name, 0, "the only one for barriers"
        if call.codec is not None:
            num_bytes = make_codec(call.codec).num_bytes(call.count)
            return choose_coded_algorithm(
                call.operation,
                num_bytes,
                self.network,
                algorithm,
                raw_bytes=4 * call.count,
                config=self.config,
            )
        return choose_algorithm(
            call.operation,
            call.num_bytes,
            self.network,
            root=call.root or 0,
            config=self.config,
            algorithm=algorithm,
        )

    def codec(self, operation: str, num_bytes: int) -> str | None:
        """The codec that "auto" stands for; equal on all ranks."""
        key = (operation, num_bytes)
        if key not in self._codecs:
            if len(self._codecs) >= MAX_KEPT:
                self._codecs.clear()
            self._codecs[key] = choose_codec(operation, num_bytes, self.network)
        return self._codecs[key]

    # -- running -------------------------------------------------------------------

    def run(self, call: Call, deadline: Deadline) -> None:
        """Run ``call``, whose algorithm was chosen. An exception breaks the group."""
        self._running = call
        call.deadline = deadline
        header = self._templates.of(call)()
        self._waiter.start(deadline, header)
        run = self._run_on_engine
        if self._waiter.observer is not None:
            run = observed(self._waiter.observer, call, run)
        run(call, header)
        self._running = None

    def _run_on_engine(self, call: Call, header: bytes) -> None:
        self._quiet.run(self._engine(call).run, call, header)
        for copy in call.copy_back:
            copy()

    def prepare(self, call: Call, tensors: tuple[int, ...]) -> PreparedCall | None:
        """The prepared form of ``call``, if its engine has one.

        ``tensors`` are the elements of each of its tensors.
        """
        self.choose(call)
        engine = self._engines.get(call.algorithm)
        if engine is None:  # the group is closed
            return None
        # The prepared form must not keep the memory of this call alive.
        nothing: list[Array | None] = [None] * len(call.outputs)
        shape = replace(
            call, inputs=nothing, outputs=nothing, copy_back=[], tensors=tensors
        )
        forms = engine.prepare(shape, self._templates.of(call))
        if forms is None:
            return None
        run, start, observer = forms.run, forms.start, self._waiter.observer
        if call.num_bytes > TRACKED_BYTES or call.num_results != call.count:
            run = self._tracked(shape, run)
        if start is not None:
            start = watched_start(start, shape, observer, self._quiet, self._note)
        return PreparedCall(self._observed(shape, run), observer, run, shape, start)

    def _note(self, running: Call | None) -> None:
        self._running = running

    def finish(self, finish: Finish, deadline: Deadline) -> None:
        """Do the rest of a call that has begun."""
        self._waiter.given = deadline
        try:
            finish()
        finally:
            self._waiter.given = None

    def _observed(self, shape: Call, run: Prepared) -> Prepared:
        """``run``, with numpy quiet if it computes, and each of its runs observed."""
        if self._waiter.observer is not None:
            run = self._waiter.observer.watch(shape, run)
        if shape.reduce_op == "none":
            return run
        return partial(self._quiet.run, run)  # type: ignore[call-arg]

    def run_prepared(
        self, prepared: PreparedCall, addresses: Addresses, deadline: Deadline
    ) -> None:
        """Run a prepared call that was queued: its observer may be another one now."""
        run = prepared.run
        if prepared.observer is not self._waiter.observer:
            run = self._observed(prepared.shape, prepared.plain)
        self.finish(partial(run, addresses), deadline)

    def _tracked(self, call: Call, run: Prepared) -> Prepared:
        """``run``, with its progress known after a failure."""

        def tracked(addresses: Addresses) -> None:
            self._running = call
            run(addresses)
            self._running = None

        return tracked

    def progress(self) -> Progress:
        """The progress of the call that failed; also known after ``close``."""
        if self._progress is not None:
            return self._progress
        if not self._control.current:
            return Progress("no operation yet", 0, ())
        header = wire.decode(self._control.current, self.rank)
        call = self._running
        if call is None:
            return Progress(str(header), header.count, ())
        # Results that are copied back at the end become final all at once.
        final = () if call.copy_back else self._engine(call).progress(call)
        return Progress(str(header), call.num_results, final)

    def close(self) -> None:
        """Let go of the engines, and so of the memory that they share. Idempotent."""
        self._progress = self.progress()
        self._running = self.shared = None
        self._engines.clear()
