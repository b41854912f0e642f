"""``all_reduce`` of a dict of tensors, as gradients by name are.

Names go in their order by the alphabet, whatever the order of the dicts is. Small
tensors of one dtype travel as one, large ones from where they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups.tensors import check_tensor, check_writable

PACKED_BYTES = 64 << 10
"""A larger tensor costs more to copy than a call of its own costs."""

Reduce = Callable[[Tensor], object]
"""Combines a tensor of all ranks, in place."""


class NamedTensors:
    """The tensors of one call; all that can be wrong here is found before it begins."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            what = f"all_reduce of {name!r}"
            if not isinstance(name, str):
                raise ConfigError(f"{what}: the names of tensors are texts")
            check_tensor(tensor, what)
            check_writable(tensor, what)
            if tensor.device.type != "cpu":
                raise ConfigError(f"{what}: it is on {tensor.device}, not on the CPU")
        self._named = sorted(tensors.items())

    def layout(self) -> Tensor:
        """Return 8 bytes that differ if names, shapes or dtypes do."""
        kinds = [(name, tuple(t.shape), str(t.dtype)) for name, t in self._named]
        digest = hashlib.blake2b(repr(kinds).encode(), digest_size=8).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.int64)

    def check_layouts(self, layouts: Tensor) -> None:
        """Raise CallMismatch if a rank has another layout than this one."""
        own = int(self.layout())
        for peer, theirs in enumerate(layouts.tolist()):
            if theirs != own:
                some = ", ".join(name for name, _ in self._named[:5])
                text = (
                    "calls all_reduce with other names, shapes or dtypes than this "
                    f"rank, which has {len(self._named)} tensors ({some}"
                )
                raise CallMismatch(peer, f"{text}{', ...' * (len(self._named) > 5)})")

    def reduce(self, reduce: Reduce) -> None:
        """Combine all of them, in place."""
        packs: dict[torch.dtype, list[Tensor]] = {}
        for _, tensor in self._named:
            if tensor.nbytes > PACKED_BYTES:
                reduce(tensor)
            else:
                packs.setdefault(tensor.dtype, []).append(tensor.detach())
        for pack in packs.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in pack])
            reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in pack])
            for tensor, part in zip(pack, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
