"""How far a collective came that failed: which results hold their final value."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.collectives.schedule import split
from ringleader.engine.flow import Plan
from ringleader.groups.call import Call

Runs = tuple[tuple[int, int], ...]
"""(start, stop) in the result."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the last operation came; of use after a failure."""

    call: str
    """The call in the user's words."""
    count: int
    """Elements of the result on this rank."""
    complete: Runs
    """(start, stop) of the runs that hold their final value."""


def num_results(call: Call) -> int:
    """Elements of the result of ``call`` on this rank."""
    if call.operation == "all_reduce":
        return call.count  # a prepared call does not hold on to its tensor
    return sum(len(home) for home in call.homes if home is not None)


def final_runs(call: Call, plan: Plan | None, in_memory: int) -> Runs:
    """The runs that are final; ``in_memory``: elements that shared memory has done."""
    is_divided_last = plan is not None or call.operation == "reduce"
    if call.finishers or (call.reduce_op == "mean" and is_divided_last):
        return ()  # it becomes final in one go at the end: copied back, or divided
    if plan is None:
        return ((0, in_memory),) if in_memory else ()
    home = call.homes[0]
    if not call.whole or home is None:
        return ()
    runs = []
    for chunk, (start, _) in enumerate(split(len(home), plan.num_chunks)):
        done = plan.complete_bytes(chunk) // home.itemsize
        if done > 0:
            runs.append((start, start + done))
    return tuple(runs)
