"""The hostfile of Apple's MLX, for programs that use MLX beside torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MlxHost:
    """One rank of an MLX ring."""

    name: str
    """Host name by which ssh reaches it."""
    address: str


def format_hostfile(hosts: Sequence[MlxHost]) -> str:
    """Return the file that ``mlx.launch --hostfile`` reads; ranks follow its order."""
    entries = [{"ssh": host.name, "ips": [host.address]} for host in hosts]
    return json.dumps(entries, indent=2)
