"""RingleaderLibrary: a group of ours, called synchronously from the main thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ringleader.cli.bench.bench_rank import Buffers
from ringleader.groups.group import Group


class RingleaderLibrary:
    """A group; each call may name its algorithm."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.links = ", ".join(sorted(set(group.links().values())))

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        self._group.barrier()

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        """See CollectiveLibrary."""
        group = self._group
        source, result = map(torch.from_numpy, buffers)
        match operation:
            case "all_reduce":
                return partial(group.all_reduce, source, algorithm=algorithm)
            case "broadcast":
                return partial(group.broadcast, source, 0, algorithm=algorithm)
            case "all_gather":
                return partial(group.all_gather, result, source, algorithm=algorithm)
            case "reduce_scatter":
                return partial(
                    group.reduce_scatter, result, source, algorithm=algorithm
                )
            case _:
                return partial(group.all_to_all, result, source)
