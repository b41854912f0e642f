"""torch's questions about backends are answered truthfully, also for device maps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ringleader.backend import device_backend, device_map
from ringleader.backend.process_group import RingleaderGroup
from ringleader.errors import ConfigError

MIXED = "cpu:ringleader,cuda:gloo"


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def world(backend: str) -> Any:  # noqa: ANN401
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


@pytest.mark.parametrize(
    ("backend", "is_available"),
    [
        ("ringleader", True),
        ("Ringleader", True),
        ("cpu:ringleader", True),
        ("cpu:gloo,cuda:ringleader", True),
        ("cpu:ringleader,mps:ringleader", True),
        ("ringleaders", False),
    ],
)
def test_torch_knows_whether_we_are_available(backend: str, is_available: bool) -> None:
    assert dist.is_backend_available(backend) is is_available


def test_torch_lists_us_with_our_devices_and_not_as_a_default() -> None:
    assert "ringleader" in dist.Backend.backend_list
    assert dist.Backend("RINGLEADER") == "ringleader"
    assert dist.Backend.backend_capability["ringleader"] == ["cpu", "cuda", "mps"]
    assert dist.get_default_backend_for_device("cpu") == "gloo"


@pytest.mark.parametrize(
    ("asked", "is_mixed"),
    [
        ("ringleader", False),
        ("cpu:ringleader", False),
        ("cpu:ringleader,cuda:ringleader", False),
        ("cpu:gloo,cuda:nccl", False),
        ("cpu:gloo,cuda:ringleader", True),
        (MIXED, True),
        ("undefined", False),
    ],
)
def test_a_map_with_another_backend_is_mixed(asked: str, is_mixed: bool) -> None:
    assert device_map.is_mixed(asked) is is_mixed


@pytest.mark.parametrize("backend", ["ringleader", "RINGLEADER", "cpu:ringleader"])
def test_a_group_that_is_ours_says_so(backend: str) -> None:
    group = world(backend)
    assert type(group) is RingleaderGroup
    assert dist.get_backend() == backend.lower()
    assert "gloo" not in dist.get_backend_config()
    assert group.name() == "ringleader"
    beside = dist.new_group([0], backend="gloo")
    assert dist.get_backend(beside) == "gloo"
    ours = dist.new_group([0], backend="ringleader")
    assert type(ours) is RingleaderGroup


def test_a_group_of_ours_in_a_world_of_gloo() -> None:
    world("gloo")
    ours = dist.new_group([0], backend="ringleader")
    assert type(ours) is RingleaderGroup
    assert dist.get_backend(ours) == "ringleader"


@pytest.mark.skipif(not device_backend.can_subclass(), reason="needs torch 2.14")
@pytest.mark.parametrize("asked", [MIXED, f"{MIXED},mps:ringleader"])
def test_each_device_gets_the_backend_of_the_map(asked: str) -> None:
    group = world(asked)
    told = {d.type: group._get_backend(d).name() for d in group._device_types}
    assert told == dict(pair.split(":") for pair in asked.split(","))
    assert dist.get_backend_config() == asked
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]
    own: Any = group._get_backend(torch.device("cpu"))
    assert own._get_sequence_number_for_group() == 1
    assert own.options.backend == "ringleader"
    with pytest.raises(ConfigError, match="use new_group"):
        own.split(None, [0], None)


@pytest.mark.skipif(device_backend.can_subclass(), reason="this torch mixes backends")
def test_a_torch_that_cannot_mix_gives_us_every_device_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_map, "_said", set())
    with caplog.at_level(logging.WARNING):
        group = world("cpu:gloo,cuda:ringleader")
        dist.new_group([0])
    assert type(group) is RingleaderGroup
    assert dist.get_backend_config() == "cpu:ringleader,cuda:ringleader"
    (record,) = caplog.records
    assert "cpu:gloo,cuda:ringleader: this torch cannot mix" in record.getMessage()


def test_splitting_is_refused_and_new_groups_work() -> None:
    group = world("ringleader")
    assert group._get_backend(torch.device("cpu")).supports_splitting is False
    with pytest.raises(RuntimeError, match="split"):
        dist.split_group(split_ranks=[[0]])
    assert type(dist.new_group([0])) is RingleaderGroup
