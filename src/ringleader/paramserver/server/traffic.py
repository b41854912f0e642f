"""Counts the bytes of bodies."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Traffic:
    """Bytes of bodies, by worker."""

    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
