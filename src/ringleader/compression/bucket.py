"""A bucket: the gradients of several parameters in one flat vector.

Error feedback is implemented here, the same for every scheme:

    total = gradients + residual of the previous step
    new residual = total - the part of it that is applied now

With momentum correction, velocities take the place of gradients. Where a value was
sent, its velocity is reset: otherwise it would push in the same direction once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import seeded_random
from ringleader.compression.compressor_state import (
    RESIDUAL,
    VELOCITY,
    CompressorState,
    ParameterSlice,
)
from ringleader.engine.arrays import as_array
from ringleader.errors import ConfigError


class Bucket:
    """One bucket in one step. ``out`` is float32 and flat, on any device."""

    def __init__(
        self,
        out: Tensor,
        parameters: Sequence[ParameterSlice],
        state: CompressorState,
        *,
        seed: int,
        feedback: bool,
        momentum: float | None,
    ) -> None:
        self.out = out
        """The gradients; at the end their mean."""
        self.parameters = parameters
        self.state = state
        self._seed = seed
        self._momentum = momentum
        self._residuals = self._load(RESIDUAL) if feedback else {}
        self.new_residual = (
            state.stage_vector(RESIDUAL, parameters, out) if feedback else None
        )
        """At the end the part of the total that was not applied; None without
        feedback."""
        self._velocity: Tensor | None = None

    def derive_seed(self, name: str) -> int:
        """Return a seed for ``name`` in this step, the same on all ranks."""
        return seeded_random.derive_seed(self._seed, self.state.step, name)

    def residual(self, param: ParameterSlice) -> Tensor | None:
        """Return the residual of the previous step."""
        return self._residuals.get(param.name)

    def flat_residual(self) -> Tensor | None:
        """Return the residuals as one vector without a copy, or None.

        They are contiguous as they were written, unless DDP rebuilt its buckets since.
        """
        if not self._residuals or self._momentum is not None:
            return None
        parts = [self._residuals.get(param.name) for param in self.parameters]
        first = parts[0]
        if first is None or not first.is_cpu:
            return None
        start = first.data_ptr() - 4 * self.parameters[0].start
        for param, part in zip(self.parameters, parts, strict=True):
            if part is None or part.data_ptr() != start + 4 * param.start:
                return None
        begin = first.storage_offset() - self.parameters[0].start
        return first.as_strided((len(self.out),), (1,), begin)

    def accumulate(self) -> Tensor:
        """Compute the total in ``new_residual``, or in ``out`` without feedback.

        The caller clears the values that are applied with ``clear_at``.
        """
        return self._accumulate(
            self.out if self.new_residual is None else self.new_residual
        )

    def accumulate_in_place(self) -> Tensor:
        """Compute the total in ``out``; the caller writes ``new_residual``."""
        return self._accumulate(self.out)

    def _accumulate(self, target: Tensor) -> Tensor:
        source = self.out if self._momentum is None else self._update_velocity()
        for param in self.parameters:
            add(source[param.span], self.residual(param), target[param.span])
        return target

    def _update_velocity(self) -> Tensor:
        """Compute velocity = gradients + momentum * previous velocity."""
        assert self._momentum is not None
        before = self._load(VELOCITY)
        velocity = self.state.stage_vector(VELOCITY, self.parameters, self.out)
        for param in self.parameters:
            old = before.get(param.name)
            slowed = None if old is None else old * self._momentum
            add(self.out[param.span], slowed, velocity[param.span])
        self._velocity = velocity
        return velocity

    def _load(self, kind: str) -> dict[str, Tensor]:
        """Return the kept tensors of this kind, by parameter name."""
        found = {}
        for param in self.parameters:
            tensor = self.state.get(kind, param.name)
            if tensor is not None and tensor.numel() != param.numel:
                raise ConfigError(
                    f"compression: parameter {param.name!r} has {param.numel} values, "
                    f"but its {kind} has {tensor.numel()}: call reset(), or load the "
                    "state of this model"
                )
            if tensor is not None:
                found[param.name] = tensor.to(self.out.device)
        return found

    def clear_at(self, indices: Tensor, *, is_finite: bool) -> None:
        """Zero residual and velocity at ``indices``, whose totals are applied.

        Unless ``is_finite``, values that are not finite become zero everywhere;
        otherwise they would stay in the residual forever.
        """
        for vector in (self.new_residual, self._velocity):
            if vector is not None:
                write_at(vector, indices, None)
                if not is_finite:
                    vector.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def clear_all(self) -> None:
        """Zero residual and velocity: the whole total is applied."""
        for vector in (self.new_residual, self._velocity):
            if vector is not None:
                vector.zero_()


def flatten(
    named: Sequence[tuple[str, Tensor]],
) -> tuple[Tensor, list[ParameterSlice]]:
    """Return (all values in one vector, the slice of each tensor).

    The vector is a copy, unless there is only one contiguous tensor.
    """
    if not named:
        return torch.empty(0, device="cpu"), []
    for name, tensor in named:
        if not tensor.is_floating_point():
            raise ConfigError(f"compression: {name!r} is not a floating-point tensor")
    if len({tensor.device for _, tensor in named}) > 1:
        raise ConfigError(
            "compression: the tensors of one call must be on the same device"
        )
    slices, start = [], 0
    for name, tensor in named:
        slices.append(ParameterSlice(name, start, tuple(tensor.shape)))
        start += tensor.numel()
    parts = [tensor.detach().reshape(-1) for _, tensor in named]
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:
        parts = [part.to(torch.float32) for part in parts]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), slices


# -- arithmetic ----------------------------------------------------------------------
# numpy on the CPU: torch would start threads of its own in the engine's thread.


def add(a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """Compute out = a + b, or out = a; flat float32. ``out`` may be ``a`` or ``b``."""
    if not out.is_cpu:
        torch.add(a, 0 if b is None else b, out=out)
    elif b is not None:
        np.add(as_array(a), as_array(b), out=as_array(out))
    elif out.data_ptr() != a.data_ptr():
        np.copyto(as_array(out), as_array(a))


def write_at(vector: Tensor, indices: Tensor, values: Tensor | None) -> None:
    """Write ``values``, or zeros, to the distinct ``indices`` of ``vector``."""
    if vector.is_cpu:
        as_array(vector)[as_array(indices)] = 0 if values is None else as_array(values)
    else:
        vector[indices] = 0 if values is None else values.to(vector.device)


def read_at(vector: Tensor, indices: Tensor) -> Tensor:
    """Return the values of ``vector`` at ``indices``, in host memory."""
    if vector.is_cpu:
        return torch.from_numpy(as_array(vector)[as_array(indices)])
    return vector[indices].cpu()


def all_finite(vector: Tensor) -> bool:
    """Return whether no value is infinite or NaN."""
    if not vector.is_cpu:
        return bool(vector.isfinite().all())
    array = as_array(vector)
    # The sum takes half the time. If it is not finite, it may only have overflowed.
    return bool(np.isfinite(np.add.reduce(array)) or np.isfinite(array).all())
