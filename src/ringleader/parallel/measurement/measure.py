"""Measures the layers of the real model on this machine, with a real micro-batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ringleader.parallel.measurement.boundary import Boundary, boundary_of
from ringleader.parallel.measurement.layers import Layer
from ringleader.parallel.measurement.leaves import (
    changes_input,
    copy_inputs,
    cut,
    synchronize,
    tensors_in,
)
from ringleader.parallel.measurement.sample import Sample
from ringleader.parallel.measurement.unchanged import unchanged
from ringleader.parallel.plan.profile import LayerProfile

MEASURE_S = 1.0
"""A machine that may use half of a core gets it in slices of 0.05 s, so that a short
measurement sees either a full core or none."""
MIN_PASSES = 3
MAX_PASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The layers of a model as they are on this machine."""

    layers: tuple[LayerProfile, ...]
    seconds: tuple[float, ...]
    """Per layer; zeros if the time was not measured."""
    boundaries: tuple[Boundary, ...]
    """The input of each layer; the last one is the output of the model."""


def measure(
    model: nn.Module,
    layers: Sequence[Layer],
    sample: Sample,
    optimizer_ratio: float,
    *,
    seconds: float | None = None,
    cuts: bool = True,
) -> Measurement:
    """Run forward and backward of each layer, for MEASURE_S unless told otherwise.

    ``cuts=False`` is for models that are not cut between layers: what their layers
    return need not be fit to be sent.

    ``optimizer_ratio`` is the size of the optimizer's state per byte of parameters.
    """
    with unchanged(model):
        first = _Pass(sample, layers, counts_bytes=True, cuts=cuts)
        first.run()
        if seconds is None or seconds > 0:
            times = _layer_seconds(sample, layers, seconds or MEASURE_S)
        else:
            times = [0.0] * len(layers)
    return Measurement(
        layers=tuple(
            _profile(layer, kept, before, after, sample.rows, optimizer_ratio)
            for layer, kept, before, after in zip(
                layers,
                first.kept_bytes,
                first.boundaries[:-1],
                first.boundaries[1:],
                strict=True,
            )
        ),
        seconds=tuple(times),
        boundaries=tuple(first.boundaries),
    )


def _layer_seconds(
    sample: Sample, layers: Sequence[Layer], seconds: float
) -> list[float]:
    """Return the times of the layers; their sum is the mean time of a whole pass.

    The division among layers is that of the medians, which a pause of the process in
    one of them does not move; the sum includes such pauses, because training has them.
    """
    passes: list[list[float]] = []
    begin = time.monotonic()
    while len(passes) < MAX_PASSES:
        each = _Pass(sample, layers)
        each.run()
        passes.append(each.seconds)
        is_long = time.monotonic() - begin >= seconds
        if is_long and len(passes) >= MIN_PASSES:
            break
    middle = [median(times) for times in zip(*passes, strict=True)]
    whole = sum(map(sum, passes)) / len(passes)
    return [max(whole * part / sum(middle), 1e-9) for part in middle]


class _Pass:
    """One forward and backward of every layer, each on its own."""

    def __init__(
        self,
        sample: Sample,
        layers: Sequence[Layer],
        *,
        counts_bytes: bool = False,
        cuts: bool = False,
    ) -> None:
        self.seconds: list[float] = []
        self.boundaries: list[Boundary] = []
        self.kept_bytes: list[int] = []
        self._sample = sample
        self._layers = layers
        self._counts_bytes = counts_bytes
        self._cuts = cuts
        self._seen: dict[int, torch.UntypedStorage] = {}

    def run(self) -> None:
        sample = self._sample
        parameters = {p for layer in self._layers for p in layer.module.parameters()}
        for parameter in parameters:
            self._remember(parameter)
        value: Any = sample.inputs
        self._note(value, "the input")
        for position, layer in enumerate(self._layers):
            arguments = value if position == 0 else (value,)
            value = self._run_layer(layer, arguments)
            self._note(value, f"the output of layer {layer.name}")

    def _run_layer(self, layer: Layer, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - what the layer returns
        sample, kept = self._sample, 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += self._remember(tensor) if self._counts_bytes else 0
            return tensor

        leaves = cut(arguments)
        wanted = [leaf for leaf in tensors_in(leaves) if leaf.requires_grad]
        wanted += [p for p in layer.module.parameters() if p.requires_grad]
        synchronize(sample.device)
        begin = time.perf_counter()
        with saved_tensors_hooks(pack, lambda kept: kept), sample.precision():
            if changes_input(layer.module):
                leaves = copy_inputs(leaves)
            output = layer.module(*leaves)
            ends = [output]
            if layer is self._layers[-1]:
                ends = [sample.loss(output, sample.target)]
        tops = [each for each in tensors_in(ends) if each.requires_grad]
        if tops and wanted:
            ones = [torch.ones_like(each) for each in tops]
            torch.autograd.grad(tops, wanted, ones, allow_unused=True)
        synchronize(sample.device)
        self.seconds.append(time.perf_counter() - begin)
        self.kept_bytes.append(kept)
        return cut(output)

    def _remember(self, tensor: Tensor) -> int:
        """Return the size of a tensor's storage, if it is met for the first time."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._seen:
            return 0
        self._seen[storage.data_ptr()] = storage  # keeps the address in use
        return storage.nbytes()

    def _note(self, value: object, where: str) -> None:
        empty = Boundary((), is_tuple=True)
        rows = self._sample.rows
        self.boundaries.append(boundary_of(value, rows, where) if self._cuts else empty)


def _profile(
    layer: Layer,
    kept: int,
    before: Boundary,
    after: Boundary,
    samples: int,
    optimizer_ratio: float,
) -> LayerProfile:
    parameters = list(layer.module.parameters())
    trained = sum(p.nbytes for p in parameters if p.requires_grad)
    buffers = sum(b.nbytes for b in layer.module.buffers())
    return LayerProfile(
        name=layer.name,
        parameter_bytes=sum(p.nbytes for p in parameters) + buffers,
        gradient_bytes=trained,
        optimizer_bytes=round(trained * optimizer_ratio),
        activation_bytes=kept,
        input_bytes=before.num_bytes(samples),
        output_bytes=after.num_bytes(samples),
    )
