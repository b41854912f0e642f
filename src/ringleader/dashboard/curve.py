"""``Curve``: a bounded history of one number. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_POINTS = 160


@dataclass(slots=True)
class Curve:
    """Points (step, value); of a long history every second, fourth ... is kept."""

    points: list[tuple[int, float | None]] = field(default_factory=list)
    _stride: int = 1
    _count: int = 0
    _last: tuple[int, float | None] | None = None

    def add(self, step: int, value: float | None) -> None:
        """Add a point; one of an earlier step means that the program began again."""
        if self._last is not None and step < self._last[0]:
            self.points.clear()
            self._stride = 1
            self._count = 0
        self._last = (step, value)
        self._count += 1
        if (self._count - 1) % self._stride:
            return
        self.points.append((step, value))
        if len(self.points) >= MAX_POINTS:
            self.points = self.points[::2]
            self._stride *= 2

    def shown(self) -> list[tuple[int, float | None]]:
        """Return the points, the newest one last."""
        if self._last is None or self.points[-1] == self._last:
            return list(self.points)
        return [*self.points, self._last]
