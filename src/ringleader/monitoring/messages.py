"""Messages of the service ``dashboard``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class OpenDashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Open the dashboard, unless it is, and make a new link."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port on 127.0.0.1; 0: any free one. Counts only the first time."""


class DashboardOpened(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True
):
    """The link, for this user alone: who has it may look, and stop jobs."""

    url: str
    valid_s: float
    """How long it can be opened. The page then works for 12 hours."""
