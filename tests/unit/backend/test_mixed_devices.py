"""Groups in which some rank has an accelerator: CPU tensors use the same chunks."""

from __future__ import annotations

import pytest
import torch

from ringleader.backend import device_exchange, process_group, rank_facts, staging
from ringleader.backend.process_group import RingleaderGroup
from ringleader.backend.work import BackendWork
from ringleader.errors import ConfigError
from ringleader.groups.group import handle_of
from ringleader.testing.threaded_world import run_threads
from ringleader.transport.shm_segment import Geometry
from tests.kit.torch_groups import formed_groups

COUNT = 5000
"""Several chunks of 2 KiB."""


@pytest.fixture(autouse=True, params=["long", "short"])
def a_machine_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Ranks agree on the path of long calls; here also of short ones."""
    if request.param == "short":
        monkeypatch.setattr(device_exchange, "MIN_BYTES", 0)
    devices = [torch.device("cpu"), torch.device("cuda")]
    for module in (process_group, rank_facts):
        monkeypatch.setattr(module, "available_devices", lambda: devices)
    monkeypatch.setattr(staging, "SLOT_BYTES", 2048)


def values(rank: int, count: int = COUNT) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float64) * (rank + 1)


def all_reduce(group: RingleaderGroup, tensor: torch.Tensor) -> None:
    finish(group.allreduce([tensor]))


def finish(work: BackendWork | None) -> None:
    assert work is not None, "asynchronous, unless something else is asked for"
    work.wait()


def test_every_collective_has_the_right_values() -> None:
    total = values(0) + values(1)

    def live(group: RingleaderGroup) -> None:
        rank = group.group.rank
        mine = values(rank)
        all_reduce(group, mine)
        assert torch.equal(mine, total)
        several = [values(rank), values(rank, 3)]
        group.allreduce_coalesced(several).wait()
        assert torch.equal(several[0], total)
        assert torch.equal(several[1], total[:3])
        shared = values(rank)
        finish(group.broadcast(shared, 1))
        assert torch.equal(shared, values(1))
        out = torch.empty(2 * COUNT, dtype=torch.float64)
        finish(group.all_gather_single(out, values(rank)))
        assert torch.equal(out, torch.cat([values(0), values(1)]))
        part = torch.empty(COUNT, dtype=torch.float64)
        finish(group.reduce_scatter_single(part, values(rank, 2 * COUNT)))
        whole = values(0, 2 * COUNT) + values(1, 2 * COUNT)
        assert torch.equal(part, whole[rank * COUNT : (rank + 1) * COUNT])
        lists = [torch.empty(COUNT, dtype=torch.float64) for _ in range(2)]
        finish(group.allgather([lists], [values(rank)]))
        assert torch.equal(torch.cat(lists), torch.cat([values(0), values(1)]))

    with formed_groups(2) as groups:
        run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


def test_tensors_with_gaps_are_changed_in_place() -> None:
    whole = values(0, 2 * COUNT) + values(1, 2 * COUNT)

    def live(group: RingleaderGroup) -> None:
        rank = group.group.rank
        tensor = values(rank, 2 * COUNT)[::2]
        all_reduce(group, tensor)
        assert torch.equal(tensor, whole[::2])
        tensor = values(rank, 2 * COUNT)[::2]
        finish(group.reduce([tensor], root=1))
        assert rank != 1 or torch.equal(tensor, whole[::2])

    with formed_groups(2) as groups:
        run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


def test_large_tensors_really_are_cut_unless_all_are_known_to_be_on_the_cpu() -> None:
    def live(group: RingleaderGroup) -> str:
        all_reduce(group, values(group.group.rank))
        return group.group.progress().call

    with formed_groups(2) as groups:
        calls = run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]
    are_known = not device_exchange.MIN_BYTES
    for call in calls:
        assert (f"all_reduce({COUNT} " in call) == are_known


def test_a_relay_is_not_cut() -> None:
    """An accelerator takes part without staging, with larger parts."""
    count = 50_000

    def live(group: RingleaderGroup) -> str:
        tensor = values(group.group.rank, count)
        all_reduce(group, tensor)
        assert torch.equal(tensor, values(0, count) + values(1, count))
        relay = handle_of(group.group).relay(tensor.nbytes)
        assert relay is not None
        assert relay.part_bytes == Geometry(2).device_part_bytes
        return group.group.progress().call

    with formed_groups(2) as groups:
        calls = run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]
    for call in calls:
        assert f"all_reduce({count} " in call


def test_a_list_must_have_one_tensor_per_rank() -> None:
    def live(group: RingleaderGroup) -> None:
        with pytest.raises(ConfigError, match="1 tensors for 2 ranks"):
            group.allgather([[torch.empty(6)]], [torch.ones(3)])
        with pytest.raises(ConfigError, match="1 tensors for 2 ranks"):
            group.reduce_scatter([torch.empty(3)], [[torch.ones(6)]])

    with formed_groups(2) as groups:
        run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]


@pytest.mark.parametrize("has_gpu", [False, True])
def test_coalesced_operations_have_one_handle(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    devices = [torch.device(name) for name in ["cpu"] + ["cuda"] * has_gpu]
    monkeypatch.setattr(rank_facts, "available_devices", lambda: devices)

    def live(group: RingleaderGroup) -> None:
        rank = group.group.rank
        outs = [torch.empty(2 * n, dtype=torch.float64) for n in (COUNT, 3)]
        ins = [values(rank, n) for n in (COUNT, 3)]
        future = group.all_gather_single_coalesced(outs, ins).get_future()
        given = future.wait()
        assert all(a is b for a, b in zip(given, outs, strict=True))
        for out, n in zip(outs, (COUNT, 3), strict=True):
            assert torch.equal(out, torch.cat([values(0, n), values(1, n)]))
        assert group.allreduce_coalesced([]).wait()

    with formed_groups(2) as groups:
        run_threads([lambda g=g: live(g) for g in groups])  # type: ignore[misc]
