"""How the ranks of the default group become members of their run.

Which package does that is set by the launcher: it lies above this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringleader.errors import ConfigError

if TYPE_CHECKING:
    from ringleader.backend.living_collectives import Living
    from ringleader.groups.group import Group

_join: list[Callable[[Group], Living]] = []


def set_join(join: Callable[[Group], Living]) -> None:
    """Set the function that makes all ranks of a group members of their run."""
    _join[:] = [join]


def join(group: Group) -> Living:
    """Become a member of the run; all ranks of ``group`` call it."""
    if not _join:
        raise ConfigError("this process was not started by ringleader run --survive")
    return _join[0](group)
