"""Plans travel between ranks without pickle, and come back as they were."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.planner import SavePlan

from ringleader.checkpoint import save_messages as messages
from ringleader.checkpoint.planners import SavePlanner
from ringleader.errors import ConfigError


def plan_of(state: dict[str, object]) -> SavePlan:
    planner = SavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan()


def test_a_plan_comes_back() -> None:
    plan = plan_of({"a": {"w": torch.ones(3, 0, 5, dtype=torch.bfloat16)}, "n": [1]})
    back = messages.decode_plan(messages.encode_plan(plan))
    assert [item.index for item in back.items] == [item.index for item in plan.items]
    assert [item.type for item in back.items] == [item.type for item in plan.items]
    sizes = [(i.tensor_data and i.tensor_data.size) for i in back.items]
    assert sizes == [(i.tensor_data and i.tensor_data.size) for i in plan.items]
    assert back.planner_data == plan.planner_data


def test_each_rank_gets_its_items_and_no_others() -> None:
    plans = [plan_of({"a": torch.ones(2), "b": torch.ones(3)}) for _ in range(2)]
    chosen = [SavePlan(plans[0].items[1:]), SavePlan(plans[1].items[:1])]
    data = messages.encode_assignment("ab", plans, chosen)
    for rank, name in enumerate("ba"):
        found, mine = messages.decode_assignment(data, rank, plans[rank])
        assert (found, [item.index.fqn for item in mine.items]) == ("ab", [name])
    with pytest.raises(ConfigError, match="no items to rank 2"):
        messages.decode_assignment(data, 2, plans[0])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",  # pickle
        msgspec.msgpack.encode([[["w", "TENSOR", [0], [-1], [2], "F32"]], {}]),
        msgspec.msgpack.encode([[["w", "TENSOR", [0], [1], [2], "other"]], {}]),
        msgspec.msgpack.encode([[["w", "other"]], {}]),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"not a plan|other bytes than"):
        messages.decode_plan(data)
