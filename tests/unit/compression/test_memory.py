"""What is kept between steps, and what a step that fails leaves: nothing."""

from __future__ import annotations

import pytest
import torch

from ringleader.compression.memory import RESIDUAL, Memory, Slot
from ringleader.errors import ConfigError

SLOTS = [Slot("a", 0, (2, 3)), Slot("b", 6, ())]


def values(memory: Memory, name: str = "a") -> list[float]:
    tensor = memory.get(RESIDUAL, name)
    return [] if tensor is None else tensor.tolist()


def stage(memory: Memory, value: float) -> None:
    memory.room(RESIDUAL, SLOTS, torch.empty(7)).fill_(value)


def step(memory: Memory, value: float) -> None:
    memory.begin()
    stage(memory, value)
    memory.commit()


def test_a_slot_is_a_run_of_a_vector() -> None:
    assert [slot.count for slot in SLOTS] == [6, 1]
    assert torch.arange(7)[SLOTS[1].run].tolist() == [6]


def test_what_was_staged_is_kept_when_it_is_committed() -> None:
    memory = Memory()
    memory.begin()
    stage(memory, 1.0)
    assert memory.step == 0
    assert memory.tensors() == {}
    memory.commit()
    assert memory.step == 1
    assert values(memory) == [1.0] * 6
    assert values(memory, "b") == [1.0]


@pytest.mark.parametrize("how", [Memory.abort, Memory.begin])
def test_a_failed_step_leaves_no_trace(how: object) -> None:
    memory = Memory()
    step(memory, 1.0)
    memory.begin()
    stage(memory, 2.0)
    memory.put("basis", "a", torch.ones(2))
    assert callable(how)
    how(memory)
    assert values(memory) == [1.0] * 6
    assert memory.get("basis", "a") is None
    assert memory.step == 1
    step(memory, 3.0)
    assert values(memory) == [3.0] * 6
    assert memory.step == 2


def test_a_step_sees_what_it_staged() -> None:
    memory = Memory()
    step(memory, 1.0)
    memory.begin()
    stage(memory, 2.0)
    assert values(memory) == [2.0] * 6


def test_what_is_kept_is_never_written_to() -> None:
    """A room is one of two, and the other than the kept one."""
    memory = Memory()
    step(memory, 1.0)
    places = set()
    for value in (2.0, 3.0, 4.0):
        before = memory.get(RESIDUAL, "a")
        assert before is not None
        held = before.clone()
        memory.begin()
        stage(memory, value)
        assert torch.equal(before, held)
        memory.commit()
        places.add(before.data_ptr())
    assert len(places) == 2


def test_what_a_step_staged_is_not_written_to_by_it_again() -> None:
    """The same parameters twice in one step: the second adds to what the first left."""
    memory = Memory()
    step(memory, 1.0)
    memory.begin()
    stage(memory, 2.0)
    before = memory.get(RESIDUAL, "a")
    assert before is not None
    stage(memory, 3.0)
    assert before.tolist() == [2.0] * 6
    assert values(memory) == [3.0] * 6
    memory.commit()
    assert values(memory) == [3.0] * 6


def test_other_buckets_of_the_same_parameters_keep_their_values() -> None:
    """DDP makes new buckets after the first step."""
    memory = Memory()
    step(memory, 1.0)
    memory.begin()
    room = memory.room(RESIDUAL, [Slot("b", 0, ())], torch.empty(1))
    room.fill_(5.0)
    memory.commit()
    assert values(memory) == [1.0] * 6
    assert values(memory, "b") == [5.0]
    step(memory, 7.0)
    assert values(memory) == [7.0] * 6


def test_state_comes_back_as_copies() -> None:
    memory, other = Memory(), Memory()
    step(memory, 1.0)
    state = memory.tensors()
    assert sorted(state) == ["residual.a", "residual.b"]
    other.load(state, 5)
    state["residual.a"].zero_()
    assert values(other) == [1.0] * 6
    assert other.step == 5
    step(other, 2.0)
    assert values(other) == [2.0] * 6


def test_names_may_have_dots() -> None:
    memory = Memory()
    memory.load({"residual.layer.0.weight": torch.ones(2)}, 1)
    assert values(memory, "layer.0.weight") == [1.0, 1.0]


def test_what_is_no_state_is_refused() -> None:
    memory = Memory()
    step(memory, 1.0)
    with pytest.raises(ConfigError, match="'optimizer' is no state"):
        memory.load({"optimizer": torch.ones(1)}, 0)
    assert values(memory) == [1.0] * 6
