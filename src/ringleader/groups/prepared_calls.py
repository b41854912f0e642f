"""Recognises calls that are like earlier ones, which have a prepared form.

The first plain call of its kind is prepared by its engine; later calls run that
function directly, on the addresses of their tensors. Asynchronous calls queue it. What
travels is the same, so the ranks need not agree on who runs a call prepared.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ringleader.deadline import Deadline
from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call
from ringleader.groups.executor import Executor, PreparedCall
from ringleader.groups.runner import Runner
from ringleader.groups.tensors import Tensors
from ringleader.groups.work import DONE, Work

Key = tuple[str, Hashable, torch.dtype | None, tuple[int, ...], tuple[int, ...]]
"""(operation, its other arguments, dtype, lengths of lists, elements per tensor)."""
Kind = tuple[Key, Addresses]
"""What a call shares with others like it, and what is its own."""

MAX_PREPARED = 256
"""Prepared operations kept; a model has far fewer sizes of tensors."""
NO_TENSORS: Kind = (("barrier", None, None, (), ()), ())
"""The kind of a barrier."""


class PreparedCalls:
    """The prepared calls of one group."""

    def __init__(self, executor: Executor, runner: Runner) -> None:
        self._executor = executor
        self._runner = runner
        self._run_now = runner.run_prepared
        self.kept: dict[Key, PreparedCall | None] = {}
        """None for kinds that have no prepared form."""
        self.clear = self.kept.clear

    def run(
        self, kind: Kind | None, async_op: bool, *given: Tensors | None
    ) -> Work | None:
        """Run or queue a call on the tensors ``given``.

        Returns None if it is not prepared, or if others come before a synchronous one.
        """
        if kind is None:
            return None
        prepared = self.kept.get(kind[0])
        if prepared is None:
            return None
        if async_op:
            return self._queue(prepared, kind[1], given)
        return DONE if self._run_now(prepared.run, kind[1]) else None

    def _queue(
        self,
        prepared: PreparedCall,
        addresses: Addresses,
        given: tuple[Tensors | None, ...],
    ) -> Work:
        run = self._executor.run_prepared
        # Lists are the caller's, who may empty them before the call has ended.
        held = [
            each if isinstance(each, Tensor) else list(each or ()) for each in given
        ]

        def body(deadline: Deadline, _held: object = held) -> None:
            """``_held`` keeps the memory alive until the call has ended."""
            run(prepared, addresses, deadline)

        limit_s = self._runner.waiter.default_s
        return self._runner.call(body, limit_s, async_op=True)

    def keep(self, kind: Kind, call: Call) -> None:
        """Prepare calls of this kind, like ``call``, unless that was tried before."""
        key = kind[0]
        if key not in self.kept:
            prepared = self._executor.prepare(call, key[-1])
            if len(self.kept) >= MAX_PREPARED:
                self.kept.clear()
            self.kept[key] = prepared


def kind_of(operation: str, others: Hashable, *given: Tensors) -> Kind | None:
    """The kind of a call; None if its tensors need the general path.

    Prepared calls work on memory as it is: on dense CPU tensors of one dtype that are
    contiguous and not empty. The general path raises for what is no tensor at all.
    """
    lists, counts, addresses = [], [], []
    dtype = None
    try:
        for each in given:
            if isinstance(each, Tensor):
                lists.append(-1)
                tensors: tuple[Tensor, ...] = (each,)
            else:
                lists.append(len(each))
                tensors = tuple(each)
            for tensor in tensors:
                address = _address(tensor)
                dtype = dtype or tensor.dtype
                if not address or tensor.dtype is not dtype:
                    return None
                addresses.append(address)
                counts.append(tensor.numel())
    except (AttributeError, TypeError, RuntimeError):
        return None
    key = (operation, others, dtype, tuple(lists), tuple(counts))
    return key, tuple(addresses)


def kind_of_one(operation: str, others: Hashable, tensor: Tensor) -> Kind | None:
    """``kind_of`` for one tensor; a third of its time."""
    try:
        address = _address(tensor)
        key = (operation, others, tensor.dtype, (), (tensor.numel(),))
    except (AttributeError, TypeError, RuntimeError):
        return None
    return (key, (address,)) if address else None


def _address(tensor: Tensor) -> int:
    """Where the values of ``tensor`` lie, one after another; 0 if they do not."""
    if (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    ):
        return tensor.data_ptr()
    return 0
