"""Gradients in flat buffers: the contribution A, and the results B of two steps.

``p.grad`` of every parameter is a view of A for the whole run. Quanta accumulate there,
and the reduction reads it and never writes it, so A is the retained copy of a
contribution. A delivered result is scaled from B into A, where the optimizer reads it;
B keeps the result as it was delivered, for members that have yet to receive it.

A is on the device of its parameters. B is in host memory, where the group works; for an
accelerator there is a host copy of A, too, and no second gradient on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ringleader.training.bucket_plan import Bucket, Leaf, plan_buckets


class FlatBuffers:
    """A, B0 and B1 of the parameters of one model, and their buckets."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.buckets: list[Bucket] = []
        self.contribution: dict[str, Tensor] = {}
        """A: kind -> flat tensor."""
        self.views: list[Tensor] = []
        """``p.grad`` of each parameter."""
        self._results: list[dict[str, Tensor]] = []
        self._staged: dict[str, Tensor] = {}

    def allocate(self) -> None:
        """Allocate A and make it the gradient of all parameters."""
        self.buckets = plan_buckets([_leaf(p) for p in self.parameters])
        sizes = {bucket.kind: bucket.stop for bucket in self.buckets}
        samples = {_kind(p): p for p in self.parameters}
        for kind, size in sizes.items():
            self.contribution[kind] = _zeros(size, samples[kind])
        self.views = self.views_of(self.contribution)
        self.attach()

    @property
    def num_bytes(self) -> int:
        """Bytes of A."""
        return sum(flat.nbytes for flat in self.contribution.values())

    def views_of(self, flats: dict[str, Tensor]) -> list[Tensor]:
        """Return what flat tensors hold for each parameter, in its shape."""
        views: list[Tensor | None] = [None] * len(self.parameters)
        for bucket in self.buckets:
            start = bucket.start
            for i in bucket.leaves:
                p = self.parameters[i]
                views[i] = _view(flats[bucket.kind], start, p)
                start += p.numel()
        return [view for view in views if view is not None]

    def attach(self) -> None:
        """Make A the gradient of all parameters again, whatever the user did."""
        for p, view in zip(self.parameters, self.views, strict=True):
            if p.grad is not view:
                p.grad = view

    def zero(self) -> None:
        """Forget the contribution."""
        for flat in self.contribution.values():
            flat.zero_()

    def part(self, index: int) -> Tensor:
        """Return what bucket ``index`` covers of A, copied if A is on a device."""
        bucket = self.buckets[index]
        flat = self.contribution[bucket.kind]
        part = flat[bucket.start : bucket.stop]
        if part.is_cpu:
            return part
        if bucket.kind not in self._staged:
            self._staged[bucket.kind] = _host_empty(flat)
        return self._staged[bucket.kind][bucket.start : bucket.stop].copy_(part)

    def result(self, version: int) -> dict[str, Tensor]:
        """Return the flat tensors that hold, or will hold, the result ``version``.

        Results of consecutive versions are in different memory: the one delivered last
        stays intact while the next is being reduced. Allocated on first use, since a
        run of one member needs none.
        """
        if not self._results:
            self._results = [
                {kind: _host_empty(a) for kind, a in self.contribution.items()}
                for _ in range(2)
            ]
        return self._results[version % 2]

    def total(self, version: int | None) -> dict[str, Tensor]:
        """Return the sum that a step applies; None: A, in a run of one member."""
        return self.contribution if version is None else self.result(version)

    def take_result(self, version: int, factor: float) -> None:
        """Set A to the result ``version`` times ``factor``."""
        for kind, result in self.result(version).items():
            flat = self.contribution[kind]
            if flat.is_cpu:
                torch.mul(result, factor, out=flat)
            else:
                flat.copy_(result).mul_(factor)

    def scale(self, factor: float) -> None:
        """Multiply A by ``factor``: the result of a run of one member is A itself."""
        for flat in self.contribution.values():
            flat.mul_(factor)

    def result_part(self, version: int, index: int) -> Tensor:
        """Return what bucket ``index`` covers of the result ``version``."""
        bucket = self.buckets[index]
        return self.result(version)[bucket.kind][bucket.start : bucket.stop]


def _kind(p: Tensor) -> str:
    return f"{p.dtype}@{p.device}"


def _leaf(p: Tensor) -> Leaf:
    return Leaf(_kind(p), p.numel(), p.element_size())


def _zeros(size: int, like: Tensor) -> Tensor:
    return torch.zeros(size, dtype=like.dtype, device=like.device)


def _host_empty(like: Tensor) -> Tensor:
    is_pinned = like.device.type == "cuda"
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=is_pinned)


def _view(flat: Tensor, start: int, p: Tensor) -> Tensor:
    """Return the part of ``flat`` for ``p``, with its strides where they are dense."""
    part = flat[start : start + p.numel()]
    if p.is_contiguous():
        return part.view(p.shape)
    dense = torch.empty_like(p, memory_format=torch.preserve_format).stride()
    if p.stride() == dense:
        return part.as_strided(p.shape, p.stride(), part.storage_offset())
    return part.view(p.shape)
