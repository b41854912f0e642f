"""fp16 and bf16: every value in two bytes. NaN and infinities stay what they are."""

from __future__ import annotations

import platform

import numpy as np
import torch

from ringleader.codec.codec import Data, Values, leave

GRAIN = 32768
"""As many elements as torch converts without a second thread."""
IS_ARM = platform.machine() in ("aarch64", "arm64")
"""There numpy converts to float16 ten times as fast as torch; elsewhere, the reverse
(measured: Neoverse-N1 5.5 against 0.56 GB/s, a Xeon 0.8 against 33)."""


class _Half:
    name: str
    _dtype: torch.dtype

    def num_bytes(self, count: int) -> int:
        """Two each."""
        return 2 * count

    def encode(self, values: Values, data: Data, lost: Values | None = None) -> None:
        """Round to the nearest, ties to even."""
        self._convert(values, data, to_half=True)
        if lost is not None:
            self.decode(data, lost)
            leave(values, lost, lost, lost)

    def decode(self, data: Data, values: Values) -> None:
        """Exact."""
        self._convert(values, data, to_half=False)

    def _convert(self, values: Values, data: Data, *, to_half: bool) -> None:
        bits = data.view(np.int16)  # torch cannot take bfloat16 from numpy
        for i in range(0, len(values), GRAIN):
            wide = torch.from_numpy(values[i : i + GRAIN])
            half = torch.from_numpy(bits[i : i + GRAIN]).view(self._dtype)
            if to_half:
                half.copy_(wide)
            else:
                wide.copy_(half)


class Fp16(_Half):
    """Eleven bits of precision; what is above 65504 becomes infinite."""

    name = "fp16"
    _dtype = torch.float16

    def _convert(self, values: Values, data: Data, *, to_half: bool) -> None:
        if not IS_ARM:
            super()._convert(values, data, to_half=to_half)
        elif to_half:
            np.copyto(data.view(np.float16), values, casting="unsafe")
        else:
            np.copyto(values, data.view(np.float16))


class Bf16(_Half):
    """Eight bits of precision, the range of float32."""

    name = "bf16"
    _dtype = torch.bfloat16
