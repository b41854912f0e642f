"""The outer step beside torch and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringleader.errors import ConfigError
from ringleader.rounds.outer_step import NESTEROV, PLAIN, OuterStep, Vector

SIZE = 1009


def numbers(seed: int) -> Vector:
    chance = np.random.default_rng(seed)
    return chance.standard_normal(SIZE).astype(np.float32)


@pytest.mark.parametrize("outer", [NESTEROV, PLAIN, OuterStep(0.4, 0.5)])
def test_it_is_torchs_sgd_with_nesterov_momentum(outer: OuterStep) -> None:
    parameters, velocity = numbers(0), np.zeros(SIZE, np.float32)
    exact = torch.from_numpy(parameters.astype(np.float64)).requires_grad_()
    sgd = torch.optim.SGD(
        [exact],
        lr=outer.rate,
        momentum=outer.momentum,
        nesterov=outer.has_momentum,
    )
    for turn in range(1, 30):
        gradient = numbers(turn)
        outer.apply(parameters, velocity, gradient)
        exact.grad = torch.from_numpy(gradient.astype(np.float64))
        sgd.step()
    assert np.allclose(parameters, exact.detach().numpy(), rtol=1e-5, atol=1e-4)


def test_plain_has_no_state() -> None:
    parameters = numbers(0)
    before, gradient, nothing = parameters.copy(), numbers(1), np.zeros(0, np.float32)
    PLAIN.apply(parameters, nothing, gradient)
    assert np.array_equal(parameters, before - gradient)


@pytest.mark.parametrize(("rate", "momentum"), [(0, 0.9), (0.7, 1.0), (11, 0)])
def test_impossible_settings_are_refused(rate: float, momentum: float) -> None:
    with pytest.raises(ConfigError, match="outer step"):
        OuterStep(rate, momentum)
