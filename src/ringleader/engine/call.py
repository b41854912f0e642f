"""One collective call in the engine's terms: the only description that engines take.

groups/tensors.py builds it from tensors, the executor chooses its algorithm and gives
it a header, and one engine runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ringleader.collectives.schedule import split
from ringleader.deadline import Deadline
from ringleader.engine.arrays import Array, address_of
from ringleader.engine.reductions import Combine, Divide, combine, divider
from ringleader.engine.shared_memory.relay_plan import Copy, Piece, RelayPlans
from ringleader.wire.header import COUNT_OFFSET

PlanKey = tuple[str, str, int, int]
"""(operation, algorithm, root, arity): what a program depends on in one group."""
PeerHeaders = dict[int, tuple[bytes, bytes]]
"""peer -> (the header we send, the header we expect)."""


class DeviceCopier(Protocol):
    """Copies parts of a tensor that the CPU cannot address to relay slots and back."""

    slots: list[list[Any]]
    """The slots of the relay, as objects that ``copy`` accepts."""
    plans: RelayPlans
    """The turns of earlier calls. They hold no view of a tensor, only byte ranges."""

    def piece(self, number: int, runs: list[range], end: int) -> Piece:
        """Piece ``number``; ``runs``: byte ranges of the tensor, by step.

        As many pieces as there are ranks are in use at once.
        """
        ...

    def copy(self, copies: list[Copy]) -> None:
        """Start these copies, in this order; a range is a part of the tensor."""
        ...

    def synchronize(self) -> None:
        """Return when all copies started so far have been made."""
        ...

    def using(self, flat: torch.Tensor) -> AbstractContextManager[None]:
        """Copy this tensor until the context ends; an error waits for all copies."""
        ...


@dataclass(frozen=True, slots=True)
class Mapped:
    """Memory that all ranks of a host have mapped; see shared_memory/mapped_sum.py."""

    tensors: Sequence[Array]
    """The input of each rank."""
    result: Array
    """One result, for all of them."""


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """One collective operation on this rank.

    Each chunk has an input (the values this rank contributes; None if it has none) and
    an output (the memory for the result; None if this rank gets none). A ``whole`` call
    has one chunk, which the algorithm splits further as it needs.
    """

    operation: str
    dtype: torch.dtype
    count: int
    """Elements, as in the header."""
    num_bytes: int
    """Size that the choice of the algorithm depends on; equal on all ranks."""
    inputs: list[Array | None]
    outputs: list[Array | None]
    lengths: list[int]
    """Elements of every chunk."""
    num_results: int
    """Elements of the result on this rank."""
    whole: bool = False
    reduce_op: str = "none"
    root: int | None = None
    layout: int = 0
    """Checksum of ``lengths`` where they differ, so that ranks can compare them."""
    pairs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """all_to_all only: peer -> (elements sent to it, elements received from it)."""

    codec: str | None = None
    """Codec with its parameters; None sends the values as they are."""
    codec_name: str = "none"
    """The codec's name on the wire, without its seed."""
    residual: Array | None = None
    """float32, as long as all inputs together; added to them."""
    error_out: Array | None = None
    """float32, as long as all inputs together; receives the encoding error."""

    mapped: Mapped | None = None
    """The tensors of all ranks, if all ranks have mapped them."""
    device_copier: DeviceCopier | None = None
    """Reads and writes a tensor on an accelerator; the call then has no arrays."""
    copy_back: list[Callable[[], object]] = field(default_factory=list)
    """Copies results into tensors that are not contiguous, after the call."""

    tensors: tuple[int, ...] = ()
    """Elements of each tensor of a prepared call, which has no arrays."""

    algorithm: str = "none"
    """Set by ``Executor.choose``, together with ``arity``."""
    arity: int = 0
    deadline: Deadline | None = None
    """Set when the call begins to run."""

    @property
    def input(self) -> Array:
        """The input of a whole call."""
        return present(self.inputs[0])

    @property
    def output(self) -> Array:
        """The output of a whole call."""
        return present(self.outputs[0])

    @property
    def plan_key(self) -> PlanKey:
        """The properties that the program of this call depends on."""
        return self.operation, self.algorithm, self.root or 0, self.arity

    def combine(self) -> Combine:
        """The function that adds (or multiplies, ...) two arrays of this call."""
        return combine(self.dtype, self.reduce_op)

    def divide(self, size: int) -> Divide | None:
        """The function that turns a sum over ``size`` ranks into the result, if any."""
        return divider(self.dtype, size) if self.reduce_op == "mean" else None

    def chunks(
        self, num_chunks: int
    ) -> tuple[list[Array | None], list[Array | None], list[int]]:
        """(inputs, outputs, lengths) of the chunks that a program moves."""
        if not self.whole:
            return self.inputs, self.outputs, self.lengths
        bounds = split(self.lengths[0], num_chunks)
        source, out = self.inputs[0], self.outputs[0]
        return (
            [None if source is None else source[a:b] for a, b in bounds],
            [None if out is None else out[a:b] for a, b in bounds],
            [b - a for a, b in bounds],
        )

    def copy_own(self, written: Container[int] = ()) -> None:
        """Copy the chunks that this rank keeps for itself: they are not sent.

        Chunks in ``written`` have been received already.
        """
        for chunk, source in enumerate(self.inputs):
            out = self.outputs[chunk]
            if source is None or out is None or chunk in written:
                continue
            if address_of(source) != address_of(out):
                np.copyto(out, source)

    def headers(self, header: bytes, rank: int, size: int) -> PeerHeaders:
        """The headers per peer; they differ between peers only in all_to_all."""
        pairs = [(p, n) for p, n in self.pairs.items() if p != rank]
        if not pairs:
            return dict.fromkeys(range(size), (header, header))

        def with_count(count: int) -> bytes:
            end = COUNT_OFFSET + 8
            return header[:COUNT_OFFSET] + count.to_bytes(8, "little") + header[end:]

        return {p: (with_count(out), with_count(into)) for p, (out, into) in pairs}


def present(array: Array | None) -> Array:
    """``array``, which the operation guarantees not to be None."""
    assert array is not None
    return array
