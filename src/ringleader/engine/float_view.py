"""Parts of a tensor as float32, whatever its dtype: what codecs read and write."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ringleader.engine.arrays import Array, Bytes
from ringleader.engine.reductions import GRAIN
from ringleader.errors import ConfigError

Floats = NDArray[np.float32]

_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check(dtype: torch.dtype, codec: str) -> None:
    """Raise ConfigError if codecs cannot encode tensors of ``dtype``."""
    if dtype not in _KINDS:
        kinds = ", ".join(str(k).removeprefix("torch.") for k in _KINDS)
        raise ConfigError(f"codec {codec!r} takes {kinds}; this tensor is {dtype}")


class FloatView:
    """A float32 view of an array. Halves are 16-bit integers to numpy, so torch
    converts them. With a ``residual``, ``read`` returns the sum of both.
    """

    __slots__ = ("_array", "_half", "_is_plain", "_residual")

    def __init__(
        self, array: Array, dtype: torch.dtype, residual: Floats | None = None
    ) -> None:
        self._array = array
        self._residual = residual
        self._is_plain = dtype is torch.float32
        is_half = dtype in (torch.float16, torch.bfloat16)
        self._half = dtype if is_half else None

    @property
    def is_float32(self) -> bool:
        """Whether ``read`` returns the memory itself."""
        return self._is_plain and self._residual is None

    def read(self, at: slice, scratch: Floats) -> Floats:
        """The values at ``at``; in ``scratch`` unless they are float32 in memory."""
        floats = self.room(at, scratch)
        if self._half is not None:
            self._convert(at, scratch, to_half=False)
        elif not self._is_plain:
            np.copyto(scratch, self._array[at], casting="same_kind")
        if self._residual is not None:
            floats = np.add(floats, self._residual[at], scratch)
        return floats

    def room(self, at: slice, scratch: Floats) -> Floats:
        """Memory for values that ``write`` then stores: the array itself if float32."""
        if self._is_plain:
            floats: Floats = self._array[at]
            return floats
        return scratch

    def write(self, at: slice, values: Floats) -> None:
        """Store ``values``, which are those of ``room``."""
        if self._half is not None:
            self._convert(at, values, to_half=True)
        elif not self._is_plain:
            np.copyto(self._array[at], values)

    def bytes(self, at: slice) -> Bytes:
        """The memory of the elements at ``at``."""
        return self._array[at].view(np.uint8)

    def _convert(self, at: slice, floats: Floats, *, to_half: bool) -> None:
        assert self._half is not None
        bits = self._array[at]
        for i in range(0, len(floats), GRAIN):
            wide = torch.from_numpy(floats[i : i + GRAIN])
            half = torch.from_numpy(bits[i : i + GRAIN]).view(self._half)
            if to_half:
                half.copy_(wide)
            else:
                wide.copy_(half)
