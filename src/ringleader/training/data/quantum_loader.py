"""``QuantumLoader``: the batches of this member's quanta, read ahead.

A torch DataLoader with persistent workers reads the quanta of this step and, on the
guess that the members and their quotas stay, those of the next ones. Each quantum that
is asked for is compared with that guess; after a wrong one the loader drops what was
read ahead and starts from there. So a change of the plan costs some reading and
nothing else.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from ringleader.training.data.assignment import StepTable
from ringleader.training.data.data_state import (
    DataSpec,
    Quantum,
    advance,
    quanta,
    sample_indices,
)
from ringleader.training.data.loader import Loaded
from ringleader.training.data.progress import Progress, table_of
from ringleader.training.data.seeded_dataset import SampleKey, SeededDataset

STEPS_AHEAD: Final = 4
"""Steps whose samples a served dataset is told before it is asked for them."""

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class QuantumLoader:
    """Loads the batches of this member's quanta.

    Used by the training thread only. Call ``start`` before the first link is opened:
    worker processes that are forked later keep the sockets of this process open.
    ``options`` are those of torch's DataLoader (num_workers, collate_fn, pin_memory).
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        spec: DataSpec,
        node: NodeId,
        **options: Any,  # noqa: ANN401  # options of torch's DataLoader
    ) -> None:
        if wrong := [name for name in _OURS if name in options]:
            raise ConfigError(
                f"elastic: loader={{{', '.join(wrong)}}}: the run itself decides these"
            )
        self._spec = spec
        self._node = node
        self._prefetch = getattr(dataset, "prefetch", None)
        self._dataset = SeededDataset(dataset, spec.seed)
        self._options = options
        self._progress = Progress()
        self._table = StepTable({})
        self._loaded: set[int] = set()
        self._source = _Source(_ReadAhead(spec, iter(()), None, 1))
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] = iter(())

    def start(self) -> None:
        """Start the worker processes, if ``num_workers`` asks for some."""
        workers = self._options.get("num_workers", 0)
        init = self._options.get("worker_init_fn")
        fixed = {
            "batch_sampler": cast("Sampler[list[Any]]", self._source),
            "persistent_workers": workers > 0,
            "worker_init_fn": partial(_init_worker, os.getpid(), init),
            # So that starting an iterator draws nothing from the user's generator.
            "generator": torch.Generator(),
        }
        self._loader = DataLoader(self._dataset, **{**self._options, **fixed})
        self._batches = iter(self._loader)

    def close(self) -> None:
        """End the worker processes; what was read ahead is dropped."""
        self._batches = iter(())
        self._source.ahead = _ReadAhead(self._spec, iter(()), None, 1)
        self._loader = None  # the last reference: torch ends the workers here

    def expect(self, progress: Progress, table: StepTable) -> None:
        """Take the table of a step that begins, or goes on in a new view."""
        if progress.state != self._progress.state:
            self._loaded.clear()
        self._progress, self._table = progress, table

    def load(self, quantum: Quantum) -> Loaded:
        """Return the batch of a quantum; the first ones of the table come fastest."""
        if self._source.ahead.peek() != quantum:
            self._restart(quantum)
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()  # batches and quanta may no longer be in step
            raise
        self._source.ahead.pulled.popleft()
        self._loaded.add(quantum.index)
        return Loaded(quantum, batch)

    def reads(self, indices: Iterable[int]) -> bytes:
        """Return nothing: the samples of quanta follow from the position."""
        return b""

    def _restart(self, first: Quantum) -> None:
        """Drop what was read ahead; read ``first`` and what the table says after it."""
        if first.index in self._loaded:  # the step is done again
            self._loaded.clear()
        step = quanta(self._spec, self._progress.state)
        mine = self._table.quanta.get(self._node, ())
        skipped = {*self._loaded, first.index}
        left = [step[index] for index in mine if index not in skipped]
        following = _expected(self._spec, self._node, self._progress, self._table)
        self._source.ahead = _ReadAhead(
            self._spec,
            chain([first], left, following),
            self._prefetch,
            depth=STEPS_AHEAD * max(1, len(mine)),
        )
        if self._loader is None:
            self.start()
        else:
            self._batches = iter(self._loader)


def _expected(
    spec: DataSpec, node: NodeId, progress: Progress, table: StepTable
) -> Iterator[Quantum]:
    """Yield the quanta of ``node`` in the steps after the one of ``table``.

    It ends with the data, or where the node has nothing to do for some steps.
    """
    members, balance = list(table.quanta), progress.balance
    state = advance(spec, progress.state, table.dropped)
    idle = 0
    while idle < STEPS_AHEAD and (step := quanta(spec, state)):
        mine = table_of(spec, Progress(state, balance), members).quanta[node]
        yield from (step[index] for index in mine)
        idle = 0 if mine else idle + 1
        state = advance(spec, state)


class _ReadAhead(Iterator[list[SampleKey]]):
    """Yields the samples of the quanta that the DataLoader is to read, in order."""

    def __init__(
        self,
        spec: DataSpec,
        expected: Iterator[Quantum],
        prefetch: Callable[[list[int]], None] | None,
        depth: int,
    ) -> None:
        self.pulled: deque[Quantum] = deque()
        """Quanta that the DataLoader took and that were not handed out yet."""
        self._spec = spec
        self._expected = expected
        self._prefetch = prefetch
        self._depth = depth if prefetch is not None else 1
        self._told: deque[Quantum] = deque()

    def __next__(self) -> list[SampleKey]:
        quantum = self._next_told()
        if quantum is None:
            raise StopIteration
        self.pulled.append(self._told.popleft())
        return [(quantum.epoch, i) for i in sample_indices(self._spec, quantum)]

    def peek(self) -> Quantum | None:
        """Return the quantum of the next batch, or None if there is none."""
        return self.pulled[0] if self.pulled else self._next_told()

    def _next_told(self) -> Quantum | None:
        """Return the next quantum; a served dataset is told those that follow, too."""
        while len(self._told) < self._depth:
            quantum = next(self._expected, None)
            if quantum is None:
                break
            self._told.append(quantum)
            if self._prefetch is not None:
                self._prefetch(sample_indices(self._spec, quantum))
        return self._told[0] if self._told else None


class _Source:
    """A batch sampler that continues with what is expected when iterating begins."""

    def __init__(self, ahead: _ReadAhead) -> None:
        self.ahead = ahead

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self.ahead


def _init_worker(parent: int, init: Callable[[int], None] | None, worker: int) -> None:
    """End this worker process with the training process, which may be killed."""
    if sys.platform == "linux" and os.getppid() == parent:
        kill_on_death_of_parent(parent)
    if init is not None:
        init(worker)
