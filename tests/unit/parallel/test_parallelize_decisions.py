"""What ``parallelize`` decides before it touches a model, as pure functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ringleader.errors import ConfigError
from ringleader.parallel.batch import Batch
from ringleader.parallel.batch_shares import BatchShares, shares_from
from ringleader.parallel.blocks import find_blocks
from ringleader.parallel.grid import Grid, check_hosts, divide, hybrid_sizes
from ringleader.parallel.layout_check import model_layout
from ringleader.parallel.loss_scale import GROWTH_STEPS, LossScale
from ringleader.parallel.options import Options, check
from ringleader.parallel.tensor_plan import keep_shared, make_plan, plan_of_model


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "zero3"}, "strategy is 'zero3'; choose one of: 'ddp'"),
        ({"strategy": "ddp", "shard": "grad"}, "shard= is an option of 'fsdp'"),
        ({"strategy": "fsdp", "tensor": 2}, "tensor= is an option of 'tensor'"),
        ({"strategy": "pipeline+fsdp", "blocks": []}, "blocks= is an option of 'fsdp'"),
        ({"strategy": "fsdp", "shard": "half"}, "shard is 'half'"),
        ({"strategy": "fsdp", "hosts": [[0]]}, "hosts= is for shard='hybrid'"),
        ({"strategy": "fsdp", "prefetch": -1}, "prefetch is -1; at least 0"),
        ({"strategy": "ddp", "microbatches": 0}, "microbatches is 0; at least 1"),
        ({"strategy": "ddp", "clip": 0.0}, "clip is 0.0"),
        ({"strategy": "ddp", "precision": "fp8"}, "precision is 'fp8'"),
    ],
)
def test_options_that_nobody_can_run_are_named(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check(Options(optimizer=torch.optim.SGD, **options))


def test_options_as_lines_are_the_same_in_every_process() -> None:
    """Functions and styles have addresses, which differ."""
    plan = {"up": "colwise", "down": object()}
    lines = Options(
        strategy="tensor", plan=plan, loss=torch.dot, optimizer=torch.optim.SGD
    ).lines()
    assert "plan: {up: 'colwise', down: object}" in lines
    assert not [line for line in lines if " at 0x" in line or "loss" in line]


def test_ranks_that_share_layers_are_neighbours_and_share_data() -> None:
    grid = Grid(5, tuple(range(8)), replicate=2, shard=2, tensor=2)
    assert [grid.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    staged = Grid(0, tuple(range(8)), stage=2, replicate=2, tensor=2)
    assert [staged.data_rank(rank) for rank in range(8)] == [0, 0, 1, 1] * 2
    assert [staged.stage_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    with pytest.raises(ConfigError, match=r"7 ranks cannot be divided into .* of 2"):
        divide(7, 2, "tensor groups")


@pytest.mark.parametrize(
    ("sizes", "tensor", "expected"),
    [
        ([2, 2], 1, (2, 2)),
        ([4, 2], 1, (3, 2)),  # the larger host holds two copies
        ([4, 4], 2, (2, 2)),
        ([3], 1, (1, 3)),
        ([3, 1], 1, "the hosts have 3, 1 ranks"),
        ([1, 1, 1], 1, "use shard='full'"),
        ([3, 3], 2, "no multiple of tensor=2"),
    ],
)
def test_copies_of_the_model_are_as_large_as_hosts_allow(
    sizes: list[int], tensor: int, expected: tuple[int, int] | str
) -> None:
    hosts = [[0] * size for size in sizes]
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            hybrid_sizes(hosts, tensor)
    else:
        assert hybrid_sizes(hosts, tensor) == expected


def test_every_rank_is_on_one_host() -> None:
    check_hosts([[2, 0], [1]], 3)
    for wrong in ([[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2, 3]]):
        with pytest.raises(ConfigError, match="ranks 0 to 2 must be in one list"):
            check_hosts(wrong, 3)


def test_a_batch_is_cut_into_exactly_the_micro_batches_asked_for() -> None:
    """All ranks run as many, because FSDP gathers parameters in each."""
    batch = Batch((torch.arange(4), 7), {"scale": torch.tensor(2.0)}, torch.ones(4, 2))
    parts = batch.split(3)
    assert [part.rows() for part in parts] == [2, 1, 1]
    assert torch.equal(torch.cat([part.inputs[0] for part in parts]), torch.arange(4))
    assert all(part.inputs[1] == 7 for part in parts)
    assert all(part.keywords["scale"] == 2.0 for part in parts)
    assert [part.rows() for part in Batch((torch.ones(1),)).split(2)] == [1, 0]
    with pytest.raises(ConfigError, match=r"got \[4\], \[3\]"):
        Batch((torch.ones(4),), target=torch.ones(3)).rows()
    with pytest.raises(ConfigError, match="no tensor with rows"):
        Batch((1, "a")).rows()


def test_batches_weigh_by_their_rows() -> None:
    flat = Grid(1, (0, 1, 2), replicate=3)
    shares = shares_from(flat, [[4, 0, 10], [0, 0, 11], [5, 0, 12]])
    assert shares == BatchShares(3.0, 11, is_even=False)
    square = Grid(3, (0, 1, 2, 3), shard=2, tensor=2)
    table = [[4, 0.5, 10], [4, 0.5, 11], [5, float("nan"), 12], [5, float("nan"), 13]]
    assert shares_from(square, table) == BatchShares(4.5, 12, is_even=False)
    table[3] = [5, 0.1, 13]
    with pytest.raises(ConfigError, match=r"ranks 2 and 3 .*data_rank \(1 of 2\)"):
        shares_from(square, table)


def test_the_loss_scale_halves_at_once_and_doubles_late() -> None:
    scale = LossScale(8.0)
    scale.overflowed()
    for _ in range(GROWTH_STEPS):
        assert scale.value == 4.0
        scale.succeeded()
    assert scale.value == 8.0
    for _ in range(9):
        scale.overflowed()
    assert scale.value == 1.0, "never below 1"


class Tied(nn.Module):
    """Two lists of blocks; an embedding and an output layer share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.first = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.second = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def test_blocks_are_the_elements_of_lists_that_share_nothing_outside() -> None:
    model = Tied()
    assert find_blocks(model) == [*model.first, model.second[0]]
    model.first[1].weight = model.head.weight
    model.second.append(model.first[0])
    assert find_blocks(model) == [model.second[0]]
    assert find_blocks(model, [nn.Sequential]) == []
    assert find_blocks(Tied(), []) == []


