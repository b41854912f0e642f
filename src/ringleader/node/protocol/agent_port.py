"""``AGENT_PORT``: where agents listen, apart because ``--help`` names it."""

from __future__ import annotations

AGENT_PORT = 29471
"""Port of an agent if the user gives none and it is free: known in advance, so that a
machine can be named by ``--peers`` and let through a firewall. Not assigned by IANA,
and below the ports that systems give to connections."""
