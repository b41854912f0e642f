"""Gives the reducers of DistributedDataParallel a process group of their own.

See reducer_group.py. torch imports this with every program, so it imports nothing else
before the first model on one of our groups.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch.distributed as dist

from ringleader.backend.name import NAME

_PARAMETERS, _GROUP, _VIEWS = 0, 3, 7
"""Where the constructor takes the parameters, the process group, and whether gradients
are views of the buckets: everybody may see those, so such buckets stay where they are.
"""


def install() -> None:
    """Replace torch's class. Called once, when the backend is registered."""
    base: Any = dist.Reducer  # type: ignore[attr-defined] # is public

    class Reducer(base):  # type: ignore[misc]
        """torch's reducer, with a group that only it knows."""

        def __init__(self, *given: Any, **named: Any) -> None:
            own = None
            if len(given) > _VIEWS:
                own = _own_group(given[_PARAMETERS], given[_GROUP], given[_VIEWS])
            if own is not None:
                given = (*given[:_GROUP], own, *given[_GROUP + 1 :])
            self._ringleader_group = own  # torch keeps only what is C++ of a group
            super().__init__(*given, **named)

        def _run_allreduce_hook(self, bucket: Any) -> Any:
            """A hook in Python has the bucket, and waits for the sum in it."""
            if self._ringleader_group is not None:
                self._ringleader_group.reduce_one_by_one()
            return super()._run_allreduce_hook(bucket)

        def _delay_all_reduce(self) -> None:
            """In the first step of a static graph the reducer waits right here."""
            group = self._ringleader_group
            with nullcontext() if group is None else group.at_once():
                super()._delay_all_reduce()

    dist.Reducer = Reducer  # type: ignore[attr-defined]


def _own_group(parameters: Any, group: Any, are_views: bool) -> Any:
    """Return a group for one reducer; None if it has no use for one."""
    is_on_cpu = all(each.is_cpu for each in parameters)
    is_on_gpu = all(each.is_cuda for each in parameters)
    if group.name() != NAME or not (is_on_gpu or (is_on_cpu and not are_views)):
        return None
    from ringleader.backend.process_group import RingleaderGroup
    from ringleader.backend.reducer_group import ReducerGroup
    from ringleader.groups.group import handle_of

    if type(group) is not RingleaderGroup:
        return None
    return ReducerGroup(group) if handle_of(group.group).shares_memory else None
