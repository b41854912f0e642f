"""Member: what a rank of a star says of itself, and must have in common with others."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a star."""

    world: int
    """Hash of the name of the world; ranks of another one are refused."""
    rank: int
    size: int
    namespace: bytes = bytes(16)
    """Tag of the cluster; zero without one."""
