"""Recognises calls that are like earlier ones, which have a prepared form.

The first plain call of its kind is prepared by its engine; later calls run that
function directly, on the addresses of their tensors. Asynchronous calls queue it. What
travels is the same, so the ranks need not agree on who runs a call prepared.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ringleader.deadline import Deadline
from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.call import Call
from ringleader.engine.engine import Finish
from ringleader.groups.executor import Executor, PreparedCall
from ringleader.groups.runner import Runner
from ringleader.groups.tensors import Tensors
from ringleader.groups.work import DONE, Work

Key = tuple[Hashable, ...]
"""(operation, its other arguments, dtype, elements of one or two tensors); with lists:
(operation, others, dtype, lengths of lists, elements per tensor)."""
Kind = tuple[Key, Addresses]
"""What a call shares with others like it, and what is its own."""

MAX_PREPARED = 256
"""Prepared operations kept; a model has far fewer sizes of tensors."""
NO_TENSORS: Kind = (("barrier",), ())
"""The kind of a barrier."""
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}


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
        if self._run_now(prepared.run, kind[1]):
            return DONE
        if self._runner.has_time_here():  # as a part of that operation
            return self._queue(prepared, kind[1], given, async_op=False)
        return None

    def _queue(
        self,
        prepared: PreparedCall,
        addresses: Addresses,
        given: tuple[Tensors | None, ...],
        *,
        async_op: bool = True,
    ) -> Work:
        executor = self._executor
        # The caller may empty lists and give tensors other memory before the call has
        # ended. The functions below keep the memory alive until then.
        held = [
            tensor.untyped_storage()
            for each in given
            for tensor in ((each,) if isinstance(each, Tensor) else each or ())
        ]

        def end(finish: Finish, deadline: Deadline, _held: object = held) -> None:
            executor.finish(finish, deadline)

        if prepared.start is not None:
            work = self._runner.start_prepared(prepared.start, addresses, end)
            if work is not None:
                return work

        def body(deadline: Deadline, _held: object = held) -> None:
            executor.run_prepared(prepared, addresses, deadline)

        limit_s = self._runner.waiter.default_s
        return self._runner.call(body, limit_s, async_op=async_op)

    def keep(self, kind: Kind, call: Call) -> None:
        """Prepare calls of this kind, like ``call``, unless that was tried before."""
        key = kind[0]
        if key not in self.kept:
            prepared = self._executor.prepare(call, _counts(key))
            if len(self.kept) >= MAX_PREPARED:
                self.kept.clear()
            self.kept[key] = prepared


def kind_of(operation: str, others: Hashable, *given: Tensors) -> Kind | None:
    """The kind of a call; None if its tensors need the general path.

    Prepared calls work on memory as it is: on dense CPU tensors of one dtype that are
    contiguous and not empty. The general path raises for what is no tensor at all.
    """
    first, *rest = given
    if isinstance(first, Tensor) and len(rest) == 1 and isinstance(rest[0], Tensor):
        return kind_of_two(operation, others, first, rest[0])
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
        dtype = tensor.dtype
        if (
            tensor.is_cpu
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and (dtype not in _COMPLEX or not tensor.is_conj())
            and (address := tensor.data_ptr())
        ):
            return (operation, others, dtype, tensor.numel()), (address,)
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or one without data
        pass
    return None


def kind_of_two(operation: str, others: Hashable, a: Tensor, b: Tensor) -> Kind | None:
    """``kind_of`` for two tensors; half of its time."""
    try:
        dtype = a.dtype
        if (
            a.is_cpu
            and b.is_cpu
            and b.dtype is dtype
            and a.is_contiguous()
            and b.is_contiguous()
            and not a.is_neg()
            and not b.is_neg()
            and (dtype not in _COMPLEX or not (a.is_conj() or b.is_conj()))
            and (first := a.data_ptr())
            and (second := b.data_ptr())
        ):
            key = (operation, others, dtype, a.numel(), b.numel())
            return key, (first, second)
    except (AttributeError, TypeError, RuntimeError):
        pass
    return None


def _address(tensor: Tensor) -> int:
    """Where the values of ``tensor`` lie, one after another; 0 if they do not."""
    kind = kind_of_one("", None, tensor)
    return 0 if kind is None else kind[1][0]


def _counts(key: Key) -> tuple[int, ...]:
    """The elements of each tensor of a call of this kind."""
    counts: Any = key[-1] if isinstance(key[-1], tuple) else key[3:]
    return tuple(counts)
