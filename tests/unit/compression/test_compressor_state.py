"""The state between steps; a failed step changes nothing."""

from __future__ import annotations

import pytest
import torch

from ringleader.compression.compressor_state import (
    RESIDUAL,
    CompressorState,
    ParameterSlice,
)
from ringleader.errors import ConfigError

SLICES = [ParameterSlice("a", 0, (2, 3)), ParameterSlice("b", 6, ())]


def values(state: CompressorState, name: str = "a") -> list[float]:
    tensor = state.get(RESIDUAL, name)
    return [] if tensor is None else tensor.tolist()


def stage(state: CompressorState, value: float) -> None:
    state.stage_vector(RESIDUAL, SLICES, torch.empty(7)).fill_(value)


def step(state: CompressorState, value: float) -> None:
    state.begin()
    stage(state, value)
    state.commit()


def test_a_slice_is_a_part_of_a_vector() -> None:
    assert [param.numel for param in SLICES] == [6, 1]
    assert torch.arange(7)[SLICES[1].span].tolist() == [6]


def test_what_was_staged_is_kept_when_it_is_committed() -> None:
    state = CompressorState()
    state.begin()
    stage(state, 1.0)
    assert state.step == 0
    assert state.tensors() == {}
    state.commit()
    assert state.step == 1
    assert values(state) == [1.0] * 6
    assert values(state, "b") == [1.0]


@pytest.mark.parametrize("how", [CompressorState.abort, CompressorState.begin])
def test_a_failed_step_leaves_no_trace(how: object) -> None:
    state = CompressorState()
    step(state, 1.0)
    state.begin()
    stage(state, 2.0)
    state.stage("basis", "a", torch.ones(2))
    assert callable(how)
    how(state)
    assert values(state) == [1.0] * 6
    assert state.get("basis", "a") is None
    assert state.step == 1
    step(state, 3.0)
    assert values(state) == [3.0] * 6
    assert state.step == 2


def test_a_step_sees_what_it_staged() -> None:
    state = CompressorState()
    step(state, 1.0)
    state.begin()
    stage(state, 2.0)
    assert values(state) == [2.0] * 6


def test_what_is_kept_is_never_written_to() -> None:
    """Two vectors alternate; a step never writes to the kept one."""
    state = CompressorState()
    step(state, 1.0)
    places = set()
    for value in (2.0, 3.0, 4.0):
        before = state.get(RESIDUAL, "a")
        assert before is not None
        new_residual = before.clone()
        state.begin()
        stage(state, value)
        assert torch.equal(before, new_residual)
        state.commit()
        places.add(before.data_ptr())
    assert len(places) == 2


def test_what_a_step_staged_is_not_written_to_by_it_again() -> None:
    """The same parameters twice in one step: the second uses the first residual."""
    state = CompressorState()
    step(state, 1.0)
    state.begin()
    stage(state, 2.0)
    before = state.get(RESIDUAL, "a")
    assert before is not None
    stage(state, 3.0)
    assert before.tolist() == [2.0] * 6
    assert values(state) == [3.0] * 6
    state.commit()
    assert values(state) == [3.0] * 6


def test_other_buckets_of_the_same_parameters_keep_their_values() -> None:
    """DDP rebuilds its buckets after the first step."""
    state = CompressorState()
    step(state, 1.0)
    state.begin()
    room = state.stage_vector(RESIDUAL, [ParameterSlice("b", 0, ())], torch.empty(1))
    room.fill_(5.0)
    state.commit()
    assert values(state) == [1.0] * 6
    assert values(state, "b") == [5.0]
    step(state, 7.0)
    assert values(state) == [7.0] * 6


def test_state_comes_back_as_copies() -> None:
    state, other = CompressorState(), CompressorState()
    step(state, 1.0)
    saved = state.tensors()
    assert sorted(saved) == ["residual.a", "residual.b"]
    other.load(saved, 5)
    saved["residual.a"].zero_()
    assert values(other) == [1.0] * 6
    assert other.step == 5
    step(other, 2.0)
    assert values(other) == [2.0] * 6


def test_names_may_have_dots() -> None:
    state = CompressorState()
    state.load({"residual.layer.0.weight": torch.ones(2)}, 1)
    assert values(state, "layer.0.weight") == [1.0, 1.0]


def test_what_is_no_state_is_refused() -> None:
    state = CompressorState()
    step(state, 1.0)
    with pytest.raises(ConfigError, match="'optimizer' does not belong"):
        state.load({"optimizer": torch.ones(1)}, 0)
    assert values(state) == [1.0] * 6
