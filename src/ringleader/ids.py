"""Typed ids, so that one kind is never taken for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NewType

NodeId = NewType("NodeId", str)
"""A node: its Ed25519 public key in lower-case base32, 52 characters."""

Incarnation = NewType("Incarnation", str)
"""One life of a node: 16 random hexadecimal digits, new at every process start."""


def short(node: NodeId) -> str:
    """Return the first eight characters for people, as in ``k7f3-9qa2``."""
    return f"{node[:4]}-{node[4:8]}"


def tell_apart(names: Mapping[NodeId, str]) -> dict[NodeId, str]:
    """Return the names of nodes, with the id where several have the same name."""
    counts = Counter(names.values())
    return {
        node: name if counts[name] == 1 else f"{name} ({short(node)})"
        for node, name in names.items()
    }
