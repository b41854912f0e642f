"""ringleader_group: the group of ours behind a torch process group."""

from __future__ import annotations

from torch.distributed import ProcessGroup

from ringleader.backend.process_group import RingleaderGroup
from ringleader.groups.group import Group


def ringleader_group(group: Group | ProcessGroup) -> Group | None:
    """Return the ringleader group that ``group`` is or wraps, else None."""
    if isinstance(group, RingleaderGroup):
        return group.group
    return group if isinstance(group, Group) else None
