"""RINGLEADER_DEFAULT: groups without a name, and Gloo's, are ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ringleader.backend import default_backend
from ringleader.backend.device import available_devices
from ringleader.backend.process_group import RingleaderGroup
from ringleader.errors import ConfigError
from ringleader.settings import DefaultBackend

pytestmark = pytest.mark.filterwarnings("ignore:.*barrier.*:UserWarning")


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(default_backend, "_said", set())
    monkeypatch.setenv("RINGLEADER_DEFAULT", "1")
    yield monkeypatch
    if dist.is_initialized():
        dist.destroy_process_group()


def world(backend: str | None, **options: Any) -> dist.ProcessGroup:  # noqa: ANN401
    store = HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1, **options)
    group = dist.group.WORLD
    assert group is not None
    return group


@pytest.mark.parametrize(
    ("asked", "is_ours"),
    [
        ("undefined", True),
        ("gloo", True),
        ("cpu:gloo", True),
        ("cpu:gloo,cuda:gloo", True),
        ("cpu:gloo,cuda:ringleader", True),
        ("nccl", False),
        ("mpi", False),
        ("cpu:gloo,cuda:nccl", False),
        ("cuda:nccl,cpu:gloo", False),
        ("", False),
        ("cpu:", False),
    ],
)
def test_what_is_replaced(asked: str, is_ours: bool) -> None:
    assert default_backend.is_replaced(asked) is is_ours


@pytest.mark.parametrize("asked", ["nccl", "mpi", "cpu:gloo,cuda:nccl"])
def test_a_run_without_options_leaves_other_names_alone(asked: str) -> None:
    for default in (DefaultBackend.UNNAMED, DefaultBackend.LIBRARIES):
        assert not default_backend.is_replaced(asked, default)


@pytest.mark.parametrize(
    ("value", "asked", "kind", "said"),
    [
        ("unnamed", None, "ringleader", "torch's default backend"),
        ("unnamed", "gloo", "gloo", ""),
        ("libraries", None, "ringleader", "torch's default backend"),
        ("libraries", "gloo", "ringleader", "gloo"),
    ],
)
def test_what_a_run_without_options_replaces(
    value: str,
    asked: str | None,
    kind: str,
    said: str,
    switch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``ringleader run`` sets these values; a group of a group is like it."""
    switch.setenv("RINGLEADER_DEFAULT", value)
    with caplog.at_level(logging.WARNING):
        group = world(asked)
        beside = dist.new_group()
    names = [group.name(), beside.name()]
    assert names == [kind, kind]
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == bool(said)
    if said:
        assert texts[0].startswith(f"ringleader replaces {said} for ")
        assert texts[0].endswith("(--backend script: as torch does)")


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("gloo", "gloo"),
        ("GLOO", "gloo"),
        (None, "ringleader"),
        ("cpu:gloo", "cpu:gloo"),
        ("ringleader", "ringleader"),
    ],
)
def test_get_backend_answers_the_name_that_was_asked_for(
    asked: str | None, answer: str
) -> None:
    group = world(asked)
    assert type(group) is RingleaderGroup
    assert dist.get_backend() == answer
    assert group.name() == "ringleader"
    assert "gloo" not in dist.get_backend_config()
    inherited, named = dist.new_group(), dist.new_group(backend="gloo")
    assert [type(g) for g in (inherited, named)] == [RingleaderGroup] * 2
    assert [dist.get_backend(g) for g in (inherited, named)] == [answer, "gloo"]
    dist.monitored_barrier()
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=named)
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.usefixtures("switch")
def test_it_is_said_once_and_with_the_devices(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        world("gloo")
        dist.new_group(backend="gloo")
    devices = " and ".join(sorted(device.type for device in available_devices()))
    (text,) = [record.getMessage() for record in caplog.records]
    wanted = f"ringleader replaces gloo for {devices} tensors"
    assert text == f"{wanted} (RINGLEADER_DEFAULT=1)"


@pytest.mark.usefixtures("switch")
def test_another_backend_stays_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    with caplog.at_level(logging.WARNING):
        group = world("fake")
    assert type(group) is not RingleaderGroup
    (text,) = [record.getMessage() for record in caplog.records]
    assert text == "RINGLEADER_DEFAULT=1 replaces gloo only: fake is torch's"


@pytest.mark.usefixtures("switch")
def test_options_of_gloo_are_ignored_as_gloo_does() -> None:
    assert type(world("gloo", pg_options=object())) is RingleaderGroup


@pytest.mark.parametrize("value", ["0", ""])
def test_without_the_variable_gloo_is_gloo(
    value: str, switch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    switch.setenv("RINGLEADER_DEFAULT", value)
    assert world("gloo").name() == "gloo"
    assert caplog.records == []


def test_a_value_that_means_nothing_is_refused(switch: pytest.MonkeyPatch) -> None:
    switch.setenv("RINGLEADER_DEFAULT", "yes")
    with pytest.raises(ConfigError, match="RINGLEADER_DEFAULT is 'yes'; use 1 or 0"):
        world("gloo")


@pytest.mark.slow
def test_compression_finds_the_group_behind_the_name(
    switch: pytest.MonkeyPatch,
) -> None:
    """``run --compress int8 --backend ringleader`` with a script that says gloo."""
    from torch.nn.parallel import DistributedDataParallel

    from ringleader.compression import env_hook

    init = DistributedDataParallel.__init__
    switch.setattr(DistributedDataParallel, "__init__", init)  # restored at the end
    switch.setenv("RINGLEADER_COMPRESS", "int8")
    env_hook.install()
    world("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    assert len(model._comm_hooks) == 1
