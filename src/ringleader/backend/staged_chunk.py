"""One chunk of a staged operation, and where tensors are cut into chunks."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

EDGE = 4
"""The first and the last chunk are this many times shorter than the others."""
ALIGN = 64


class Chunk:
    """The same part of every tensor, on the device and in host memory."""

    def __init__(
        self,
        sources: list[Tensor],
        targets: list[Tensor],
        hosts: dict[tuple[int, int], Tensor],
        run: slice,
    ) -> None:
        self.sent = [hosts[key_of(t)] for t in sources]
        self.received = [hosts[key_of(t)] for t in targets]
        self._out = [(hosts[key_of(t)], t[run]) for t in sources]
        self._in = [(t[run], hosts[key_of(t)]) for t in targets]

    def copy_out(self) -> None:
        """Copy to host memory, in the current stream."""
        for host, tensor in self._out:
            host.copy_(tensor, non_blocking=True)

    def copy_in(self) -> None:
        """Copy back to the device, in the current stream."""
        for tensor, host in self._in:
            tensor.copy_(host, non_blocking=True)


def cut(length: int, step: int) -> list[slice]:
    """Cut into slices of at most ``step`` elements; the first and last are short.

    Nothing travels while the first is copied out and while the last is copied in.
    """
    step = max(EDGE * ALIGN, step // ALIGN * ALIGN)
    edge = step // EDGE // ALIGN * ALIGN
    if length <= 2 * edge:
        return [slice(0, length)]
    bounds = [0, *range(edge, length - edge, step), length - edge, length]
    bounds[-2] = bounds[-2] // ALIGN * ALIGN
    return [slice(a, b) for a, b in pairwise(bounds) if a < b]


def key_of(tensor: Tensor) -> tuple[int, int]:
    """Return what two views of the same memory share."""
    return tensor.data_ptr(), tensor.numel()
