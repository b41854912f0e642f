"""Gives torch's asynchronous checkpoints a process group of their own.

``torch.distributed.checkpoint.async_save`` runs collectives in a background thread, on
the group that the training uses. If the script makes collectives before the save has
ended, the two threads' calls come in another order on each rank: with Gloo the program
aborts or waits for ever, with ours it ends in CallMismatch. So the thread gets a group
of the same ranks, formed once. Saves on one group follow one another.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import wraps
from types import ModuleType
from typing import Any

import torch.distributed as dist

MODULE = "torch.distributed.checkpoint._async_thread_executor"
"""Imported only by programs that use checkpoints; importing it takes a second."""
DESCRIPTION = "ringleader: asynchronous checkpoints"


def install(is_ours: Callable[[Any], bool]) -> None:
    """Patch torch's executor, now or when it is imported.

    ``is_ours`` tells whether a process group, or None for the default one, is ours.
    """

    def patch(module: ModuleType) -> None:
        executor = module._ThreadBasedAsyncCheckpointExecutor
        executor.execute_save = _with_own_group(executor.execute_save, is_ours)

    if MODULE in sys.modules:
        patch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _AfterImport(patch))


class _AfterImport:
    """Import hook that calls ``then`` with the module once it is imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The module's own spec, whose loader also calls ``then``."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _with_own_group(
    execute_save: Callable[..., Future[Any]], is_ours: Callable[[Any], bool]
) -> Callable[..., Future[Any]]:
    saves: dict[str, tuple[Any, Future[Any]]] = {}
    """name of a group -> (its group for checkpoints, the last save)."""

    @wraps(execute_save)
    def execute(self: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        group: Any = kwargs.get("process_group")
        if kwargs.get("no_dist") or not is_ours(group):
            return execute_save(self, *args, **kwargs)
        group = group or dist.group.WORLD
        own, last = saves.get(group.group_name, (None, None))
        if last is not None:
            wait([last])
        if own is None or own not in dist.distributed_c10d._world.pg_map:
            own = new_group_like(group, backend=dist.get_backend(group))
        kwargs["process_group"] = own
        save = execute_save(self, *args, **kwargs)
        saves[group.group_name] = own, save
        return save

    return execute


def new_group_like(
    group: dist.ProcessGroup, backend: str | None = None, description: str = DESCRIPTION
) -> Any:
    """Form a group of the ranks of ``group``, for our threads; all of them call it.

    torch names a group that only some ranks form after the number of groups that a rank
    is in, and ranks that are in different numbers of groups never meet. So a group of
    all ranks is formed by all: torch then counts calls, which are equal.
    """
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(
        ranks,
        backend=backend,
        use_local_synchronization=len(ranks) < dist.get_world_size(),
        group_desc=description,
    )
