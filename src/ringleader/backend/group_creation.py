"""Wraps the one function with which torch creates every group.

The function of a backend does not learn which devices its group is for; this one does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.distributed import distributed_c10d as c10d

Arguments = dict[str, Any]
"""The arguments of the call, by torch's names; a change counts."""


def wrap(around: Callable[[Arguments, Callable[[], Any]], Any]) -> None:
    """Let ``around`` run in place of the function, with a call that runs it."""
    make_group: Any = c10d._new_process_group_helper
    signature = inspect.signature(make_group)

    @wraps(make_group)
    def _new_process_group_helper(*args: Any, **named: Any) -> Any:
        call = signature.bind(*args, **named)
        return around(call.arguments, lambda: make_group(*call.args, **call.kwargs))

    c10d._new_process_group_helper = _new_process_group_helper
