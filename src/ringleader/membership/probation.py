"""Probation: how long a node that keeps falling silent waits to be a member again."""

from __future__ import annotations

from math import inf

from ringleader.ids import NodeId

REMEMBERED_S = 600.0
"""Being left out counts for this long."""
LONGEST_S = 64.0
MAX_NODES = 256


class Probation:
    """Doubles the waiting time of a node each time it was left out for its silence.

    A process that is known to have ended was not silent, so it may return at once.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._left_out_s: dict[NodeId, list[float]] = {}

    def note(self, node: NodeId, now_s: float) -> None:
        """Record that the node was left out because it was silent."""
        if self._first_s == 0:
            return
        times = [t for t in self._left_out_s.pop(node, []) if t > now_s - REMEMBERED_S]
        self._left_out_s[node] = [*times, now_s][-16:]
        if len(self._left_out_s) > MAX_NODES:
            del self._left_out_s[next(iter(self._left_out_s))]

    def until_s(self, node: NodeId) -> float:
        """Return when the node may be a member again; -inf: at any time."""
        times = self._left_out_s.get(node)
        if not times:
            return -inf
        wait_s = self._first_s * 2.0 ** (len(times) - 1)
        return times[-1] + min(wait_s, LONGEST_S)
