"""Typed ids, so that one kind is never taken for another."""

from __future__ import annotations

from typing import NewType

NodeId = NewType("NodeId", str)
"""A node: its Ed25519 public key in lower-case base32, 52 characters."""

Incarnation = NewType("Incarnation", str)
"""One life of a node: 16 random hexadecimal digits, new at every process start."""


def short(node: NodeId) -> str:
    """Return the first eight characters for people, as in ``k7f3-9qa2``."""
    return f"{node[:4]}-{node[4:8]}"
