"""A save in the background has one copy of the state, however many saves there are."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ringleader import checkpoint
from ringleader.checkpoint import background_save
from ringleader.checkpoint.save import Saved


class SlowDisk:
    """Stands in for the writing of files: keeps the states, and waits to be let go."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.may_go = threading.Event()
        self.saw: list[float] = []

    def write(self, folder: object, step: int, state: Any, *_: object) -> Saved:  # noqa: ANN401
        self.states.append(state())
        assert self.may_go.wait(120)
        self.saw.append(float(tensors(self.states[-1])[0].sum()))
        return Saved(step, str(folder), 0)


def tensors(state: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    made = SlowDisk()
    module = sys.modules["ringleader.checkpoint.async_save"]  # not the function
    monkeypatch.setattr(background_save, "write_state", made.write)
    monkeypatch.setattr(module, "_alone", [])
    return made


def test_the_next_save_waits_and_copies_into_the_same_buffers(
    disk: SlowDisk, tmp_path: Path
) -> None:
    """FT-13: the state of the first save stays as it was while it is written."""
    model = nn.Linear(7, 5)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        model.weight.fill_(1.0)
    first = checkpoint.async_save(tmp_path, 1, model, optimizer)
    with torch.no_grad():
        model.weight.fill_(2.0)
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(checkpoint.async_save, tmp_path, 2, model, optimizer)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.1)  # it waits for the first
        assert not first.done()
        disk.may_go.set()
        assert second.result(120).result(120).step == 2
    assert disk.saw == [35.0, 70.0]
    checkpoint.async_save(tmp_path, 3, model, optimizer).result(120)
    one, *more = [tensors(state) for state in disk.states]
    held = {t.untyped_storage().data_ptr() for each in more for t in each}
    assert held == {t.untyped_storage().data_ptr() for t in one}
    live = [*model.parameters(), *tree_leaves(list(optimizer.state.values()))]
    assert sum(t.nbytes for t in one) == sum(t.nbytes for t in live)
    assert held.isdisjoint(t.untyped_storage().data_ptr() for t in live)
