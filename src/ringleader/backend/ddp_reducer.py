"""Gives the reducers of DistributedDataParallel a process group of their own.

See reducer_group.py. torch imports this with every program, so it imports nothing else
before the first model on one of our groups.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ringleader.backend.name import NAME

_PARAMETERS, _GROUP, _VIEWS = 0, 3, 7
"""Where the constructor takes the parameters, the process group, and whether gradients
are views of the buckets: everybody may see those, so such buckets are not moved."""


def install() -> None:
    """Replace torch's class. Called once, when the backend is registered."""
    base: Any = dist.Reducer  # type: ignore[attr-defined] # is public

    class Reducer(base):  # type: ignore[misc]
        """torch's reducer, with a group that only it knows."""

        def __init__(self, *given: Any, **named: Any) -> None:
            own = None
            if len(given) > _VIEWS and not given[_VIEWS]:
                own = _own_group(given[_PARAMETERS], given[_GROUP])
            if own is not None:
                given = (*given[:_GROUP], own, *given[_GROUP + 1 :])
            self._ringleader_group = own  # torch keeps only what is C++ of a group
            super().__init__(*given, **named)

        def _run_allreduce_hook(self, bucket: Any) -> Any:
            """A hook in Python has the bucket, and expects the sum in it."""
            if self._ringleader_group is not None:
                self._ringleader_group.buckets.is_on = False
            return super()._run_allreduce_hook(bucket)

    dist.Reducer = Reducer  # type: ignore[attr-defined]


def _own_group(parameters: Any, group: Any) -> Any:
    """Return a group for one reducer; None if it has no use for one."""
    if group.name() != NAME or not all(each.is_cpu for each in parameters):
        return None
    from ringleader.backend.process_group import RingleaderGroup
    from ringleader.backend.reducer_group import ReducerGroup
    from ringleader.groups.group import handle_of

    if type(group) is not RingleaderGroup:
        return None
    return ReducerGroup(group) if handle_of(group.group).shares_memory else None
