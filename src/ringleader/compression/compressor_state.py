"""The state of a compressor between steps, and the changes of the present step.

Tensors are kept per parameter and kind: the residual of error feedback, the velocity of
momentum correction, the basis of a low-rank approximation. A step writes to staged
tensors. ``commit`` makes them the state; ``abort`` drops them, so that a failed step
changes nothing.

Not thread-safe: used by the one thread that runs a step's exchanges, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.errors import ConfigError

RESIDUAL, VELOCITY, BASIS = "residual", "velocity", "basis"
KINDS = (RESIDUAL, VELOCITY, BASIS)

Key = tuple[str, str]
"""(kind, name of the parameter)."""


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """The part of a flat vector that belongs to one parameter."""

    name: str
    start: int
    shape: tuple[int, ...]
    """In memory order: the dimension with the largest stride first."""

    @property
    def numel(self) -> int:
        """Number of values."""
        return torch.Size(self.shape).numel()

    @property
    def span(self) -> slice:
        """Its values in the flat vector."""
        return slice(self.start, self.start + self.numel)


class CompressorState:
    """Tensors by kind and parameter, with the changes of one step staged."""

    def __init__(self) -> None:
        self.step = 0
        """Number of committed steps."""
        self._kept: dict[Key, Tensor] = {}
        self._staged: dict[Key, Tensor] = {}
        self._vectors: dict[tuple[str, ...], list[Tensor]] = {}
        """Two vectors per bucket: the kept one, and the one that is being written."""
        self._used: set[tuple[str, ...]] = set()

    def get(self, kind: str, name: str) -> Tensor | None:
        """Return the staged tensor of this step, else the kept one."""
        key = (kind, name)
        return self._staged.get(key, self._kept.get(key))

    def has(self, kind: str) -> bool:
        """Return whether there is any tensor of this kind."""
        return any(key[0] == kind for key in (*self._staged, *self._kept))

    def stage(self, kind: str, name: str, tensor: Tensor) -> None:
        """Keep ``tensor`` if the step is committed."""
        self._staged[kind, name] = tensor

    def stage_vector(
        self, kind: str, parameters: Iterable[ParameterSlice], like: Tensor
    ) -> Tensor:
        """Return an uninitialized float32 vector, staged slice by slice.

        Tensors that ``get`` returned before keep their values.
        """
        parameters = list(parameters)
        key = (kind, *(param.name for param in parameters))
        pair = self._vectors.setdefault(key, [])
        self._used.add(key)
        in_use = (*self._kept.values(), *self._staged.values())
        taken = {t.untyped_storage().data_ptr() for t in in_use}
        fitting = (
            each
            for each in pair
            if each.numel() == like.numel()
            and each.device == like.device
            and each.untyped_storage().data_ptr() not in taken
        )
        vector = next(fitting, None)
        if vector is None:
            vector = torch.empty_like(like, dtype=torch.float32)
            self._vectors[key] = [*pair[-1:], vector]
        for param in parameters:
            self.stage(kind, param.name, vector[param.span])
        return vector

    def begin(self) -> None:
        """Begin a step; changes of a step that was not finished are dropped."""
        self._staged.clear()
        self._used.clear()

    def commit(self) -> None:
        """Keep the changes of a step that has succeeded."""
        self._kept |= self._staged
        self._vectors = {key: self._vectors[key] for key in self._used}
        self._staged.clear()
        self._used.clear()
        self.step += 1

    def abort(self) -> None:
        """Drop the changes of a step that has failed."""
        self._staged.clear()
        self._used.clear()

    def clear(self) -> None:
        """Return to the initial state."""
        self.abort()
        self._kept.clear()
        self._vectors.clear()
        self.step = 0

    def digest(self, facts: Sequence[object], bucket: Sequence[ParameterSlice]) -> int:
        """Return 63 bits of what ranks must agree on: ``facts``, step and bases."""
        hashed = hashlib.blake2b(
            repr((*facts, self.step, *bucket)).encode(), digest_size=8
        )
        for param in bucket:
            basis = self.get(BASIS, param.name)
            if basis is not None:
                hashed.update(basis.cpu().numpy().tobytes())
        return int.from_bytes(hashed.digest(), "little") >> 1

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all kept tensors, by "kind.name"."""
        return {f"{kind}.{name}": t.clone() for (kind, name), t in self._kept.items()}

    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Replace the state by copies of tensors that ``tensors()`` returned."""
        kept: dict[Key, Tensor] = {}
        for text, tensor in tensors.items():
            kind, _, name = text.partition(".")
            if kind not in KINDS or not isinstance(tensor, Tensor):
                raise ConfigError(
                    f"compression: {text!r} does not belong to a compressor's state"
                )
            kept[kind, name] = tensor.detach().to(torch.float32, copy=True)
        self.clear()
        self._kept, self.step = kept, step
