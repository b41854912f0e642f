"""The collectives of a script that survive the loss of ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

from torch import Tensor

from ringleader.groups.group import Group
from ringleader.groups.work import Work


class Collective(Protocol):
    """One collective of a script, which may be attempted several times."""

    inputs: Sequence[Tensor]
    """In host memory, not written before the collective has been delivered."""

    @property
    def results(self) -> Sequence[Tensor]:
        """Tensors with the shapes and types of the results."""
        ...

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start it in ``group``, whose members have the ranks ``live`` in torch."""
        ...

    def copy(self, rank: int, outs: Sequence[Tensor]) -> None:
        """Complete it for ``rank``, which is the only one that is alive."""
        ...


class Living(Protocol):
    """The ranks that are alive; training/survivors.py."""

    contributors: Sequence[int]
    """The ranks that took part in the collective that was completed last."""

    is_ending: bool
    """The script has ended; set before its last collective."""

    def run(self, collective: Collective, early: Any = None) -> list[Tensor]:
        """Complete a collective among the living, and return its results.

        ``early`` is an attempt that ``open`` began and in which all parts of the
        collective were started. The results are valid until the next collective.
        """
        ...

    def open(self) -> Any:
        """Begin the next attempt, whose parts follow; None if it cannot begin yet."""
        ...

    def start_part(self, early: Any, part: Collective) -> None:
        """Start a part of a collective in an attempt that ``open`` began."""
        ...

    def lost(self) -> list[int]:
        """The ranks that are not alive any more."""
        ...

    def close(self, *, is_failed: bool = False) -> None:
        """Leave the run; the script has ended, or has failed."""
        ...


def _barrier_for_empty(group: Group, outs: Sequence[Tensor]) -> list[Work]:
    """Start a barrier if a part is empty: no rank waits for one that sends nothing.

    A rank that waits for nobody could be several steps ahead of one that lacks a step.
    """
    is_empty = any(not out.numel() for out in outs)
    return [group.barrier(async_op=True)] if is_empty else []


class _SameShapes:
    """A collective whose results have the shapes of its inputs."""

    def __init__(self, inputs: Sequence[Tensor] = ()) -> None:
        self.inputs = inputs

    @property
    def results(self) -> Sequence[Tensor]:
        """The inputs."""
        return self.inputs

    def copy(self, rank: int, outs: Sequence[Tensor]) -> None:
        """Copy the inputs: nobody else gives anything."""
        for source, out in zip(self.inputs, outs, strict=True):
            out.copy_(source)


class AllReduce(_SameShapes):
    """Combines the tensors of all that are alive."""

    def __init__(self, inputs: Sequence[Tensor], op: str) -> None:
        super().__init__(inputs)
        self._op = op

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start one all_reduce for each tensor."""
        works = [
            group.all_reduce(source, self._op, out=out, async_op=True)
            for source, out in zip(self.inputs, outs, strict=True)
        ]
        return works + _barrier_for_empty(group, outs)


class Broadcast(_SameShapes):
    """Copies the tensors of one rank to all; of the lowest live one if it was lost."""

    def __init__(self, inputs: Sequence[Tensor], root: int) -> None:
        super().__init__(inputs)
        self._root = root

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start one broadcast for each tensor, and a barrier.

        Without it the root could be several steps ahead of a rank that lacks one.
        """
        root = self._root if self._root in live else min(live)
        src = live.index(root)
        for source, out in zip(self.inputs, outs, strict=True):
            if group.rank == src:
                out.copy_(source)
        works = [group.broadcast(out, src, async_op=True) for out in outs]
        return [*works, group.barrier(async_op=True)]


class AllGather:
    """Copies each rank's tensors to all. Nobody writes the parts of lost ranks."""

    def __init__(
        self, inputs: Sequence[Tensor], rows: Sequence[Sequence[Tensor]]
    ) -> None:
        self.inputs = inputs
        self._rows = rows
        """For each input tensors like the parts of the result, by rank."""

    @property
    def results(self) -> Sequence[Tensor]:
        """The parts: those of all ranks for the first input, and so on."""
        return [part for row in self._rows for part in row]

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start one all_gather for each tensor."""
        works = []
        for source, parts in zip(self.inputs, self._in_rows(outs), strict=True):
            alive = [parts[rank] for rank in live]
            works.append(group.all_gather(alive, source, async_op=True))
        return works + _barrier_for_empty(group, outs)

    def copy(self, rank: int, outs: Sequence[Tensor]) -> None:
        """Copy the inputs into this rank's parts."""
        for source, parts in zip(self.inputs, self._in_rows(outs), strict=True):
            parts[rank].view(-1).copy_(source.view(-1))

    def _in_rows(self, outs: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        ends = [0, *accumulate(len(row) for row in self._rows)]
        return [outs[a:b] for a, b in pairwise(ends)]


def giver(rank: int, contributors: Collection[int], size: int) -> int:
    """Return whose part stands for that of ``rank``: its own, or the next live one."""
    return next(r for k in range(size) if (r := (rank + k) % size) in contributors)


class Barrier(_SameShapes):
    """Returns when all that are alive have come."""

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start a barrier."""
        return [group.barrier(async_op=True)]
