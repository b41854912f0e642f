"""Helper threads: large copies and additions by torch's own threads.

torch divides an operation on a large tensor among the OpenMP threads of the calling
thread. They wait in a loop for the next piece of work, so handing it over costs some
microseconds; threads of our own would need ten times that, and the GIL. See
docs/decisions/0019-helper-threads.md.

An operation waits for the slowest of its threads, and a thread whose core another
program uses is slower than all the others are faster. So every operation on a piece is
timed, and one that is late sends the helpers to rest: the calling thread does the
remaining operations of the call alone, and the calls of the next while. Each rank
decides that by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ringleader.engine.arrays import Array
from ringleader.engine.openmp import SetThreads
from ringleader.engine.shared_memory.relay_call import RelayCall
from ringleader.engine.shared_memory.relay_plan import Copy
from ringleader.transport.crowded_cores import LONGEST_REST_S, Rest, is_late, now_s
from ringleader.transport.shm_segment import PER_THREAD_BYTES

_log = logging.getLogger("ringleader")

HELPED_BYTES = 256 << 10
"""Smallest piece that is divided: as float32 it is two of the pieces of 32768 elements
that torch gives to a thread, and copying it takes one thread about 25 us, several times
what the hand-over costs."""

_ADDED_AS: dict[torch.dtype, torch.dtype] = {
    **{
        dtype: dtype
        for dtype in (
            *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
            *(torch.int8, torch.int16, torch.int32, torch.int64),
        )
    },
    # torch does not add these, but integers of either sign have equal bits.
    torch.uint8: torch.int8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


class Helpers:
    """The helper threads of one rank in one group. One thread at a time calls it."""

    def __init__(
        self,
        count: int,
        set_threads: SetThreads,
        is_computing: Callable[[], bool] | None = None,
    ) -> None:
        self.num_threads = count + 1
        """The helpers and the thread that calls."""
        self._set_threads = set_threads
        self._is_computing = is_computing
        """Whether the program computes while the calling thread communicates, so that
        no core is idle; None if there are idle cores even then."""
        self._rest = Rest()
        self._is_alone = self._has_told = False

    def are_free(self) -> bool:
        """Whether the calling thread may use them now."""
        if self._is_computing is not None and self._is_computing():
            return False
        return self._rest.may_try()

    def run(self, function: Callable[[], None]) -> None:
        """Call ``function``; torch's operations in it use all threads."""
        own = torch.get_num_threads()  # also makes torch apply its number, if it is new
        self._is_alone = False
        self._set_threads(self.num_threads)
        try:
            if torch.is_inference_mode_enabled():
                # Views that are kept would not be usable outside of that mode.
                with torch.inference_mode(False):
                    function()
            else:
                function()
        finally:
            self._set_threads(own)

    def copy(self, target: Array, source: Array) -> None:
        """Copy a flat array to one of the same type, divided among threads if large."""
        if target.nbytes < HELPED_BYTES:
            np.copyto(target, source)
        elif target.nbytes > self.num_threads * PER_THREAD_BYTES:
            _bytes(target).copy_(_bytes(source))  # a whole tensor is late by its size
        else:
            self._copy_tensors([(_bytes(target), _bytes(source))])

    def relay_call(
        self, dtype: torch.dtype, op: str, size: int, part_bytes: int
    ) -> RelayCall | None:
        """Return how threads share sums and means: tensors take the place of arrays.

        None for what stays on one thread. All ranks must use it, or none.
        """
        added_as = _ADDED_AS.get(dtype)
        if added_as is None or op not in ("sum", "mean"):
            return None
        if op == "mean" and not dtype.is_floating_point:
            return None
        return RelayCall(
            combine=self._add,
            divide=partial(_divide, by=size) if op == "mean" else None,
            copy=self._copy_tensors,
            bytes=_bytes,
            values=lambda array: _bytes(array).view(added_as),
            helped_as=added_as,
            part_bytes=part_bytes,
        )

    def _copy_tensors(self, copies: list[Copy]) -> None:
        for target, source in copies:
            begun_s = now_s()
            target.copy_(source)
            self._look(begun_s)

    def _add(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        begun_s = now_s()
        torch.add(a, b, out=out)
        self._look(begun_s)

    def _look(self, begun_s: float) -> None:
        """Send the helpers to rest if the operation that has ended was late.

        It gave each thread at most 256 KiB, for 0.02 to 0.2 ms.
        """
        if self._is_alone or not is_late(begun_s):
            return
        self._is_alone = True
        self._set_threads(1)
        self._rest.begin()
        if self._rest.length_s == LONGEST_REST_S and not self._has_told:
            self._has_told = True
            _log.info(
                "helper threads rest most of the time: other programs use their cores; "
                "RINGLEADER_HELPER_THREADS=0 turns them off"
            )


def _divide(total: Tensor, by: int) -> None:
    total.div_(by)


def _bytes(array: Array) -> Tensor:
    return torch.from_numpy(array.view(np.uint8))
