"""The parameter groups of an optimizer whose ranks hold different parameters.

In a pipeline, the optimizer of each rank names the parameters of its own layers. What
is saved has to name all, so that a rank with other layers finds its hyperparameters.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ringleader.checkpoint import values
from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange

ParameterGroup = dict[str, Any]

_PARAMETERS = "params"


def merge_ranks(state: dict[str, Any], exchange: ByteExchange) -> None:
    """Let the optimizer's groups in ``state`` name the parameters of all ranks."""
    optimizer = state.get("optimizer", {})
    mine = optimizer.get("param_groups", [])
    encoded = together(exchange, "save a checkpoint", lambda: values.encode(mine))
    if optimizer and len(set(encoded)) > 1:
        optimizer["param_groups"] = merged([values.decode(each) for each in encoded])


def merged(ranks: list[list[ParameterGroup]]) -> list[ParameterGroup]:
    """Return the groups of all ranks; those with equal hyperparameters become one.

    Two such groups of one rank stay two: loading wants one for each of its own.
    """
    found: dict[tuple[bytes, int], ParameterGroup] = {}
    for groups in ranks:
        seen: Counter[bytes] = Counter()
        for group in groups:
            rest = {k: v for k, v in group.items() if k != _PARAMETERS}
            key = values.encode(rest)
            seen[key] += 1
            kept = found.setdefault((key, seen[key]), {**rest, _PARAMETERS: []})
            names = dict.fromkeys([*kept[_PARAMETERS], *group[_PARAMETERS]])
            kept[_PARAMETERS] = list(names)
    return list(found.values())
