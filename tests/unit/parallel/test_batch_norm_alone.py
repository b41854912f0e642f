"""SyncBatchNorm without other ranks: plain batch norm, and its conversion."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.parallel.exchange_device import exchange_device
from ringleader.parallel.sync_batch_norm import SyncBatchNorm

INPUTS = [
    (nn.BatchNorm1d, (6, 3)),
    (nn.BatchNorm1d, (6, 3, 4)),
    (nn.BatchNorm2d, (6, 3, 4, 2)),
    (nn.BatchNorm3d, (6, 3, 4, 2, 2)),
]


class Gate(nn.BatchNorm2d):
    """A batch norm with its own forward."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return super().forward(input).relu()


def model() -> nn.Module:
    """Batch norms of all kinds at several depths, in training and evaluation."""
    deep = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=None))
    frozen = nn.BatchNorm3d(4, eps=0.1).eval()
    plain = nn.SyncBatchNorm(5, affine=False, track_running_stats=False)
    return nn.ModuleDict(
        {
            "deep": nn.ModuleList([deep]),
            "one": nn.BatchNorm1d(2, bias=False),
            "frozen": frozen,
            "plain": plain,
        }
    )


def settings_of(layer: nn.Module) -> str:
    """Return the texts of all layers."""
    return repr(layer).partition("(")[2]


@pytest.mark.parametrize(("kind", "shape"), INPUTS)
def test_alone_it_is_plain_batch_norm(
    kind: type[nn.BatchNorm1d], shape: tuple[int, ...]
) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    ours, torchs = SyncBatchNorm(3), kind(3)
    for is_training in (True, False):
        ours.train(is_training)
        torchs.train(is_training)
        assert torch.equal(ours(values), torchs(values))
    assert str(ours.state_dict()) == str(torchs.state_dict())


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 4, 5), (1,) * 6])
def test_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"need 2 to 5 dimensions and 3 channels"):
        SyncBatchNorm(3)(torch.zeros(shape))


def test_conversion_reaches_every_depth_and_keeps_all_settings() -> None:
    before = model()
    names = [n for n, m in before.named_modules() if "Norm" in type(m).__name__]
    settings = {name: settings_of(before.get_submodule(name)) for name in names}
    modes = {name: before.get_submodule(name).training for name in names}

    after = SyncBatchNorm.convert_sync_batchnorm(before)

    assert len(names) == 4
    for name in names:
        layer = after.get_submodule(name)
        assert type(layer) is SyncBatchNorm
        assert settings_of(layer) == settings[name]
        assert layer.training is modes[name]


def test_conversion_keeps_parameters_and_buffers_themselves() -> None:
    before = model()
    tensors = {id(t) for t in (*before.parameters(), *before.buffers())}

    after = SyncBatchNorm.convert_sync_batchnorm(before)

    assert {id(t) for t in (*after.parameters(), *after.buffers())} == tensors


def test_a_converted_batch_norm_is_returned() -> None:
    layer = SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))
    assert type(layer) is SyncBatchNorm


def test_a_shared_batch_norm_stays_shared() -> None:
    norm = nn.BatchNorm1d(2)
    both = nn.Sequential(norm, nn.ReLU(), norm)

    SyncBatchNorm.convert_sync_batchnorm(both)

    assert type(both[0]) is SyncBatchNorm
    assert both[0] is both[2]


def test_a_batch_norm_with_a_forward_of_its_own_is_left_alone() -> None:
    layer = nn.Sequential(Gate(3))
    SyncBatchNorm.convert_sync_batchnorm(layer)
    assert type(layer[0]) is Gate


def test_a_lazy_batch_norm_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="run one batch through the model"):
        SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))


def test_state_dicts_go_both_ways() -> None:
    plain = model()
    for tensor in plain.state_dict().values():
        tensor.fill_(3)
    synced = SyncBatchNorm.convert_sync_batchnorm(model())
    back = model()

    synced.load_state_dict(plain.state_dict(), strict=True)
    back.load_state_dict(synced.state_dict(), strict=True)

    assert list(back.state_dict()) == list(plain.state_dict())
    assert all((tensor == 3).all() for tensor in back.state_dict().values())


def test_it_can_be_copied() -> None:
    layer = SyncBatchNorm(3)
    assert str(copy.deepcopy(layer).state_dict()) == str(layer.state_dict())


@pytest.mark.parametrize(
    ("device", "backends", "place"),
    [
        ("cpu", "cpu:gloo,cuda:nccl", "cpu"),
        ("cuda", "cpu:gloo,cuda:nccl", "cuda"),
        ("mps", "cpu:gloo,cuda:gloo", "cpu"),
        ("mps", "cpu:ringleader,mps:ringleader", "mps"),
        ("cpu", "cuda:nccl", "cpu"),
    ],
)
def test_tensors_meet_where_the_backend_can_reach_them(
    device: str, backends: str, place: str
) -> None:
    assert exchange_device(device, backends) == place
