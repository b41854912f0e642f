"""A torch that nobody tried is reported once, and used all the same."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ringleader.backend import torch_release


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.1", "2.15.0+cu132"])
def test_a_tested_release_is_not_worth_a_word(version: str) -> None:
    assert torch_release.remark(version) == ""


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.16.0", ("newer", "2.13 to 2.15", "pip install 'torch==2.15.*'")),
        ("2.20.0a0+git1", ("newer", "2.20.0a0+git1")),
        ("3.0.0", ("newer",)),
        ("2.9.1", ("older", "pip install 'torch>=2.13'")),
        ("unknown", ("older", "unknown")),
    ],
)
def test_another_release_is_named_with_what_to_do(
    version: str, words: tuple[str, ...]
) -> None:
    text = torch_release.remark(version)
    for word in words:
        assert word in text


def test_it_is_said_once_and_groups_are_formed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch_release.report.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            dist.init_process_group(
                "ringleader", store=HashStore(), rank=0, world_size=1
            )
            try:
                dist.new_group([0])
                dist.all_reduce(torch.ones(2))
            finally:
                dist.destroy_process_group()
    (record,) = caplog.records
    assert "torch 2.99.0 is newer" in record.getMessage()