def test_a_layout_tells_frozen_and_shared_parameters() -> None:
    model = Tied()
    model.first[0].bias.requires_grad_(False)
    lines = model_layout(model)
    assert "first.0.bias: [4] float32 frozen" in lines
    assert lines[-1] == "head.weight: [10, 4] float32 shared with embed.weight"


def plan(model: nn.Module, size: int = 2, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    uneven = options.pop("uneven", True)
    return make_plan(model, size, options.get("given"), uneven).styles


def test_layers_are_recognized_by_their_names_and_neighbours() -> None:
    tied = plan(Tied())
    assert tied == {"embed": "embedding_rowwise", "head": "colwise_gather_output"}
    wide = nn.Sequential(nn.Linear(4, 7), nn.GELU(), nn.Dropout(), nn.Linear(7, 4))
    assert plan(wide) == {"0": "colwise", "3": "rowwise"}
    assert plan(wide, size=8) == {}, "fewer units than ranks"
    assert plan(wide, uneven=False) == {}
    apart = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    assert plan(apart) == {}, "a norm needs all units"
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert plan(layer) == {"linear1": "colwise", "linear2": "rowwise"}


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.n_head = heads
        for name in ("wq", "wk", "wv", "wo"):
            self.add_module(name, nn.Linear(8, 8))


def test_attention_is_sharded_by_whole_heads() -> None:
    expected = {"wq": "colwise", "wk": "colwise", "wv": "colwise", "wo": "rowwise"}
    assert plan(Attention(4)) == expected
    assert make_plan(Attention(4), 2, None, True).attentions == [""]
    assert plan(Attention(3)) == {}, "3 heads do not divide among 2 ranks"


class HuggingFace(nn.Module):
    """A model with a plan of its own, as transformers' have."""

    base_model_prefix = "model"
    config: SimpleNamespace
    _tp_plan: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"layers": nn.ModuleList([Attention(4)])})
        self.lm_head = nn.Linear(8, 10)


def test_a_model_brings_its_own_plan() -> None:
    model = HuggingFace()
    assert plan_of_model(model) == {}
    model.config = SimpleNamespace(base_model_tp_plan={"layers.*.wq": "colwise"})
    assert plan(model) == {"model.layers.0.wq": "colwise"}
    model._tp_plan = {"model.layers.*.wo": "rowwise", "lm_head": "colwise_rep"}
    own = {"model.layers.0.wo": "rowwise", "lm_head": "colwise_gather_output"}
    assert plan(model) == own
    assert plan(model, given={"lm_head": "rowwise"}) == {"lm_head": "rowwise"}


def test_modules_that_share_a_parameter_shard_it_alike() -> None:
    given = {"head": "colwise_gather_output"}
    assert plan(Tied(), given=given) == {**given, "embed": "embedding_rowwise"}
    rows = {"head": "rowwise", "first.*": "colwise"}
    assert plan(Tied(), given=rows) == {"first.0": "colwise", "first.1": "colwise"}
    assert keep_shared(Tied(), make_plan(nn.Linear(2, 2), 2, {}, True)).styles == {}
