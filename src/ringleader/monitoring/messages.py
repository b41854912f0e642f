"""Purposes of the services, and the messages of ``dashboard``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

DASHBOARD = "dashboard"
"""Opens the dashboard and returns its link."""
PAGE = "page"
"""Answers each message with the state of the page."""
MACHINE = "machine"
"""Sends the load of this machine and the numbers of its workers."""


class OpenDashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Open the dashboard, unless it is, and make a new link."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port; 0: any free one. Counts only the first time."""
    is_shared: bool = False
    """Open the page for phones on the network instead, and make a code for it."""


class DashboardOpened(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True
):
    """Where the page is. Who has the link of 127.0.0.1 may look, and stop jobs."""

    url: str
    valid_s: float
    """How long the link, or the code, opens it."""
    shared_urls: list[str] = []
    """Addresses of the page on the network."""
    code: str = ""
    fingerprint: str = ""
    """SHA-256 of the certificate of the shared page."""
