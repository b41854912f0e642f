"""sync_module_states: different layouts are reported, equal ones get one state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ringleader.errors import CallMismatch
from ringleader.groups.group import Group
from ringleader.parallel.sync_module_states import difference, sync_module_states
from ringleader.testing import run_world


def test_all_ranks_start_with_the_values_of_rank_0() -> None:
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(3)]
    wanted = [value.clone() for value in models[0].state_dict().values()]
    assert not torch.equal(models[1].state_dict()["0.weight"], wanted[0])

    run_world(3, lambda group: sync_module_states(models[group.rank], group))
    for model in models:
        values = model.state_dict().values()
        assert all(torch.equal(a, b) for a, b in zip(values, wanted, strict=True))


@pytest.mark.parametrize("odd", [0, 2])
def test_another_layout_is_named_on_every_rank(odd: int) -> None:
    def work(group: Group) -> str:
        model = nn.Linear(3, 5 if group.rank == odd else 4)
        with pytest.raises(CallMismatch) as caught:
            sync_module_states(model, group)
        return str(caught.value)

    texts = run_world(3, work)
    named = texts[1] if odd == 0 else texts[2]
    assert "weight" in named
    assert "[4, 3]" in named
    assert "[5, 3]" in named
    if odd == 2:
        assert all(text.startswith("rank 2") for text in texts[:2])


def test_parameters_in_another_order_are_refused_and_not_mixed() -> None:
    """ZF-4: ranks that walk a dict in their own order add up other tensors.

    Names and shapes are equal, so only the order tells. Gradients that are named are
    averaged in any order (tests/integration/compression/test_compression.py).
    """

    def work(group: Group) -> str:
        names = ["a", "b", "c"]
        names = names[group.rank :] + names[: group.rank]
        model = nn.ParameterDict()
        for name in names:
            model.register_parameter(name, nn.Parameter(torch.ones(2)))
        with pytest.raises(CallMismatch) as caught:
            sync_module_states(model, group)
        return str(caught.value)

    texts = run_world(2, work)
    assert texts[0].startswith("rank 1: has another model than this rank")
    assert "rank 0: has another model: 'b: [2] float32' here is 'a: [2]" in texts[1]


def test_the_first_difference_is_named() -> None:
    assert difference(["a: [1]"], ["a: [1]", "b: [2]"]) == "'b: [2]' exists only there"
    assert difference(["a: [1]", "b: [2]"], []) == "'a: [1]' exists only here"
