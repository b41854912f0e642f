"""fp16 and bf16: two bytes per value. NaN and infinities are kept."""

from __future__ import annotations

import platform

import numpy as np
import torch

from ringleader.codec.codec import Data, Values, encoding_error

GRAIN = 32768
"""The most elements that torch converts without starting a second thread."""
IS_ARM = platform.machine() in ("aarch64", "arm64")
"""On ARM numpy converts to float16 ten times as fast as torch; on x86 torch is faster
(measured, numpy against torch: Neoverse-N1 5.5 and 0.56 GB/s, Xeon 0.8 and 33)."""


class _Half:
    name: str
    _dtype: torch.dtype

    def num_bytes(self, count: int) -> int:
        return 2 * count

    def encode(
        self, values: Values, data: Data, error_out: Values | None = None
    ) -> None:
        """Round every value to the nearest, ties to even."""
        self._convert(values, data, to_half=True)
        if error_out is not None:
            self.decode(data, error_out)
            encoding_error(values, error_out, error_out, error_out)

    def decode(self, data: Data, values: Values) -> None:
        """Convert back to float32, which is exact."""
        self._convert(values, data, to_half=False)

    def _convert(self, values: Values, data: Data, *, to_half: bool) -> None:
        bits = data.view(np.int16)  # numpy has no bfloat16
        for i in range(0, len(values), GRAIN):
            wide = torch.from_numpy(values[i : i + GRAIN])
            half = torch.from_numpy(bits[i : i + GRAIN]).view(self._dtype)
            if to_half:
                half.copy_(wide)
            else:
                wide.copy_(half)


class Fp16(_Half):
    """Eleven bits of precision; values above 65504 become infinite."""

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
    """Eight bits of precision and the range of float32."""

    name = "bf16"
    _dtype = torch.bfloat16
