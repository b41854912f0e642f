"""LocalStep: what this member has computed of the running step, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ringleader.training.data.data_state import Quantum


class LocalStep:
    """Quanta of one step on one member. User's thread only."""

    def __init__(self) -> None:
        self.pending: list[Quantum] = []
        """Quanta that are assigned and not handed out yet."""
        self.done: list[Quantum] = []
        self.current: Quantum | None = None
        """The quantum that was handed out and is being computed."""
        self.weight = 0.0
        self._times: list[tuple[int, float]] = []
        """Samples and seconds of each quantum."""
        self.used: set[int] = set()
        """Parameters that got a gradient."""

    def assign(self, quanta: Sequence[Quantum]) -> None:
        """Set all quanta of the step that are to be computed here."""
        known = {q.index for q in self.done}
        if self.current is not None:
            known.add(self.current.index)
        self.pending = [q for q in quanta if q.index not in known]

    def is_within(self, quanta: Sequence[Quantum]) -> bool:
        """True if all that is in the contribution is among ``quanta``."""
        return {q.index for q in self.done} <= {q.index for q in quanta}

    def begin(self) -> Quantum:
        """Return the next quantum, which is now being computed."""
        self.current = self.pending.pop(0)
        return self.current

    def finish(self, weight: float, seconds: float) -> None:
        """Record that the current quantum is in the contribution."""
        assert self.current is not None
        self.done.append(self.current)
        self._times.append((self.current.num_samples, seconds))
        self.current = None
        self.weight += weight

    def clear(self) -> None:
        """Forget everything: the step was delivered, or is void here."""
        self.__init__()  # type: ignore[misc]

    @property
    def quanta(self) -> tuple[int, ...]:
        """Numbers of the quanta in the contribution."""
        return tuple(sorted(q.index for q in self.done))

    def quantum_s(self, micro_batch: int) -> float:
        """Return the median time of a full quantum here; 0 if none was computed."""
        full = [seconds for samples, seconds in self._times if samples == micro_batch]
        return median(full) if full else 0.0
