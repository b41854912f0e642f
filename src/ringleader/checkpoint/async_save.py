"""Saves in the background: training goes on after the state was copied.

The copy is the only extra memory: it is made into the same buffers each time, and the
next save waits until the last one is done with them. The background thread has a
process group of its own, so its collectives do not mix with those of the training.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ringleader.backend.async_checkpoints import new_group_like
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.save import KEEP, Saved, write_state
from ringleader.checkpoint.training_state import Optimizers, State, collect

_log = logging.getLogger(__name__)


def async_save(
    folder: str | os.PathLike[str],
    step: int,
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    *,
    keep: int = KEEP,
    group: dist.ProcessGroup | None = None,
    **others: object,
) -> Future[Saved]:
    """Copy the training state and save it in the background; all ranks call it.

    The arguments are those of ``save``. Returns at once, unless the save before this
    one is not done: then it waits for that. If that failed, raises its error, unless
    the program has got it from the future. The program waits for the last save before
    it ends; errors are logged, too.
    """
    saver = _saver_of(group)
    saver.wait()
    state: Future[State] = Future()
    try:
        state.set_result(saver.copied(collect(model, optimizer, others, saver.rank)))
    except Exception as exc:  # noqa: BLE001  # raised in the background, on all ranks
        state.set_exception(exc)
    return saver.start(folder, step, state, keep)


class _Saving(Future[Saved]):
    """A save in the background."""

    is_seen = False
    """Whether somebody asked for its result."""

    def result(self, timeout: float | None = None) -> Saved:
        self.is_seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.is_seen = True
        return super().exception(timeout)


class _Saver:
    """The background saves of one group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if group is not None:
            group = new_group_like(group)
        self._exchange = ByteExchange(group)
        self.rank = self._exchange.rank
        self._copies: dict[tuple[object, ...], Tensor] = {}
        self._pending: _Saving | None = None

    def is_usable(self) -> bool:
        """Return whether its group was not destroyed; programs destroy all at once."""
        group = self._exchange.group
        assert isinstance(group, dist.ProcessGroup)
        try:
            dist.get_backend(group)
        except ValueError:
            return False
        return True

    def wait(self) -> None:
        """Wait for the last save; raise its error, if the user has not seen it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            is_seen = pending.is_seen
            if pending.exception() is not None and not is_seen:
                pending.result()

    def start(
        self, folder: str | os.PathLike[str], step: int, state: Future[State], keep: int
    ) -> Future[Saved]:
        """Save ``state``, or fail with its error on all ranks, in a thread."""
        future = _Saving()
        future.set_running_or_notify_cancel()
        self._pending = future

        def run() -> None:
            try:
                saved = write_state(folder, step, state.result, keep, self._exchange)
            except BaseException as exc:  # noqa: BLE001  # the waiting thread gets it
                _log.error("step %d was not saved: %s", step, exc)
                future.set_exception(exc)
            else:
                future.set_result(saved)

        # Not a daemon: the interpreter waits for it, so the last save is complete.
        threading.Thread(target=run, name="ringleader-checkpoint").start()
        return future

    def copied(self, state: State) -> State:
        """Return a copy of the state, in the buffers of the last copy."""
        copy: State = self._copied(state, ())
        return copy

    def _copied(self, value: Any, path: tuple[object, ...]) -> Any:  # noqa: ANN401
        """Copy all tensors into the buffers of the last copy; keep the structure."""
        if isinstance(value, dict):
            return {k: self._copied(v, (*path, k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            parts = [self._copied(v, (*path, i)) for i, v in enumerate(value)]
            return type(value)(parts) if type(value) in (list, tuple) else parts
        if not isinstance(value, Tensor):
            return value
        local = value.to_local() if isinstance(value, DTensor) else value
        copy = self._copies.get(path)
        if copy is None or copy.shape != local.shape or copy.dtype != local.dtype:
            copy = self._copies[path] = torch.empty_like(local, device="cpu")
        copy.copy_(local.detach())
        if not isinstance(value, DTensor):
            return copy
        # Not from_local: that copies the tensor to the device of the mesh.
        untyped: Any = DTensor
        return untyped(copy, value._spec, requires_grad=False)


_alone: list[_Saver] = []
_savers: weakref.WeakKeyDictionary[dist.ProcessGroup, _Saver] = (
    weakref.WeakKeyDictionary()
)


def _saver_of(group: dist.ProcessGroup | None) -> _Saver:
    """Return the saver of a group; made once, because it has buffers and a group."""
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        if not _alone:
            _alone.append(_Saver(None))
        return _alone[0]
    if group not in _savers or not _savers[group].is_usable():
        _savers[group] = _Saver(group)
    return _savers[group]
