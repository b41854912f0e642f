"""Saves in a background thread: training goes on after the state was copied.

The copy is the only extra memory: it is made into the same buffers each time, and the
next save waits until the last one is done with them.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.save import Saved, write_state
from ringleader.checkpoint.training_state import State

_log = logging.getLogger(__name__)


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


class BackgroundSaver:
    """The background saves of one group, to which ``exchange`` belongs alone."""

    def __init__(self, exchange: ByteExchange) -> None:
        self.exchange = exchange
        self._copies: dict[tuple[object, ...], Tensor] = {}
        self._pending: _Saving | None = None

    def wait(self) -> None:
        """Wait for the last save; raise its error, if the user has not seen it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            is_seen = pending.is_seen
            if pending.exception() is not None and not is_seen:
                pending.result()

    def start(
        self,
        folder: str | os.PathLike[str],
        step: int,
        state: Future[State],
        keep: int,
        checkpoint_id: str = "",
    ) -> Future[Saved]:
        """Save ``state``, or fail with its error on all ranks, in a thread.

        ``checkpoint_id`` is as for ``write_state``.
        """
        future = _Saving()
        future.set_running_or_notify_cancel()
        self._pending = future

        def run() -> None:
            try:
                saved = write_state(
                    folder, step, state.result, keep, self.exchange, checkpoint_id
                )
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
