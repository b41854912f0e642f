"""What a compressor keeps between steps, and what the present step would change.

Tensors are kept per parameter and kind: the residual that was not applied yet, the
velocity of momentum correction, the basis of a low-rank product. A step writes to
staged copies. ``commit`` makes them what is kept, ``abort`` forgets them: a step that
fails in the middle leaves no trace.

Used by one thread at a time: the one that runs a step's exchanges, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.errors import ConfigError

RESIDUAL, VELOCITY, BASIS = "residual", "velocity", "basis"
KINDS = (RESIDUAL, VELOCITY, BASIS)

Key = tuple[str, str]
"""(kind, name of the parameter)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter in a flat vector."""

    name: str
    start: int
    shape: tuple[int, ...]
    """In the order of memory: the dimension with the largest stride first."""

    @property
    def count(self) -> int:
        """How many values it has."""
        return torch.Size(self.shape).numel()

    @property
    def run(self) -> slice:
        """Its values in the vector."""
        return slice(self.start, self.start + self.count)


class Memory:
    """State by kind and parameter, with the changes of one step staged."""

    def __init__(self) -> None:
        self.step = 0
        """Steps that were committed."""
        self._kept: dict[Key, Tensor] = {}
        self._staged: dict[Key, Tensor] = {}
        self._rooms: dict[tuple[str, ...], list[Tensor]] = {}
        """Per bucket two vectors: the kept one, and the one that is being written."""
        self._used: set[tuple[str, ...]] = set()

    def get(self, kind: str, name: str) -> Tensor | None:
        """What the present step knows, else what is kept."""
        key = (kind, name)
        return self._staged.get(key, self._kept.get(key))

    def has(self, kind: str) -> bool:
        """Whether anything of this kind is known."""
        return any(key[0] == kind for key in (*self._staged, *self._kept))

    def put(self, kind: str, name: str, tensor: Tensor) -> None:
        """Stage it."""
        self._staged[kind, name] = tensor

    def room(self, kind: str, slots: Iterable[Slot], like: Tensor) -> Tensor:
        """A float32 vector for all slots, staged for each; it holds nothing yet.

        What ``get`` gave before stays as it is.
        """
        slots = list(slots)
        key = (kind, *(slot.name for slot in slots))
        pair = self._rooms.setdefault(key, [])
        self._used.add(key)
        in_use = (*self._kept.values(), *self._staged.values())
        taken = {t.untyped_storage().data_ptr() for t in in_use}
        fits = (
            room
            for room in pair
            if room.numel() == like.numel()
            and room.device == like.device
            and room.untyped_storage().data_ptr() not in taken
        )
        room = next(fits, None)
        if room is None:
            room = torch.empty_like(like, dtype=torch.float32)
            self._rooms[key] = [*pair[-1:], room]
        for slot in slots:
            self.put(kind, slot.name, room[slot.run])
        return room

    def begin(self) -> None:
        """A step begins; what a failed one left is forgotten."""
        self._staged.clear()
        self._used.clear()

    def commit(self) -> None:
        """The step has succeeded: what it staged is kept from now on."""
        self._kept |= self._staged
        self._rooms = {key: self._rooms[key] for key in self._used}
        self._staged.clear()
        self._used.clear()
        self.step += 1

    def abort(self) -> None:
        """The step has failed: nothing changes."""
        self._staged.clear()
        self._used.clear()

    def clear(self) -> None:
        """As at the very beginning."""
        self.abort()
        self._kept.clear()
        self._rooms.clear()
        self.step = 0

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all that is kept, by "kind.name"."""
        return {f"{kind}.{name}": t.clone() for (kind, name), t in self._kept.items()}

    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Keep copies of ``tensors``, as ``tensors()`` gave them, instead."""
        kept: dict[Key, Tensor] = {}
        for text, tensor in tensors.items():
            kind, _, name = text.partition(".")
            if kind not in KINDS or not isinstance(tensor, Tensor):
                raise ConfigError(f"compression: {text!r} is no state of a compressor")
            kept[kind, name] = tensor.detach().to(torch.float32, copy=True)
        self.clear()
        self._kept, self.step = kept, step
