"""``async_save``: all ranks save in the background while training goes on.

The background thread has a process group of its own, so its collectives do not mix
with those of the training.
"""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future

import torch.distributed as dist
from torch import nn

from ringleader.backend.async_checkpoints import new_group_like
from ringleader.checkpoint.background_save import BackgroundSaver
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.save import KEEP, Saved
from ringleader.checkpoint.training_state import Optimizers, State, collect


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
        collected = collect(model, optimizer, others, saver.exchange.rank)
        state.set_result(saver.copied(collected))
    except Exception as exc:  # noqa: BLE001  # raised in the background, on all ranks
        state.set_exception(exc)
    return saver.start(folder, step, state, keep)


_alone: list[BackgroundSaver] = []
_savers: weakref.WeakKeyDictionary[dist.ProcessGroup, BackgroundSaver] = (
    weakref.WeakKeyDictionary()
)


def _saver_of(group: dist.ProcessGroup | None) -> BackgroundSaver:
    """Return the saver of a group; made once, because it has buffers and a group."""
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        if not _alone:
            _alone.append(BackgroundSaver(ByteExchange(None)))
        return _alone[0]
    if group not in _savers or not _is_usable(_savers[group]):
        _savers[group] = BackgroundSaver(ByteExchange(new_group_like(group)))
    return _savers[group]


def _is_usable(saver: BackgroundSaver) -> bool:
    """Return whether its group was not destroyed; programs destroy all at once."""
    group = saver.exchange.group
    assert isinstance(group, dist.ProcessGroup)
    try:
        dist.get_backend(group)
    except ValueError:
        return False
    return True
