"""The collectives of a script that survive the loss of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from ringleader.groups.group import Group
from ringleader.groups.work import Work


class Collective(Protocol):
    """One collective of a script, which may be attempted several times."""

    inputs: Sequence[Tensor]
    """In host memory, not written before the collective has been delivered."""

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start it in ``group``, whose members have the ranks ``live`` in torch."""
        ...


class Living(Protocol):
    """The ranks that are alive; training/survivors.py."""

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

    def close(self) -> None:
        """Leave the run."""
        ...


class AllReduce:
    """Combines the tensors of all that are alive."""

    def __init__(self, inputs: Sequence[Tensor], op: str) -> None:
        self.inputs = inputs
        self._op = op

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start one all_reduce for each tensor."""
        return [
            group.all_reduce(source, self._op, out=out, async_op=True)
            for source, out in zip(self.inputs, outs, strict=True)
        ]


class Broadcast:
    """Copies the tensors of one rank to all; of the lowest live one if it was lost."""

    def __init__(self, inputs: Sequence[Tensor], root: int) -> None:
        self.inputs = inputs
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


class Barrier:
    """Returns when all that are alive have come."""

    inputs: Sequence[Tensor] = ()

    def start(
        self, group: Group, live: Sequence[int], outs: Sequence[Tensor]
    ) -> list[Work]:
        """Start a barrier."""
        return [group.barrier(async_op=True)]
