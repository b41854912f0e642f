"""Helper threads rest when another program uses their cores."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from ringleader.engine.shared_memory import helpers as module
from ringleader.engine.shared_memory.helpers import HELPED_BYTES, Helpers
from ringleader.transport import crowded_cores
from ringleader.transport.crowded_cores import LATE_S


class World:
    """A clock that moves when it is read, and the numbers of threads that were set."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.step_s = 0.0
        self.threads: list[int] = []
        self.helpers = Helpers(2, self.threads.append)

    def now_s(self) -> float:
        self.time_s += self.step_s
        return self.time_s

    def copy(self, *, late: bool) -> None:
        """Make two copies in one call."""
        source = np.ones(HELPED_BYTES, np.uint8)
        target = np.zeros_like(source)

        def both() -> None:
            self.step_s = 2 * LATE_S if late else 0.0
            self.helpers.copy(target, source)
            self.helpers.copy(target, source)
            self.step_s = 0.0

        self.helpers.run(both)
        assert target.all()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(module, "now_s", made.now_s)
    monkeypatch.setattr(crowded_cores, "now_s", made.now_s)
    return made


def test_a_late_operation_ends_the_help_in_its_call(world: World) -> None:
    world.copy(late=False)
    own = world.threads[-1]
    assert world.threads == [3, own]
    assert world.helpers.are_free()
    world.copy(late=True)
    assert world.threads[2:] == [3, 1, own], "the second copy was not alone"
    assert not world.helpers.are_free()
    world.time_s += 1.0
    assert world.helpers.are_free()


def test_a_copy_is_not_late_because_it_is_large(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = torch.Tensor.copy_

    def timed(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        world.time_s += target.nbytes / 10e9
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", timed)
    source = np.arange(8_000_001, dtype=np.int32)
    target = np.zeros_like(source)
    world.helpers.run(lambda: world.helpers.copy(target, source))
    assert (target == source).all()
    assert world.time_s > 1000.0 + LATE_S
    assert world.helpers.are_free()


def test_the_log_says_once_that_they_rest(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringleader")
    world.copy(late=True)
    assert not caplog.records
    for _ in range(15):
        while not world.helpers.are_free():
            world.time_s += 0.01
        world.copy(late=True)
    assert len(caplog.records) == 1
    assert "RINGLEADER_HELPER_THREADS=0" in caplog.text
