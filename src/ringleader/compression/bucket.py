"""Gradients of several parameters in one flat vector, on their way to their mean.

Error feedback is here, the same for every scheme:

    total = gradients + what was not applied before
    residual = total - what of it is really applied now

With momentum correction gradients are replaced by their velocity, and where a value was
sent the velocity starts anew: else it would push in its direction once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import chance
from ringleader.compression.memory import RESIDUAL, VELOCITY, Memory, Slot
from ringleader.engine.arrays import as_array
from ringleader.errors import ConfigError


class Bucket:
    """One vector of one step. ``out`` is float32 and flat, on any device."""

    def __init__(
        self,
        out: Tensor,
        slots: Sequence[Slot],
        memory: Memory,
        *,
        seed: int,
        feedback: bool,
        momentum: float | None,
    ) -> None:
        self.out = out
        """The gradients; in the end their mean."""
        self.slots = slots
        self.memory = memory
        self._seed = seed
        self._momentum = momentum
        self._owed = self._recall(RESIDUAL) if feedback else {}
        self.held = memory.room(RESIDUAL, slots, out) if feedback else None
        """In the end what was not applied; None without feedback."""
        self._velocity: Tensor | None = None

    def start(self, name: str) -> int:
        """Random bits for ``name`` in this step, the same on all ranks."""
        return chance.purpose(self._seed, self.memory.step, name)

    def owed(self, slot: Slot) -> Tensor | None:
        """What was not applied before."""
        return self._owed.get(slot.name)

    def owed_at_once(self) -> Tensor | None:
        """What was not applied before, as one vector; None if it is not in one piece.

        As it was written: unless buckets were made anew since, it is.
        """
        if not self._owed or self._momentum is not None:
            return None
        parts = [self._owed.get(slot.name) for slot in self.slots]
        first = parts[0]
        if first is None or not first.is_cpu:
            return None
        start = first.data_ptr() - 4 * self.slots[0].start
        for slot, part in zip(self.slots, parts, strict=True):
            if part is None or part.data_ptr() != start + 4 * slot.start:
                return None
        begin = first.storage_offset() - self.slots[0].start
        return first.as_strided((len(self.out),), (1,), begin)

    def add_up(self) -> Tensor:
        """The total, where it may stay: what is not applied of it remains there."""
        return self._add_up(self.out if self.held is None else self.held)

    def add_up_in_place(self) -> Tensor:
        """The total in ``out``; what is not applied is to be written to ``held``."""
        return self._add_up(self.out)

    def _add_up(self, target: Tensor) -> Tensor:
        source = self.out if self._momentum is None else self._accelerate()
        for slot in self.slots:
            add(source[slot.run], self.owed(slot), target[slot.run])
        return target

    def _accelerate(self) -> Tensor:
        """The velocity: gradients, and a share of what it was."""
        assert self._momentum is not None
        before = self._recall(VELOCITY)
        velocity = self.memory.room(VELOCITY, self.slots, self.out)
        for slot in self.slots:
            old = before.get(slot.name)
            slowed = None if old is None else old * self._momentum
            add(self.out[slot.run], slowed, velocity[slot.run])
        self._velocity = velocity
        return velocity

    def _recall(self, kind: str) -> dict[str, Tensor]:
        """What is kept of this kind, for every parameter that has any."""
        found = {}
        for slot in self.slots:
            tensor = self.memory.get(kind, slot.name)
            if tensor is not None and tensor.numel() != slot.count:
                raise ConfigError(
                    f"compression: parameter {slot.name!r} has {slot.count} values, "
                    f"its {kind} {tensor.numel()}: call reset(), or load the state of "
                    "this model"
                )
            if tensor is not None:
                found[slot.name] = tensor.to(self.out.device)
        return found

    def sent(self, places: Tensor, *, is_finite: bool) -> None:
        """The totals at these places were applied; others remain.

        Not ``is_finite``: what is not a number is forgotten, or it would remain.
        """
        for vector in (self.held, self._velocity):
            if vector is not None:
                put(vector, places, None)
                if not is_finite:
                    vector.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def sent_all(self) -> None:
        """Everything was applied."""
        for vector in (self.held, self._velocity):
            if vector is not None:
                vector.zero_()


# -- arithmetic ----------------------------------------------------------------------
# numpy on the CPU: torch would start threads of its own in the engine's thread.


def add(a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """out = a + b, or a; float32, flat, of one length. ``out`` may be either."""
    if not out.is_cpu:
        torch.add(a, 0 if b is None else b, out=out)
    elif b is not None:
        np.add(as_array(a), as_array(b), out=as_array(out))
    elif out.data_ptr() != a.data_ptr():
        np.copyto(as_array(out), as_array(a))


def put(vector: Tensor, places: Tensor, values: Tensor | None) -> None:
    """Write ``values`` to different ``places`` of ``vector``; None: zeros."""
    if vector.is_cpu:
        as_array(vector)[as_array(places)] = 0 if values is None else as_array(values)
    else:
        vector[places] = 0 if values is None else values.to(vector.device)


def take(vector: Tensor, places: Tensor) -> Tensor:
    """The values of ``vector`` at ``places``, in host memory."""
    if vector.is_cpu:
        return torch.from_numpy(as_array(vector)[as_array(places)])
    return vector[places].cpu()


def is_finite(vector: Tensor) -> bool:
    """Whether no value is infinite or NaN."""
    if not vector.is_cpu:
        return bool(vector.isfinite().all())
    array = as_array(vector)
    # A sum shows it twice as fast; one that overflows proves nothing.
    return bool(np.isfinite(np.add.reduce(array)) or np.isfinite(array).all())
