"""The kernels for methods that torch's trampoline does not forward."""

from __future__ import annotations

import time

import pytest
import torch
from torch._C._distributed_c10d import ProcessGroup

from ringleader.backend import dispatcher_kernels
from ringleader.testing.threaded_world import run_threads


def test_groups_formed_at_once_install_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch warns about a kernel that replaces another one."""
    made: list[str] = []

    class Slow:
        def __init__(self, *_: str) -> None:
            time.sleep(0.05)

        def impl(self, name: str, *_: object, **__: object) -> None:
            made.append(name)

    monkeypatch.setattr(dispatcher_kernels, "_library", None)
    monkeypatch.setattr(dispatcher_kernels, "_kind", dispatcher_kernels._kind)
    monkeypatch.setattr(torch.library, "Library", Slow)
    run_threads([lambda: dispatcher_kernels.install(ProcessGroup)] * 4)
    assert made == ["_allgather_base_"]
