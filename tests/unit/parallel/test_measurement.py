"""The layers of a real model, their sizes and times, in one process."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.layers import check_layers, find_layers
from ringleader.parallel.measurement.measure import measure
from ringleader.parallel.measurement.optimizer_size import optimizer_ratio
from ringleader.parallel.measurement.sample import Sample
from ringleader.parallel.pipeline.stage_module import drop_layers

ROWS, WIDE = 6, 10


class Chain(nn.Module):
    """Named layers, a list and a nested nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDE, WIDE)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDE, WIDE), nn.Dropout(0.5)) for _ in range(2)
        )
        self.norm = nn.BatchNorm1d(WIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.norm(x)
        return result


def sample(rows: int = ROWS) -> Sample:
    return Sample(
        inputs=(torch.randn(rows, WIDE),),
        target=torch.randn(rows, WIDE),
        rows=rows,
        device=torch.device("cpu"),
        loss=F.mse_loss,
        precision=nullcontext,
    )


def test_lists_and_sequences_are_taken_apart() -> None:
    names = [layer.name for layer in find_layers(Chain())]
    inner = ["blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"]
    assert names == ["enter", *inner, "norm"]
    twice = nn.Linear(3, 3)
    assert len(find_layers(nn.Sequential(twice, nn.ReLU(), twice))) == 3


def test_named_layers_must_hold_every_parameter() -> None:
    model = Chain()
    named: list[str | nn.Module] = ["enter", "blocks.0", model.blocks[1], "norm"]
    assert [layer.name for layer in find_layers(model, named)] == [
        "enter",
        "blocks.0",
        "blocks.1",
        "norm",
    ]
    with pytest.raises(ConfigError, match=r"blocks\.1\.0\.weight is in no layer"):
        find_layers(model, ["enter", "blocks.0", "norm"])


def test_layers_in_a_wrong_order_are_refused() -> None:
    model = Chain()
    check_layers(model, find_layers(model), sample())
    with pytest.raises(ConfigError, match="something else than its layers"):
        check_layers(model, find_layers(model)[::-1], sample())


def test_measuring_leaves_no_trace() -> None:
    model = Chain()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = sample()
    state = torch.get_rng_state()
    measured = measure(model, find_layers(model), batch, 2.0, seconds=0.001)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(seconds > 0 for seconds in measured.seconds)


def test_the_bytes_of_a_layer_are_those_of_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(WIDE, 7), nn.Tanh(), nn.Linear(7, WIDE))
    model[2].weight.requires_grad_(False)
    first, tanh, last = measure(
        model, find_layers(model), sample(), 2.0, seconds=0.0
    ).layers
    assert first.parameter_bytes == first.gradient_bytes == 4 * (WIDE * 7 + 7)
    assert first.optimizer_bytes == 2 * first.gradient_bytes
    assert last.parameter_bytes == 4 * (WIDE * 7 + WIDE)
    assert last.gradient_bytes == 4 * WIDE, "the weight is frozen"
    # A linear layer keeps its input, tanh its output. The last one has a frozen weight
    # and needs no input; the loss keeps output and target.
    assert first.activation_bytes == 4 * ROWS * WIDE
    assert tanh.activation_bytes == 4 * ROWS * 7
    assert last.activation_bytes == 2 * 4 * ROWS * WIDE
    assert (first.input_bytes, first.output_bytes) == (4 * ROWS * WIDE, 4 * ROWS * 7)


def test_what_cannot_be_sent_is_refused() -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(dim=0)

    model = nn.Sequential(nn.Linear(WIDE, WIDE), Sums(), nn.Linear(WIDE, WIDE))
    with pytest.raises(ConfigError, match="must be the 6 samples"):
        measure(model, find_layers(model), sample(), 0.0, seconds=0.0)


@pytest.mark.slow  # torch.optim imports Dynamo
@pytest.mark.parametrize(
    ("optimizer", "ratio"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0.0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1.0),
        (lambda p: torch.optim.AdamW(p), 2.0),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3.0),
    ],
)
def test_the_state_of_an_optimizer_is_measured(
    optimizer: type[torch.optim.Optimizer], ratio: float
) -> None:
    assert optimizer_ratio(optimizer) == pytest.approx(ratio, abs=0.01)


def test_a_shared_parameter_keeps_both_names_without_its_layer() -> None:
    model = Chain()
    model.blocks[1][0].weight = model.enter.weight  # type: ignore[index]
    layers = find_layers(model)
    drop_layers(model, layers, keep={0})
    assert list(model.state_dict()) == [
        "enter.weight",
        "enter.bias",
        "blocks.1.0.weight",
    ]
    with pytest.raises(ConfigError, match=r"blocks\.0\.0 is on another rank"):
        model(torch.ones(2, WIDE))
